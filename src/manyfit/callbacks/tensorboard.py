"""TensorBoard logs of a run: the numbers of each epoch, training and validation as two curves of one chart."""

from pathlib import Path

import keras
import tensorflow as tf


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
        if self.model is not None and getattr(self.model, "optimizer", None) is not None:
            numbers.setdefault("learning_rate", float(self.model.optimizer.learning_rate))
        for name, value in numbers.items():
            split = "validation" if name.startswith("val_") else "train"
            if split not in self._writers:
                self._writers[split] = tf.summary.create_file_writer(str(self.folder / split))
            with self._writers[split].as_default():
                tf.summary.scalar(f"epoch_{name.removeprefix('val_')}", value, step=epoch + 1)
        # A run that is killed keeps the curves of its finished epochs.
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, logs: dict | None = None) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
