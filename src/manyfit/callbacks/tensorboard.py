"""TensorBoard logs of a run: the numbers of each epoch, training and validation as two curves of one chart."""

from pathlib import Path

import keras
import tensorflow as tf

from manyfit.callbacks.throughput import learning_rate_of

SCALAR = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"), data_class="DATA_CLASS_SCALAR"
)


class TensorBoardRows(keras.callbacks.Callback):
    """Writes each epoch's numbers under `folder/train` and `folder/validation`, named as Keras names them.

    Keras' own callback also hooks every step and writes graphs, which a training function of our own would pay for.
    """

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = Path(folder)
        self._writers: dict[str, tf.summary.SummaryWriter] = {}

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Write what `logs` holds, and the learning rate."""
        numbers = dict(logs or {})
        if (learning_rate := learning_rate_of(self.model)) is not None:
            numbers.setdefault("learning_rate", learning_rate)
        for name, value in numbers.items():
            split = "validation" if name.startswith("val_") else "train"
            if split not in self._writers:
                self._writers[split] = tf.summary.create_file_writer(str(self.folder / split))
            with self._writers[split].as_default():
                # `tf.summary.scalar` needs the tensorboard package, which writing a number does not.
                tf.summary.write(
                    f"epoch_{name.removeprefix('val_')}", tf.constant(value, tf.float32), epoch + 1, SCALAR
                )
        # A run that is killed keeps the curves of its finished epochs.
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, logs: dict | None = None) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
