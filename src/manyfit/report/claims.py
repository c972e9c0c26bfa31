"""What may be said of measured numbers: means, intervals, ratios, differences, and whether they are more than noise."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

CONFIDENCE = 0.95
LEAST_NOISE = 0.02
"""Relative differences of speed below this are noise even where few samples seem steadier."""

_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_Z_975 = statistics.NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Estimate:
    """A number and how well it is known.

    Args:
        value: The number itself.
        low: Lower end of its 95 % interval; None where there is none (one sample).
        high: Upper end.
        samples: How many runs it was made from; for a comparison those of each side.
    """

    value: float
    low: float | None = None
    high: float | None = None
    samples: tuple[int, ...] = (1,)

    @property
    def one_sample(self) -> bool:
        """Whether a side of it is a single run, so that nothing is known of its spread."""
        return min(self.samples) < 2

    def scaled(self, factor: float) -> "Estimate":
        """The same in another unit."""
        low = None if self.low is None else self.low * factor
        high = None if self.high is None else self.high * factor
        return Estimate(self.value * factor, low, high, self.samples)

    def holds(self, value: float) -> bool:
        """Whether `value` lies in the interval; False where there is none."""
        return self.low is not None and self.high is not None and self.low <= value <= self.high

    def as_dict(self) -> dict[str, Any]:
        """The estimate as JSON."""
        return asdict(self)


def t_975(degrees: float) -> float:
    """The 0.975 quantile of Student's t: half the width of a 95 % interval in standard errors.

    From the table in the NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, rounded down to whole degrees of
    freedom (a wider interval); beyond 30 by the first terms of the expansion around the normal quantile (Abramowitz and
    Stegun, 26.7.5), right to three decimals there.

    >>> t_975(1), t_975(2.9), round(t_975(60), 3)
    (12.706, 4.303, 2.0)
    """
    if degrees < 1:
        raise ValueError(f"{degrees} degrees of freedom give no interval.")
    if degrees < len(_T_975) + 1:
        return _T_975[int(degrees) - 1]
    z = _Z_975
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def mean(values: Sequence[float]) -> Estimate:
    """The mean, with Student's 95 % interval from two values on.

    >>> one = mean([10.0, 12.0, 14.0])
    >>> one.value, round(one.low, 3), round(one.high, 3)
    (12.0, 7.031, 16.969)
    """
    middle = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(middle, samples=(len(values),))
    half = t_975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(middle, middle - half, middle + half, (len(values),))


def difference(values: Sequence[float], baseline: Sequence[float]) -> Estimate:
    """Mean of `values` minus mean of `baseline`, with Welch's interval (Welch, 1947) where both have two values.

    >>> difference([0.5], [0.25])
    Estimate(value=0.25, low=None, high=None, samples=(1, 1))
    """
    samples = (len(values), len(baseline))
    middle = statistics.fmean(values) - statistics.fmean(baseline)
    if min(samples) < 2:
        return Estimate(middle, samples=samples)
    parts = [statistics.variance(side) / len(side) for side in (values, baseline)]
    error = sum(parts)
    if error == 0:
        return Estimate(middle, middle, middle, samples)
    # Welch and Satterthwaite: never below the smaller side's own, but for rounding.
    degrees = error**2 / sum(part**2 / (count - 1) for part, count in zip(parts, samples, strict=True))
    half = t_975(max(degrees, min(samples) - 1)) * math.sqrt(error)
    return Estimate(middle, middle - half, middle + half, samples)


def ratio(values: Sequence[float], baseline: Sequence[float]) -> Estimate:
    """Geometric mean of `values` over that of `baseline`: the difference of their logarithms, with its interval.

    Geometric, so that A over B is one divided by B over A.

    >>> round(ratio([200.0, 450.0], [100.0]).value, 6)
    3.0
    """
    logs = difference([math.log(value) for value in values], [math.log(value) for value in baseline])
    low = None if logs.low is None else math.exp(logs.low)
    high = None if logs.high is None else math.exp(logs.high)
    return Estimate(math.exp(logs.value), low, high, logs.samples)


def differs(speed_up: Estimate, spread: float = 0.0) -> bool:
    """Whether a ratio of speeds is more than noise: outside `LEAST_NOISE`, its interval, or the spread of its epochs.

    Args:
        spread: Relative; what the speeds of one run's epochs differ by. Used where there is no interval.
    """
    if speed_up.low is not None and speed_up.holds(1.0):
        return False
    noise = LEAST_NOISE if speed_up.low is not None else max(LEAST_NOISE, spread)
    return abs(math.log(speed_up.value)) > math.log(1 + noise)


def proportions(accuracy: float, baseline: float, num: int, num_baseline: int) -> Estimate:
    """Difference of two accuracies, with what that many validation examples can tell apart.

    The 95 % interval of Agresti and Caffo (2000), which holds near 0 and 1 as well. It takes the two sets of examples
    as drawn apart; on one and the same set the true interval is narrower.

    >>> one = proportions(0.97, 0.95, 1000, 1000)
    >>> round(one.value, 3), round(one.low, 4), round(one.high, 4)
    (0.02, 0.0026, 0.0373)
    """
    first, second = (accuracy * num + 1) / (num + 2), (baseline * num_baseline + 1) / (num_baseline + 2)
    half = _Z_975 * math.sqrt(first * (1 - first) / (num + 2) + second * (1 - second) / (num_baseline + 2))
    middle = first - second
    return Estimate(accuracy - baseline, middle - half, middle + half, (1, 1))
