"""How good a saved model is on any data, under any strategy: exact, each example once."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from manyfit import data as data_sets
from manyfit import models, strategy
from manyfit.config import RunConfig, StrategyConfig, from_yaml
from manyfit.data.examples import Split
from manyfit.data.pipeline import Feed
from manyfit.errors import ConfigError, DataError, UserError
from manyfit.models import feature_cache
from manyfit.models.module import import_factory
from manyfit.record import RunRecord
from manyfit.replicated import ReplicatedModel

MOST_ROWS_PER_REPLICA = 32


class ConfusionCounts(keras.metrics.Metric):
    """How often each class was taken for each: float32 [num_classes, num_classes], rows the truth.

    Args:
        num_classes: Classes; two have one logit.
    """

    def __init__(self, num_classes: int, name: str = "confusion_matrix"):
        super().__init__(name=name)
        self.num_classes = num_classes
        self.counts = self.add_variable((num_classes, num_classes), "zeros", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Count the rows, each as often as its weight."""
        two = y_pred.shape[-1] == 1
        predicted = tf.cast(y_pred[:, 0] > 0, tf.int32) if two else tf.argmax(y_pred, axis=-1, output_type=tf.int32)
        counts = tf.math.confusion_matrix(
            tf.reshape(y_true, [-1]), predicted, self.num_classes, weights=sample_weight, dtype=tf.float32
        )
        self.counts.assign_add(counts)

    def result(self):
        """The counts."""
        return keras.ops.convert_to_tensor(self.counts)

    def reset_state(self):
        """Start again from zero."""
        self.counts.assign(keras.ops.zeros_like(self.counts))


@dataclass(frozen=True)
class Evaluation:
    """What came out.

    Args:
        loss: Mean over the examples.
        accuracy: Share of the examples whose class was found.
        confusion_matrix: int [classes, classes], rows the truth, columns the prediction.
    """

    loss: float
    accuracy: float
    class_names: tuple[str, ...]
    confusion_matrix: np.ndarray
    source: str
    num_skipped: int = 0

    def per_class(self) -> dict[str, dict[str, float | int | None]]:
        """Precision, recall and number of examples of each class; None where nothing was predicted or there."""
        matrix = self.confusion_matrix
        rows = {}
        for index, name in enumerate(self.class_names):
            right, predicted, there = int(matrix[index, index]), int(matrix[:, index].sum()), int(matrix[index].sum())
            rows[name] = {
                "precision": right / predicted if predicted else None,
                "recall": right / there if there else None,
                "num_examples": there,
            }
        return rows

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "loss": self.loss,
            "accuracy": self.accuracy,
            "num_examples": int(self.confusion_matrix.sum()),
            "num_skipped": self.num_skipped,
            "source": self.source,
            "class_names": list(self.class_names),
            "per_class": self.per_class(),
            "confusion_matrix": self.confusion_matrix.tolist(),
        }


def evaluate_run(
    folder: Path,
    *,
    data_root: str | None = None,
    data_name: str | None = None,
    replicas: int | None = None,
    device: str = "auto",
    engine: str = "keras",
) -> Evaluation:
    """Evaluate the model of the run in `folder` on its validation split, or on other pictures.

    Args:
        data_root: Other pictures: a data set's root (its validation split counts), or a flat `root/CLASS/*` (whole).
        data_name: Read the root as this data set.
        replicas: Replicas to evaluate on: GPUs where there are any, else logical CPU devices; None for the default.
        device: `auto`, `gpu` or `cpu`.
        engine: `keras`, or `auto` for the fastest way to run a backbone that gives the same features to 1e-4.

    Raises:
        UserError: no such run or model, or data that does not fit it.
    """
    record = RunRecord.load(folder)
    config = _config(folder)
    place = strategy.make(_strategy_config(replicas, device))
    class_names = tuple(record.data["data"].get("class_names") or ())
    split, source, num_skipped = _split(config, class_names, data_root, data_name)
    if config.model.builder == "module":
        import_factory(config.model)
    with place.strategy.scope():
        model = _load(folder, class_names, config.model.l2)
        if engine == "auto" and (parts := feature_cache.split_network(model.network)) is not None:
            model = _compiled(parts.head, class_names)
            split = feature_cache.compute_split(parts, split, strategy=place.strategy, on_gpu=place.on_gpu)
    rows = min(MOST_ROWS_PER_REPLICA, -(-len(split) // place.num_replicas)) * place.num_replicas
    steps = -(-len(split) // rows)
    feed = Feed(split, rows, steps, tuple(model.network.input_shape[1:]))
    model.evaluate(feed.distribute(place.strategy), steps=steps)
    loss, accuracy, confusion = (keras.ops.convert_to_numpy(metric.result()) for metric in model.metrics)
    return Evaluation(float(loss), float(accuracy), class_names, confusion.astype(int), source, num_skipped)


def _config(folder: Path) -> RunConfig:
    path = Path(folder) / "config.yaml"
    try:
        return from_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.", "Give the folder of a run.") from error


def _strategy_config(replicas: int | None, device: str) -> StrategyConfig:
    if device == "auto":
        device = "gpu" if tf.config.list_physical_devices("GPU") else "cpu"
    return StrategyConfig(name="mirrored", replicas="auto" if replicas is None else replicas, device=device)


def _split(
    config: RunConfig, class_names: tuple[str, ...], root: str | None, name: str | None
) -> tuple[Split, str, int]:
    """The examples to evaluate on, in words where they come from, and how many files were skipped."""
    asked = config.data
    if name is not None and name != asked.name:
        from manyfit.config import SCHEMAS, nearest

        if name not in SCHEMAS["data"]:
            raise ConfigError(f"--data {name} is not a data set.", nearest(name, SCHEMAS["data"]))
        asked = SCHEMAS["data"][name](name=name)
    if root is not None:
        asked.root, asked.source = root, "auto"
        if _is_flat(Path(root)):
            split, _, skipped = data_sets.load_folder_whole(root, class_names, on_bad_image=asked.on_bad_image)
            return split, root, len(skipped)
    data = data_sets.load(asked)
    if data.class_names != class_names:
        raise DataError(
            f"The data has the classes {', '.join(data.class_names)}; the model knows {', '.join(class_names)}.",
            "Evaluate on data with the same classes.",
        )
    return data.validation, f"{data.name} ({data.source}), validation split", len(data.skipped)


def _is_flat(root: Path) -> bool:
    """Whether `root` is a folder of class folders, without splits."""
    with contextlib.suppress(OSError):
        names = {entry.name.lower() for entry in root.iterdir() if entry.is_dir()}
        return bool(names) and not names & {"train", "validation", "val", "valid", "test"}
    return False


def _load(folder: Path, class_names: tuple[str, ...], l2: float) -> ReplicatedModel:
    """The saved model, ready to evaluate; inside the scope of the strategy."""
    path = Path(folder) / "model.keras"
    if not path.exists():
        raise UserError(f"{folder} holds no model: no epoch of that run was saved.", "Give the folder of another run.")
    try:
        network = keras.models.load_model(path, compile=False, safe_mode=True)
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
        raise UserError(f"{path} cannot be loaded: {reason}", "The file may be damaged; train again.") from error
    models.penalize(network, l2)  # so that the loss is the one the run validated with
    return _compiled(network, class_names)


def _compiled(network: keras.Model, class_names: tuple[str, ...]) -> ReplicatedModel:
    loss, metrics = models.loss_and_metrics(len(class_names), network.output_shape[-1])
    model = ReplicatedModel(network)
    model.compile(keras.optimizers.SGD(), loss, [*metrics, ConfusionCounts(len(class_names))])
    return model
