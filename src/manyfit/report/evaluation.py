"""An evaluation as tables for a terminal."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

MOST_CLASSES_IN_MATRIX = 12
LONGEST_NAME = 24


def evaluation_tables(evaluation: Mapping[str, Any]) -> list[Table | Text]:
    """Loss and accuracy, precision and recall of each class, and the confusion matrix if it is small enough to read.

    Args:
        evaluation: What `Evaluation.as_dict` gives.
    """
    skipped = f", {evaluation['num_skipped']:,} files skipped" if evaluation["num_skipped"] else ""
    shown: list[Table | Text] = [
        Text(f"{evaluation['num_examples']:,} examples of {evaluation['source']}{skipped}"),
        Text(f"loss {evaluation['loss']:.4f}   accuracy {evaluation['accuracy']:.4f}"),
        _per_class(evaluation),
    ]
    if len(evaluation["class_names"]) <= MOST_CLASSES_IN_MATRIX:
        shown += [Text("confusion matrix (rows: the truth, columns: the prediction)"), _matrix(evaluation)]
    return shown


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
