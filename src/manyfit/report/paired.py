"""What a set of examples can tell of an accuracy or a loss, and of the difference between two models on it."""

import math
from collections.abc import Sequence

import numpy as np

from manyfit.report.claims import CONFIDENCE, Estimate

RESAMPLES = 2000
BOOTSTRAP = (
    f"percentile bootstrap over the examples (Efron, 1979): {RESAMPLES:,} resamples with replacement, "
    f"{CONFIDENCE:.0%} interval"
)
MCNEMAR = "exact McNemar test (two-sided binomial on the examples that one model has right and the other wrong)"
_DRAWS_AT_A_TIME = 4_000_000
_Z = 1.959963984540054


def bootstrap(values: np.ndarray, seed: int = 0) -> Estimate:
    """The mean of one value an example, with its percentile bootstrap interval.

    For the difference of two models on the same examples give the differences: the resamples are then paired.

    Args:
        values: float [n], n >= 1.
        seed: Of the resamples: the same seed gives the same interval.

    >>> one = bootstrap(np.array([0.0, 1.0] * 200))
    >>> one.value, round(one.low, 2), round(one.high, 2)
    (0.5, 0.45, 0.55)
    """
    values = np.asarray(values, np.float64)
    rng = np.random.default_rng(seed)
    block = max(1, _DRAWS_AT_A_TIME // len(values))
    means = []
    for start in range(0, RESAMPLES, block):
        drawn = rng.integers(0, len(values), (min(block, RESAMPLES - start), len(values)))
        means.append(values[drawn].mean(axis=1))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return Estimate(float(values.mean()), float(low), float(high), (len(values),))


def share(right: np.ndarray, seed: int = 0) -> Estimate:
    """The share of examples that are right, with its bootstrap interval; Wilson's (1927) where all or none are.

    Resamples of examples that are all alike are all alike: their interval would say that nothing is unknown.

    >>> one = share(np.ones(100, bool))
    >>> one.value, round(one.low, 3), one.high
    (1.0, 0.963, 1.0)
    """
    count, total = int(np.count_nonzero(right)), len(right)
    return bootstrap(right, seed) if 0 < count < total else wilson(count, total)


def wilson(count: int, total: int) -> Estimate:
    """A share with Wilson's 95 % interval (1927), which is right for few examples and near 0 and 1 as well.

    >>> one = wilson(9, 10)
    >>> one.value, round(one.low, 4), round(one.high, 4)
    (0.9, 0.5958, 0.9821)
    """
    rate = count / total
    middle = (count + _Z**2 / 2) / (total + _Z**2)
    half = _Z * math.sqrt(total * rate * (1 - rate) + _Z**2 / 4) / (total + _Z**2)
    return Estimate(rate, max(0.0, middle - half), min(1.0, middle + half), (total,))


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact p-value of McNemar's test (1947): whether two models are right on equally many of the same examples.

    Args:
        only_first: Examples that only the first has right.
        only_second: Examples that only the second has right.

    >>> mcnemar(0, 0), mcnemar(5, 5), round(mcnemar(1, 9), 6)
    (1.0, 1.0, 0.021484)
    """
    total, fewer = only_first + only_second, min(only_first, only_second)
    if total == 0:
        return 1.0
    logs = [
        math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1) - total * math.log(2)
        for k in range(fewer + 1)
    ]
    return min(1.0, 2 * math.fsum(math.exp(one) for one in logs))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several tests, corrected so that one false alarm among all is as rare (Holm, 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
