"""What class scores say of labelled examples: metrics with intervals, classes one by one, confusions, calibration.

All exact, in float64, from the scores of every example: this is where a run's metrics are looked at a second time.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from manyfit.report.claims import CONFIDENCE, Estimate
from manyfit.report.paired import RESAMPLES
from manyfit.report.roc import Curves, log_odds
from manyfit.schema.metrics import names, top_k

NUM_BINS = 15
MOST_CONFUSIONS = 20
TOP_KS = (3, 5)
"""Told of data with more classes than that, whatever the run counted."""

CALIBRATION = (
    f"{NUM_BINS} bins of equal width over the confidence, the probability of the predicted class (Guo et al., 2017)"
)
CALIBRATION_INTERVAL = (
    "basic bootstrap for the calibration error, since resamples are less well calibrated than the examples: its "
    "interval may lie below the value, and of few examples both are too high"
)
_CHANCES = 1000
_MOST_STEPS = 500_000_000
"""Ranks that the resamples of one AUC may go through; beyond, there are fewer resamples (a second or two)."""
_FEWEST_RESAMPLES = 200
_MOST_RANKS = 50_000_000
"""Ranks that are kept for the AUC's resamples; beyond, it has no interval."""

Statistic = Callable[[np.ndarray], float]
"""A metric of the examples, each of which counts as often as its weight says: float64 [n] to a number."""


@dataclass(frozen=True, eq=False)
class Measure:
    """A metric of a set of examples.

    Args:
        value: Of the examples themselves.
        resamples: Of resamples of them, float64 [r]; two models on the same examples have the same resamples, so that
            their differences are paired. Empty where there are none.
        basic: Whether the interval is the basic one.
    """

    value: float
    resamples: np.ndarray
    basic: bool = False

    def estimate(self) -> Estimate:
        """With its 95 % interval; without where all resamples are alike, which says nothing of what is unknown."""
        return interval(self.value, self.resamples, basic=self.basic)


def interval(value: float, resamples: np.ndarray, *, basic: bool = False, lowest: float | None = 0.0) -> Estimate:
    """A number with the percentile or the basic bootstrap interval (Davison and Hinkley, 1997, section 5.2)."""
    if not len(resamples) or float(np.ptp(resamples)) == 0.0:
        return Estimate(value)
    tail = (1 - CONFIDENCE) / 2
    low, high = (float(end) for end in np.quantile(resamples, [tail, 1 - tail]))
    if basic:
        low, high = 2 * value - high, 2 * value - low
    if lowest is not None:
        low, high = max(lowest, low), max(lowest, high)
    return Estimate(value, low, high, (len(resamples),))


@dataclass(frozen=True)
class Bin:
    """The examples whose confidence is in (low, high]."""

    low: float
    high: float
    num_examples: int
    confidence: float | None
    accuracy: float | None

    @property
    def gap(self) -> float | None:
        """Confidence minus accuracy: above 0 the model is too sure."""
        if self.confidence is None or self.accuracy is None:
            return None
        return self.confidence - self.accuracy


@dataclass(frozen=True)
class Calibration:
    """How far confidence and accuracy are apart.

    Args:
        expected: The mean gap over the examples (ECE).
        maximum: The largest gap of a bin (MCE).
        chance: What a perfectly calibrated model with these confidences stays below in 95 of 100 such sets of examples
            (consistency resampling, Bröcker and Smith, 2007): an expected error up to there shows nothing.
    """

    bins: tuple[Bin, ...]
    expected: float
    maximum: float
    chance: float

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "bins": [asdict(one) for one in self.bins],
            "expected_error": self.expected,
            "maximum_error": self.maximum,
            "by_chance": self.chance,
            "method": CALIBRATION,
        }


class Scored:
    """The scores of labelled examples.

    Args:
        scores: Class scores (logits), float [n, classes], or [n, 1] for two classes; n >= 1.
        labels: int [n].
        num_classes: Of the model.
    """

    def __init__(self, scores: np.ndarray, labels: np.ndarray, num_classes: int):
        scores = np.asarray(scores, np.float64)
        if scores.shape[-1] == 1:
            scores = np.concatenate([np.zeros_like(scores), scores], axis=-1)
        self.scores = scores
        self.labels = np.asarray(labels, np.int64)
        self.num_classes = num_classes
        self.predicted = scores.argmax(axis=-1)
        self.right = self.predicted == self.labels

    @cached_property
    def confidence(self) -> np.ndarray:
        """The probability of the predicted class, float64 [n]."""
        highest = self.scores.max(axis=-1, keepdims=True)
        return 1 / np.exp(self.scores - highest).sum(axis=-1)

    @cached_property
    def confusion_matrix(self) -> np.ndarray:
        """int [classes, classes], rows the truth, columns the prediction."""
        cells = np.bincount(self.labels * self.num_classes + self.predicted, minlength=self.num_classes**2)
        return cells.reshape(self.num_classes, self.num_classes)

    @cached_property
    def curves(self) -> Curves:
        """The ranks of the examples, of each class against the rest."""
        return Curves(log_odds(self.scores), self.labels)

    @cached_property
    def bins(self) -> np.ndarray:
        """The bin of each example's confidence, int [n]."""
        return np.clip(np.ceil(self.confidence * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)

    def measures(self, words: Sequence[str], seed: int = 0) -> dict[str, Measure]:
        """Each metric with its resamples.

        Args:
            words: Of `manyfit.schema.metrics`, without loss and accuracy.
            seed: Of the resamples.
        """
        statistics = {word: self.statistic(word) for word in words}
        once = np.ones(len(self.labels))
        values = {word: one(once) for word, one in statistics.items()}
        drawn = {word: self._num_resamples(word) for word in words}
        found = {word: np.empty(count) for word, count in drawn.items()}
        rng = np.random.default_rng(seed)
        for index in range(max(drawn.values(), default=0)):
            indices = rng.integers(0, len(self.labels), len(self.labels))
            weights = np.bincount(indices, minlength=len(self.labels)).astype(np.float64)
            for word, count in drawn.items():
                if index < count:
                    found[word][index] = statistics[word](weights)
        return {word: Measure(values[word], found[word], word == "calibration_error") for word in words}

    def _num_resamples(self, word: str) -> int:
        if word != "auc":
            return RESAMPLES
        ranks = self.curves.num_ranks
        return 0 if ranks > _MOST_RANKS else min(RESAMPLES, max(_FEWEST_RESAMPLES, _MOST_STEPS // ranks))

    def statistic(self, word: str) -> Statistic:
        """The metric of that word."""
        if (k := top_k(word)) is not None:
            hits = self._among_first(k)
            return lambda weights: float(weights @ hits / weights.sum())
        return {"auc": self.curves.mean_area, "f1": self._macro_f1, "calibration_error": self._calibration_error}[word]

    def _among_first(self, k: int) -> np.ndarray:
        # As tf.math.in_top_k: of equal scores all are among the first if one is.
        own = self.scores[np.arange(len(self.labels)), self.labels]
        return ((self.scores > own[:, None]).sum(axis=-1) < k).astype(np.float64)

    def _macro_f1(self, weights: np.ndarray) -> float:
        counts = [np.bincount(at, weights, self.num_classes) for at in (self.labels, self.predicted)]
        right = np.bincount(self.labels[self.right], weights[self.right], self.num_classes)
        total = counts[0] + counts[1]
        return float((2 * right[total > 0] / total[total > 0]).mean())

    def _calibration_error(self, weights: np.ndarray) -> float:
        gaps = np.bincount(self.bins, weights * (self.confidence - self.right), NUM_BINS)
        return float(np.abs(gaps).sum() / weights.sum())

    def _error_by_chance(self, seed: int) -> float:
        rng, found = np.random.default_rng(seed), np.empty(_CHANCES)
        for index in range(_CHANCES):
            right = rng.random(len(self.labels)) < self.confidence
            gaps = np.bincount(self.bins, self.confidence - right, NUM_BINS)
            found[index] = np.abs(gaps).sum() / len(self.labels)
        return float(np.quantile(found, CONFIDENCE))

    def calibration(self, seed: int = 0) -> Calibration:
        """The reliability diagram's numbers.

        Args:
            seed: Of what is due to chance.
        """
        counts = np.bincount(self.bins, minlength=NUM_BINS)
        sums = [np.bincount(self.bins, values, NUM_BINS) for values in (self.confidence, self.right.astype(float))]
        bins = tuple(
            Bin(
                index / NUM_BINS,
                (index + 1) / NUM_BINS,
                int(count),
                *(float(values[index] / count) if count else None for values in sums),
            )
            for index, count in enumerate(counts)
        )
        gaps = [abs(gap) for one in bins if (gap := one.gap) is not None]
        expected = self._calibration_error(np.ones(len(self.labels)))
        return Calibration(bins, expected, max(gaps), self._error_by_chance(seed))


def per_class(matrix: np.ndarray, class_names: Sequence[str], areas: np.ndarray | None = None) -> dict[str, dict]:
    """What is known of each class, one against the rest; None where nothing was predicted or there.

    Args:
        matrix: int [classes, classes], rows the truth, columns the prediction.
        areas: Under each class's ROC curve, NaN for none; one of two classes.
    """
    total = int(matrix.sum())
    rows = {}
    for index, name in enumerate(class_names):
        right, predicted, there = int(matrix[index, index]), int(matrix[:, index].sum()), int(matrix[index].sum())
        area = None if areas is None else float(areas[index if len(areas) > 1 else 0])
        rows[name] = {
            "num_examples": there,
            "num_predicted": predicted,
            "precision": right / predicted if predicted else None,
            "recall": right / there if there else None,
            "f1": 2 * right / (predicted + there) if predicted + there else None,
            "accuracy": (total - predicted - there + 2 * right) / total if total else None,
            "auc": None if area is None or np.isnan(area) else area,
        }
    return rows


def confusions(matrix: np.ndarray, class_names: Sequence[str], most: int = MOST_CONFUSIONS) -> list[dict[str, Any]]:
    """The pairs of classes that are taken for each other most often, with their share of the true class's examples."""
    wrong = np.array(matrix)
    np.fill_diagonal(wrong, 0)
    cells = np.argsort(-wrong, axis=None, kind="stable")[:most]
    found = []
    for truth, predicted in zip(*np.unravel_index(cells, wrong.shape), strict=True):
        if count := int(wrong[truth, predicted]):
            share = count / int(matrix[truth].sum())
            pair = {"truth": class_names[truth], "predicted": class_names[predicted]}
            found.append({**pair, "num_examples": count, "share": share})
    return found


def words_told(num_classes: int, counted: Sequence[str]) -> list[str]:
    """The metrics of an evaluation: what the run counted, and what can be told of any.

    >>> words_told(4, ["top_2"])
    ['top_2', 'top_3', 'auc', 'f1', 'calibration_error']
    """
    asked = [k for word in counted if (k := top_k(word)) is not None and k < num_classes]
    tops = sorted({*asked, *(k for k in TOP_KS if k < num_classes)})
    return names([*(f"top_{k}" for k in tops), "auc", "f1", "calibration_error"])[2:]
