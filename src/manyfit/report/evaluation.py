"""Evaluations as tables for a terminal: one run in full, several side by side, and two of them on the same examples."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from manyfit.console import plural
from manyfit.report.evaluation_pairs import Pair
from manyfit.report.paired import BOOTSTRAP, MCNEMAR
from manyfit.schema.metrics import in_words

MOST_CLASSES_IN_MATRIX = 12
MOST_CONFUSIONS_ON_SCREEN = 8
LONGEST_NAME = 24
SAME = 0.01
"""Confidence and accuracy that differ by less count as equal."""


def evaluation_tables(evaluation: Mapping[str, Any]) -> list[Table | Text]:
    """Every metric, what is known of each class, and the confusion matrix or, of many classes, the confusions.

    Args:
        evaluation: What `Evaluation.as_dict` gives.
    """
    intervals = evaluation.get("intervals") or {}
    shown: list[Table | Text] = [Text(examples_in_words(evaluation)), _metrics([evaluation]), _per_class(evaluation)]
    if len(evaluation["class_names"]) <= MOST_CLASSES_IN_MATRIX:
        shown += [Text("confusion matrix (rows: the truth, columns: the prediction)"), _matrix(evaluation)]
    elif evaluation["confusions"]:
        shown += [Text("most frequent confusions"), _confusions(evaluation)]
    if (sentence := calibration_in_words(evaluation)) is not None:
        shown.append(Text(sentence))
    if intervals:
        shown.append(Text(f"[ ]: {intervals['method']}"))
    return shown


def several_tables(
    evaluations: Sequence[Mapping[str, Any]], pairs: Sequence[Pair], reasons: Sequence[str]
) -> list[Table | Text]:
    """Several runs side by side, and what may be said of each against the first."""
    sources = list(dict.fromkeys(examples_in_words(one) for one in evaluations))
    shown: list[Table | Text] = [*(Text(source) for source in sources), _metrics(evaluations)]
    shown += [Text(pair.sentence()) for pair in pairs]
    shown += [Text(reason) for reason in reasons]
    if pairs:
        shown.append(Text(f"p: {MCNEMAR}; [ ]: {BOOTSTRAP}, paired where two runs are compared"))
    return shown


def examples_in_words(evaluation: Mapping[str, Any]) -> str:
    """How many examples of what."""
    skipped = f", {plural(evaluation['num_skipped'], 'file')} skipped" if evaluation["num_skipped"] else ""
    return f"{plural(evaluation['num_examples'], 'example')} of {evaluation['source']}{skipped}"


def values_of(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """Every metric by its name: loss and accuracy first."""
    return {"loss": evaluation["loss"], "accuracy": evaluation["accuracy"], **evaluation["metrics"]}


def ends_in_words(ends: Sequence[float] | None, digits: int = 4) -> str:
    """A 95 % interval."""
    return "-" if ends is None else f"[{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]"


def calibration_in_words(evaluation: Mapping[str, Any]) -> str | None:
    """Whether the model is as often right as it says; None where it is not known."""
    calibration = evaluation.get("calibration")
    if calibration is None:
        return None
    bins = [one for one in calibration["bins"] if one["num_examples"]]
    total = sum(one["num_examples"] for one in bins)
    confidence = sum(one["num_examples"] * one["confidence"] for one in bins) / total
    gap = confidence - evaluation["accuracy"]
    said = "as sure as it is right" if abs(gap) < SAME else "too sure" if gap > 0 else "less sure than it is right"
    chance = calibration["by_chance"]
    shown = "more than" if calibration["expected_error"] > chance else "no more than"
    worst = max(bins, key=lambda one: abs(one["confidence"] - one["accuracy"]))
    return (
        f"On average the model is {said}: mean confidence {confidence:.4f}, accuracy {evaluation['accuracy']:.4f}. "
        f"Expected calibration error {calibration['expected_error']:.4f}, {shown} chance explains (a perfectly "
        f"calibrated model: up to {chance:.4f} on so many examples); at most {calibration['maximum_error']:.4f}, among "
        f"the {plural(worst['num_examples'], 'example')} with a confidence of {bin_in_words(worst)}."
    )


def bin_in_words(one: Mapping[str, Any]) -> str:
    """The confidences of a bin."""
    return f"{one['low']:.2f} to {one['high']:.2f}"


def _metrics(evaluations: Sequence[Mapping[str, Any]]) -> Table:
    table = Table()
    table.add_column("")
    for one in evaluations:
        table.add_column(Text(one["run"]) if len(evaluations) > 1 else "value", justify="right", overflow="fold")
        if len(evaluations) == 1:
            table.add_column("95 % interval", justify="right")
    told = [values_of(one) for one in evaluations]
    for name in dict.fromkeys(name for values in told for name in values):
        pairs = [
            (share_in_words(values.get(name)), ends_in_words((one.get("intervals") or {}).get(name)))
            for one, values in zip(evaluations, told, strict=True)
        ]
        # An interval below its value leaves a screen room for four runs.
        table.add_row(in_words(name), *(pairs[0] if len(pairs) == 1 else ("\n".join(pair) for pair in pairs)))
    return table


def _per_class(evaluation: Mapping[str, Any]) -> Table:
    table = Table()
    table.add_column("class", overflow="ellipsis", max_width=LONGEST_NAME)
    for name in ("examples", "predicted", "precision", "recall", "F1", "AUC"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, row in evaluation["per_class"].items():
        shares = (share_in_words(row[key]) for key in ("precision", "recall", "f1", "auc"))
        table.add_row(Text(name), f"{row['num_examples']:,}", f"{row['num_predicted']:,}", *shares)
    return table


def _matrix(evaluation: Mapping[str, Any]) -> Table:
    table = Table()
    table.add_column("", overflow="ellipsis", max_width=LONGEST_NAME)
    for name in evaluation["class_names"]:
        table.add_column(Text(name), justify="right", overflow="ellipsis", max_width=LONGEST_NAME)
    for name, counts in zip(evaluation["class_names"], evaluation["confusion_matrix"], strict=True):
        table.add_row(Text(name), *(f"{count:,}" for count in counts))
    return table


def _confusions(evaluation: Mapping[str, Any]) -> Table:
    table = Table()
    for name in ("class", "taken for"):
        table.add_column(name, overflow="ellipsis", max_width=LONGEST_NAME)
    for name in ("examples", "share of the class"):
        table.add_column(name, justify="right")
    for one in evaluation["confusions"][:MOST_CONFUSIONS_ON_SCREEN]:
        table.add_row(
            Text(one["truth"]), Text(one["predicted"]), f"{one['num_examples']:,}", f"{100 * one['share']:.1f} %"
        )
    return table


def share_in_words(value: float | None) -> str:
    """Four decimals; a dash for nothing."""
    return "-" if value is None else f"{value:.4f}"
