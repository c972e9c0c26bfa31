"""How good a saved model is on any data, under any strategy: exact, each example once."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from manyfit import models, strategy
from manyfit.data.pipeline import Feed
from manyfit.evaluation_data import Examples, examples_of
from manyfit.models import feature_cache
from manyfit.models.saved import load_network
from manyfit.replicated import ReplicatedModel
from manyfit.report.paired import BOOTSTRAP, bootstrap, share
from manyfit.strategy import Place
from manyfit.trained_run import TrainedRun, strategy_config

MOST_ROWS_PER_REPLICA = 32


@dataclass(frozen=True)
class Evaluation:
    """What came out.

    Args:
        loss: Mean over the examples, and what the run's L2 penalty adds.
        accuracy: Share of the examples whose class was found.
        confusion_matrix: int [classes, classes], rows the truth, columns the prediction.
        source: Where the examples are from, in words.
        name: The run.
        fingerprint: Of the examples: two evaluations with the same one can be paired.
        losses: float64 [n], the cross-entropy of each example, without the penalty.
        right: bool [n], whether its class was found.
        seed: Of the intervals.
    """

    loss: float
    accuracy: float
    class_names: tuple[str, ...]
    confusion_matrix: np.ndarray
    source: str
    num_skipped: int = 0
    name: str = ""
    fingerprint: str = ""
    losses: np.ndarray = field(default_factory=lambda: np.zeros(0))
    right: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    seed: int = 0

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

    def intervals(self) -> dict[str, Any] | None:
        """The 95 % intervals of accuracy and loss, and how they were made; None without the examples' own results."""
        if not len(self.losses):
            return None
        accuracy, loss = share(self.right, self.seed), bootstrap(self.losses, self.seed)
        penalty = self.loss - loss.value  # the same in every resample
        assert loss.low is not None and loss.high is not None
        return {
            "accuracy": [accuracy.low, accuracy.high],
            "loss": [loss.low + penalty, loss.high + penalty],
            "method": f"{BOOTSTRAP}, seed {self.seed}; Wilson's interval for an accuracy of 0 or 1",
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "run": self.name,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "intervals": self.intervals(),
            "num_examples": int(self.confusion_matrix.sum()),
            "num_skipped": self.num_skipped,
            "source": self.source,
            "class_names": list(self.class_names),
            "per_class": self.per_class(),
            "confusion_matrix": self.confusion_matrix.tolist(),
        }


def evaluate_run(folder: Path, **keywords: Any) -> Evaluation:
    """Evaluate the model of one run: see `evaluate_runs`."""
    return evaluate_runs([folder], **keywords)[0]


def evaluate_runs(
    folders: Sequence[Path],
    *,
    data_root: str | None = None,
    data_name: str | None = None,
    replicas: int | None = None,
    device: str = "auto",
    engine: str = "keras",
    seed: int = 0,
) -> list[Evaluation]:
    """Evaluate the model of each run on its validation split, or on other pictures.

    Args:
        data_root: Other pictures: a data set's root (its validation split counts), or a flat `root/CLASS/*` (whole).
        data_name: Read the root as this data set.
        replicas: Replicas to evaluate on: GPUs where there are any, else logical CPU devices; None for the default.
        device: `auto`, `gpu` or `cpu`.
        engine: `keras`, or `auto` for the fastest way to run a backbone that gives the same features to 1e-4.
        seed: Of the intervals.

    Raises:
        UserError: no such run or model, or data that does not fit it.
    """
    runs = [TrainedRun.load(folder) for folder in folders]
    place = strategy.make(strategy_config(replicas, device, len(tf.config.list_physical_devices("GPU"))))
    # Whatever does not fit is found before the first of many models runs.
    examples = [examples_of(run, data_root, data_name) for run in runs]
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.folder) for run in runs]
    found = [_evaluate(run, one, place, engine) for run, one in zip(runs, examples, strict=True)]
    return [replace(one, name=name, seed=seed) for one, name in zip(found, names, strict=True)]


def _evaluate(run: TrainedRun, examples: Examples, place: Place, engine: str) -> Evaluation:
    split, num_classes = examples.split, len(run.class_names)
    with place.strategy.scope():
        network = load_network(run.model_path, run.config.model, num_classes)
        models.penalize(network, run.config.model.l2)  # so that the loss is the one the run validated with
        penalty = float(sum(float(loss) for loss in network.losses))
        if engine == "auto" and (parts := feature_cache.split_network(network)) is not None:
            assert parts.head is not None
            network = parts.head
            split = feature_cache.compute_split(parts, split, strategy=place.strategy, on_gpu=place.on_gpu)
        model = _compiled(network, num_classes)
    rows = min(MOST_ROWS_PER_REPLICA, -(-len(split) // place.num_replicas)) * place.num_replicas
    steps = -(-len(split) // rows)
    feed = Feed(split, rows, steps, tuple(network.input_shape[1:]))
    scores = model.predict(feed.distribute(place.strategy), steps=steps)
    losses, predicted = cross_entropy(scores, split.labels), classes_of(scores)
    pairs = np.bincount(split.labels * num_classes + predicted, minlength=num_classes**2)
    return Evaluation(
        loss=float(losses.mean()) + penalty,
        accuracy=float((predicted == split.labels).mean()),
        class_names=run.class_names,
        confusion_matrix=pairs.reshape(num_classes, num_classes),
        source=examples.source,
        num_skipped=examples.num_skipped,
        fingerprint=examples.fingerprint,
        losses=losses,
        right=predicted == split.labels,
    )


def cross_entropy(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The loss of each example, float64 [n], from class scores (logits) [n, classes] or, for two classes, [n, 1]."""
    scores = np.asarray(scores, np.float64)
    if scores.shape[-1] == 1:
        scores = np.concatenate([np.zeros_like(scores), scores], axis=-1)
    highest = scores.max(axis=-1)
    total = highest + np.log(np.exp(scores - highest[:, None]).sum(axis=-1))
    return total - scores[np.arange(len(scores)), labels]


def classes_of(scores: np.ndarray) -> np.ndarray:
    """The class that is found for each example, int [n]; one score above 0 means the second of two."""
    if scores.shape[-1] == 1:
        return (scores[:, 0] > 0).astype(np.int64)
    return scores.argmax(axis=-1)


def _compiled(network: keras.Model, num_classes: int) -> ReplicatedModel:
    loss, metrics = models.loss_and_metrics(num_classes, network.output_shape[-1])
    model = ReplicatedModel(network)
    model.compile(keras.optimizers.SGD(), loss, metrics)
    return model
