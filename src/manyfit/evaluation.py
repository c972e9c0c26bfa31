"""How good a saved model is on any data, under any strategy: exact, each example once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from manyfit import models, strategy
from manyfit.config import MultiWorkerConfig
from manyfit.data.pipeline import Feed
from manyfit.evaluation_data import Examples, examples_of
from manyfit.models import feature_cache
from manyfit.models.saved import load_network
from manyfit.peers import Peers, alone
from manyfit.replicated import ReplicatedModel
from manyfit.report.classification import (
    CALIBRATION_INTERVAL,
    Calibration,
    Measure,
    Scored,
    confusions,
    per_class,
    words_told,
)
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
        measures: Further metrics, by their words.
        areas: Under the ROC curve of each class against the rest, NaN for none; one of two classes.
        calibration: How far confidence and accuracy are apart.
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
    measures: Mapping[str, Measure] = field(default_factory=dict)
    areas: np.ndarray | None = None
    calibration: Calibration | None = None

    def per_class(self) -> dict[str, dict[str, float | int | None]]:
        """What is known of each class, one against the rest; None where nothing was predicted or there."""
        return per_class(self.confusion_matrix, self.class_names, self.areas)

    def metrics(self) -> dict[str, float]:
        """Every metric beside loss and accuracy."""
        return {word: measure.value for word, measure in self.measures.items()}

    def intervals(self) -> dict[str, Any] | None:
        """The 95 % intervals of accuracy and loss, and how they were made; None without the examples' own results."""
        if not len(self.losses):
            return None
        accuracy, loss = share(self.right, self.seed), bootstrap(self.losses, self.seed)
        penalty = self.loss - loss.value  # the same in every resample
        assert loss.low is not None and loss.high is not None
        estimates = {word: measure.estimate() for word, measure in self.measures.items()}
        return {
            "accuracy": [accuracy.low, accuracy.high],
            "loss": [loss.low + penalty, loss.high + penalty],
            **{word: None if one.low is None else [one.low, one.high] for word, one in estimates.items()},
            "method": f"{BOOTSTRAP}, seed {self.seed}; Wilson's interval for an accuracy of 0 or 1; "
            f"{CALIBRATION_INTERVAL}",
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "run": self.name,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "metrics": self.metrics(),
            "intervals": self.intervals(),
            "num_examples": int(self.confusion_matrix.sum()),
            "num_skipped": self.num_skipped,
            "source": self.source,
            "class_names": list(self.class_names),
            "per_class": self.per_class(),
            "confusions": confusions(self.confusion_matrix, self.class_names),
            "calibration": None if self.calibration is None else self.calibration.as_dict(),
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
    workers: MultiWorkerConfig | None = None,
    peers: Peers | None = None,
) -> list[Evaluation]:
    """Evaluate the model of each run on its validation split, or on other pictures.

    Args:
        data_root: Other pictures: a data set's root (its validation split counts), or a flat `root/CLASS/*` (whole).
        data_name: Read the root as this data set.
        replicas: Replicas to evaluate on: GPUs where there are any, else logical CPU devices; None for the default.
        device: `auto`, `gpu` or `cpu`.
        engine: `keras`, or `auto` for the fastest way to run a backbone that gives the same features to 1e-4.
        seed: Of the intervals.
        workers: The strategy of several processes, each of which calls this; it says `replicas` and `device` as well.
        peers: Those processes.

    Raises:
        UserError: no such run or model, or data that does not fit it.
    """
    runs = [TrainedRun.load(folder) for folder in folders]
    peers = peers or alone()
    asked = workers or strategy_config(replicas, device, len(tf.config.list_physical_devices("GPU")))
    place = strategy.make(asked, cluster=peers.cluster)
    # Whatever does not fit is found before the first of many models runs.
    examples = [examples_of(run, data_root, data_name) for run in runs]
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.folder) for run in runs]
    found = [_evaluate(run, one, place, engine, seed) for run, one in zip(runs, examples, strict=True)]
    return [replace(one, name=name) for one, name in zip(found, names, strict=True)]


def _evaluate(run: TrainedRun, examples: Examples, place: Place, engine: str, seed: int) -> Evaluation:
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
    losses, scored = cross_entropy(scores, split.labels), Scored(scores, split.labels, num_classes)
    return Evaluation(
        loss=float(losses.mean()) + penalty,
        accuracy=float(scored.right.mean()),
        class_names=run.class_names,
        confusion_matrix=scored.confusion_matrix,
        source=examples.source,
        num_skipped=examples.num_skipped,
        fingerprint=examples.fingerprint,
        losses=losses,
        right=scored.right,
        seed=seed,
        measures=scored.measures(words_told(num_classes, run.config.metrics), seed),
        areas=scored.curves.areas(),
        calibration=scored.calibration(seed),
    )


def cross_entropy(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The loss of each example, float64 [n], from class scores (logits) [n, classes] or, for two classes, [n, 1]."""
    scores = np.asarray(scores, np.float64)
    if scores.shape[-1] == 1:
        scores = np.concatenate([np.zeros_like(scores), scores], axis=-1)
    highest = scores.max(axis=-1)
    total = highest + np.log(np.exp(scores - highest[:, None]).sum(axis=-1))
    return total - scores[np.arange(len(scores)), labels]


def _compiled(network: keras.Model, num_classes: int) -> ReplicatedModel:
    loss, metrics = models.loss_and_metrics(num_classes, network.output_shape[-1])
    model = ReplicatedModel(network)
    model.compile(keras.optimizers.SGD(), loss, metrics)
    return model
