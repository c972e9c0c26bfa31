"""Two models on the same examples: is one really better than the other?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from manyfit.report.claims import Estimate
from manyfit.report.classification import Measure, interval
from manyfit.report.paired import BOOTSTRAP, MCNEMAR, bootstrap, holm, mcnemar

SIGNIFICANT = 0.05


class Evaluated(Protocol):
    """What a pair needs of each evaluation."""

    @property
    def name(self) -> str:
        """The run."""
        ...

    @property
    def fingerprint(self) -> str:
        """Of the examples."""
        ...

    @property
    def losses(self) -> np.ndarray:
        """float64 [n]."""
        ...

    @property
    def right(self) -> np.ndarray:
        """bool [n]."""
        ...

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Further metrics, by their words."""
        ...


@dataclass(frozen=True)
class Pair:
    """Two models on the same examples.

    Args:
        baseline: The run that the other is compared with.
        other: That one.
        accuracy: Accuracy of the other minus the baseline's, with its paired bootstrap interval.
        loss: Cross-entropy of the other minus the baseline's, the same way.
        only_baseline: Examples that only the baseline has right.
        only_other: Examples that only the other has right.
        p_value: Of McNemar's exact test, corrected after Holm where several runs are tested.
        num_tests: How many were.
        metrics: Differences of further metrics, other minus baseline, the same way.
    """

    baseline: str
    other: str
    accuracy: Estimate
    loss: Estimate
    only_baseline: int
    only_other: int
    p_value: float
    num_tests: int = 1
    metrics: Mapping[str, Estimate] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `no difference shown`, by the accuracy."""
        if self.p_value >= SIGNIFICANT:
            return "no difference shown"
        return "better" if self.only_other > self.only_baseline else "worse"

    def sentence(self) -> str:
        """Is the other really better?"""
        points = f"{100 * self.accuracy.value:+.2f} points {_interval(self.accuracy.scaled(100), 2)}"
        corrected = f", corrected for {self.num_tests} tests" if self.num_tests > 1 else ""
        said = {
            "better": f"{self.other} is better than {self.baseline}",
            "worse": f"{self.other} is worse than {self.baseline}",
        }.get(self.verdict, f"No difference between {self.other} and {self.baseline} is shown")
        return (
            f"{said}: accuracy {points}; right where the other is wrong: {self.only_other:,} against "
            f"{self.only_baseline:,} examples (p = {self.p_value:.2g}{corrected}); loss {self.loss.value:+.4f} "
            f"{_interval(self.loss, 4)}."
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "baseline": self.baseline,
            "other": self.other,
            "verdict": self.verdict,
            "accuracy": self.accuracy.as_dict(),
            "loss": self.loss.as_dict(),
            "metrics": {name: estimate.as_dict() for name, estimate in self.metrics.items()},
            "only_baseline_right": self.only_baseline,
            "only_other_right": self.only_other,
            "p_value": self.p_value,
            "num_tests": self.num_tests,
            "method": f"{MCNEMAR}, Holm's correction for several; differences: {BOOTSTRAP}, paired",
        }


def pairs_of(evaluations: Sequence[Evaluated], seed: int = 0) -> tuple[list[Pair], list[str]]:
    """The first run against each other, on the same examples; and why some could not be paired."""
    baseline, *others = evaluations
    same = [one for one in others if one.fingerprint == baseline.fingerprint]
    reasons = [
        f"{one.name} was evaluated on other examples than {baseline.name}: nothing is said of which is better. "
        "Give --data-root of one set for all."
        for one in others
        if one.fingerprint != baseline.fingerprint
    ]
    counts = [(int((baseline.right & ~one.right).sum()), int((one.right & ~baseline.right).sum())) for one in same]
    p_values = holm([mcnemar(*both) for both in counts])
    pairs = [
        Pair(
            baseline.name,
            one.name,
            bootstrap(one.right.astype(float) - baseline.right.astype(float), seed),
            bootstrap(one.losses - baseline.losses, seed),
            *both,
            p_value,
            len(same),
            differences(baseline.measures, one.measures),
        )
        for one, both, p_value in zip(same, counts, p_values, strict=True)
    ]
    return pairs, reasons


def differences(baseline: Mapping[str, Measure], other: Mapping[str, Measure]) -> dict[str, Estimate]:
    """The metrics of the other minus the baseline's, of those that both have; the resamples are paired."""
    found = {}
    for name in (name for name in other if name in baseline):
        one, two = other[name], baseline[name]
        drawn = min(len(one.resamples), len(two.resamples))
        resamples = one.resamples[:drawn] - two.resamples[:drawn]
        found[name] = interval(one.value - two.value, resamples, lowest=None)
    return found


def _interval(estimate: Estimate, digits: int) -> str:
    return f"[{estimate.low:+.{digits}f}, {estimate.high:+.{digits}f}]"
