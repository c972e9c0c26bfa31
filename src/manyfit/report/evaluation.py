"""Evaluations as tables for a terminal: one run in full, several side by side, and two of them on the same examples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from rich.table import Table
from rich.text import Text

from manyfit.report.claims import Estimate
from manyfit.report.paired import BOOTSTRAP, MCNEMAR, bootstrap, holm, mcnemar

MOST_CLASSES_IN_MATRIX = 12
LONGEST_NAME = 24
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
    """

    baseline: str
    other: str
    accuracy: Estimate
    loss: Estimate
    only_baseline: int
    only_other: int
    p_value: float
    num_tests: int = 1

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
        )
        for one, both, p_value in zip(same, counts, p_values, strict=True)
    ]
    return pairs, reasons


def evaluation_tables(evaluation: Mapping[str, Any]) -> list[Table | Text]:
    """Loss and accuracy, precision and recall of each class, and the confusion matrix if it is small enough to read.

    Args:
        evaluation: What `Evaluation.as_dict` gives.
    """
    intervals = evaluation.get("intervals") or {}
    shown: list[Table | Text] = [
        Text(_examples(evaluation)),
        Text(
            f"loss {_with_interval(evaluation['loss'], intervals.get('loss'))}   "
            f"accuracy {_with_interval(evaluation['accuracy'], intervals.get('accuracy'))}"
        ),
        _per_class(evaluation),
    ]
    if len(evaluation["class_names"]) <= MOST_CLASSES_IN_MATRIX:
        shown += [Text("confusion matrix (rows: the truth, columns: the prediction)"), _matrix(evaluation)]
    if intervals:
        shown.append(Text(f"[ ]: {intervals['method']}"))
    return shown


def several_tables(
    evaluations: Sequence[Mapping[str, Any]], pairs: Sequence[Pair], reasons: Sequence[str]
) -> list[Table | Text]:
    """Several runs side by side, and what may be said of each against the first."""
    table = Table()
    table.add_column("run", overflow="fold")
    for name in ("examples", "accuracy", "95 % interval", "loss", "95 % interval"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in evaluations:
        intervals = one.get("intervals") or {}
        table.add_row(
            Text(one["run"]),
            f"{one['num_examples']:,}",
            f"{one['accuracy']:.4f}",
            _ends(intervals.get("accuracy")),
            f"{one['loss']:.4f}",
            _ends(intervals.get("loss")),
        )
    sources = list(dict.fromkeys(_examples(one) for one in evaluations))
    shown: list[Table | Text] = [*(Text(source) for source in sources), table]
    shown += [Text(pair.sentence()) for pair in pairs]
    shown += [Text(reason) for reason in reasons]
    if pairs:
        shown.append(Text(f"p: {MCNEMAR}; [ ]: {BOOTSTRAP}, paired where two runs are compared"))
    return shown


def _examples(evaluation: Mapping[str, Any]) -> str:
    skipped = f", {evaluation['num_skipped']:,} files skipped" if evaluation["num_skipped"] else ""
    return f"{evaluation['num_examples']:,} examples of {evaluation['source']}{skipped}"


def _with_interval(value: float, ends: Sequence[float] | None) -> str:
    return f"{value:.4f}" + (f" {_ends(ends)}" if ends else "")


def _ends(ends: Sequence[float] | None) -> str:
    return "-" if ends is None else f"[{ends[0]:.4f}, {ends[1]:.4f}]"


def _interval(estimate: Estimate, digits: int) -> str:
    return f"[{estimate.low:+.{digits}f}, {estimate.high:+.{digits}f}]"


def _per_class(evaluation: Mapping[str, Any]) -> Table:
    table = Table()
    table.add_column("class", overflow="ellipsis", max_width=LONGEST_NAME)
    for name in ("examples", "precision", "recall"):
        table.add_column(name, justify="right")
    for name, row in evaluation["per_class"].items():
        table.add_row(Text(name), f"{row['num_examples']:,}", _share(row["precision"]), _share(row["recall"]))
    return table


def _matrix(evaluation: Mapping[str, Any]) -> Table:
    table = Table()
    table.add_column("", overflow="ellipsis", max_width=LONGEST_NAME)
    for name in evaluation["class_names"]:
        table.add_column(Text(name), justify="right", overflow="ellipsis", max_width=LONGEST_NAME)
    for name, counts in zip(evaluation["class_names"], evaluation["confusion_matrix"], strict=True):
        table.add_row(Text(name), *(f"{count:,}" for count in counts))
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
