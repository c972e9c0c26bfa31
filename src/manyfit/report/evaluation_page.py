"""Evaluations as a page: metrics with their intervals, calibration, classes, confusions; several runs side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from manyfit.report.claims import Estimate
from manyfit.report.evaluation import (
    ends_in_words,
    examples_in_words,
    share_in_words,
    values_of,
)
from manyfit.report.evaluation_calibration import calibration_section
from manyfit.report.evaluation_pairs import Pair
from manyfit.report.page import SHORTEST_NAME, Cell, Page, Style, cut, label
from manyfit.report.paired import BOOTSTRAP, MCNEMAR
from manyfit.schema.metrics import in_words

MOST_NUMBERS_IN_MATRIX = 12
"""Classes up to which the cells of the matrix have numbers."""
MOST_MATRICES = 4

MEANING = {
    "loss": "the mean cross-entropy, and the penalty of the training if it had one",
    "accuracy": "share of the examples whose class was found",
    "auc": "chance that an example of a class has a higher probability of it than one of another; mean of the classes",
    "f1": "harmonic mean of precision and recall; mean of the classes",
    "calibration_error": "how far confidence and accuracy are apart; mean over the examples",
}


def evaluation_page(
    evaluations: Sequence[Mapping[str, Any]],
    pairs: Sequence[Pair] = (),
    reasons: Sequence[str] = (),
    *,
    subtitle: str = "",
    notes: Sequence[str] = (),
) -> Page:
    """One page for one run or for several.

    Args:
        evaluations: What `Evaluation.as_dict` gives, one a run.
        pairs: The first run against each other.
        reasons: Why some runs have no pair.
        subtitle: What was read, when.
        notes: What the reader must know of the runs.
    """
    several = len(evaluations) > 1
    title = f"Evaluation of {len(evaluations)} runs" if several else f"Evaluation of {evaluations[0]['run']}"
    page = Page(title, subtitle)
    sources = list(dict.fromkeys(examples_in_words(one) for one in evaluations))
    if several:
        first = [pair.sentence() for pair in pairs] or ["Nothing is said of which run is better."]
        page.verdict(first[0], [*first[1:], *reasons, *sources])
    else:
        page.verdict(_verdict(evaluations[0]), sources)
    for note in notes:
        page.text(note, tone="mark")
    keys = [f"run-{index}" for index in range(len(evaluations))]
    names = {key: one["run"] for key, one in zip(keys, evaluations, strict=True)}
    styles = page.series(names) if several else {keys[0]: Style.of(0)}
    _metrics(page, evaluations, pairs, keys if several else [None])
    calibration_section(page, evaluations, styles)
    _classes(page, evaluations)
    _confusions(page, evaluations)
    return page


def _verdict(evaluation: Mapping[str, Any]) -> str:
    ends = (evaluation.get("intervals") or {}).get("accuracy")
    known = f", 95 % interval {ends_in_words(ends)}" if ends else ""
    right = sum(evaluation["confusion_matrix"][i][i] for i in range(len(evaluation["class_names"])))
    return (
        f"Accuracy {evaluation['accuracy']:.4f}: {right:,} of {evaluation['num_examples']:,} examples are right{known}."
    )


# --- metrics ----------------------------------------------------------------------------------------------------------


def _metrics(
    page: Page, evaluations: Sequence[Mapping[str, Any]], pairs: Sequence[Pair], keys: Sequence[str | None]
) -> None:
    page.section("Metrics")
    intervals = [one.get("intervals") or {} for one in evaluations]
    method = f"[ ]: {intervals[0]['method']}." if intervals[0] else ""
    told = [values_of(one) for one in evaluations]
    columns = list(dict.fromkeys(name for values in told for name in values))
    page.text(" ".join(f"{in_words(name)[:1].upper()}{in_words(name)[1:]}: {_meaning(name)}." for name in columns))
    if len(evaluations) == 1:
        rows = [
            (in_words(name), share_in_words(value), ends_in_words(intervals[0].get(name)))
            for name, value in told[0].items()
        ]
        page.table(("metric", "value", "95 % interval"), rows, note=method)
        return
    rows = [
        [
            Cell(one["run"], series=key),
            f"{one['num_examples']:,}",
            *(_with_ends(values.get(name), ends.get(name)) for name in columns),
        ]
        for one, key, values, ends in zip(evaluations, keys, told, intervals, strict=True)
    ]
    page.table(("run", "examples", *map(in_words, columns)), rows, note=method)
    _pairs(page, pairs)


def _pairs(page: Page, pairs: Sequence[Pair]) -> None:
    if not pairs:
        return
    columns = list(dict.fromkeys(name for pair in pairs for name in pair.metrics))
    rows = [
        [
            Cell(pair.other),
            Cell(pair.verdict, tone={"better": "good", "worse": "bad"}.get(pair.verdict)),
            f"{pair.p_value:.2g}",
            f"{pair.only_other:,} / {pair.only_baseline:,}",
            *map(_difference, (pair.loss, pair.accuracy, *(pair.metrics.get(name) for name in columns))),
        ]
        for pair in pairs
    ]
    page.table(
        ("run", "accuracy is", "p", "only right: it / the other", "loss", "accuracy") + tuple(map(in_words, columns)),
        rows,
        title=f"Differences from {cut(pairs[0].baseline)}, on the same examples",
        note=f"p: {MCNEMAR}, after Holm where there are several. [ ]: {BOOTSTRAP}, paired.",
    )


def _with_ends(value: float | None, ends: Sequence[float] | None) -> str | None:
    if value is None:
        return None
    return f"{value:.4f}" + (f"\n{ends_in_words(ends)}" if ends else "")


def _difference(estimate: Estimate | None) -> str | None:
    if estimate is None:
        return None
    known = f"\n[{estimate.low:+.4f}, {estimate.high:+.4f}]" if estimate.low is not None else ""
    return f"{estimate.value:+.4f}{known}"


def _meaning(name: str) -> str:
    return MEANING.get(name) or f"share of the examples whose class is among the {name.removeprefix('top_')} first"


# --- classes ----------------------------------------------------------------------------------------------------------


def _classes(page: Page, evaluations: Sequence[Mapping[str, Any]]) -> None:
    first = evaluations[0]["per_class"]
    if len(evaluations) == 1:
        page.section("Classes", "The weakest first, by F1. Accuracy and AUC are those of the class against the rest.")
        columns = ("class", "examples", "predicted", "precision", "recall", "F1", "accuracy", "AUC")
        rows = [
            (
                name,
                f"{row['num_examples']:,}",
                f"{row['num_predicted']:,}",
                *(share_in_words(row[key]) for key in ("precision", "recall", "f1", "accuracy", "auc")),
            )
            for name, row in sorted(first.items(), key=lambda item: _or_last(item[1]["f1"]))
        ]
        page.table(columns, rows)
        return
    page.section("Classes", "Recall, and F1 below it; the weakest of the first run first. --json has all of each run.")
    names = list(dict.fromkeys(name for one in evaluations for name in one["per_class"]))
    names.sort(key=lambda name: _or_last(first.get(name, {}).get("f1")))
    rows = [
        [
            name,
            *(f"{count:,}" if (count := one["per_class"].get(name, {}).get("num_examples")) is not None else "-"
              for one in evaluations[:1]),
            *(_recall_and_f1(one["per_class"].get(name)) for one in evaluations),
        ]
        for name in names
    ]  # fmt: skip
    page.table(("class", "examples", *(cut(one["run"], SHORTEST_NAME) for one in evaluations)), rows)


def _or_last(value: float | None) -> float:
    return 2.0 if value is None else value


def _recall_and_f1(row: Mapping[str, Any] | None) -> str | None:
    return None if row is None else f"{share_in_words(row['recall'])}\nF1 {share_in_words(row['f1'])}"


# --- confusions -------------------------------------------------------------------------------------------------------


def _confusions(page: Page, evaluations: Sequence[Mapping[str, Any]]) -> None:
    page.section("Confusions", "Which classes are taken for which.")
    several = len(evaluations) > 1
    for one in evaluations:
        rows = [
            (
                part["truth"],
                part["predicted"],
                f"{part['num_examples']:,}",
                f"{100 * part['share']:.1f} %",
            )
            for part in one["confusions"]
        ]
        title = f"Most frequent, {cut(one['run'])}" if several else "Most frequent"
        if rows:
            page.table(("class", "taken for", "examples", "share of the class"), rows[: 8 if several else 20], title)
        else:
            page.text(f"{one['run']}: every example is right.")
    for one in evaluations[:MOST_MATRICES]:
        small = several and len(one["class_names"]) <= MOST_NUMBERS_IN_MATRIX
        title = f"Confusion matrix, {cut(one['run'])}" if several else "Confusion matrix"
        page.chart(_matrix(one), title, _MATRIX_NOTE, height=_matrix_height(len(one["class_names"])), half=small)
    if len(evaluations) > MOST_MATRICES:
        page.text(f"The matrices of the other {len(evaluations) - MOST_MATRICES} runs are not drawn; --json has them.")


_MATRIX_NOTE = "Rows: the truth, columns: the prediction. The stronger the colour, the larger the share of the class."


def _matrix_height(num_classes: int) -> int:
    return min(900, max(300, 140 + 24 * num_classes))


def _matrix(one: Mapping[str, Any]) -> dict[str, Any]:
    names = [label(name, SHORTEST_NAME) for name in one["class_names"]]
    counts = np.asarray(one["confusion_matrix"], np.float64)
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    has_numbers = len(names) <= MOST_NUMBERS_IN_MATRIX
    # Positions, not names: two names that are cut alike would share a row.
    positions = list(range(len(names)))
    ticks = {"tickmode": "array", "tickvals": positions, "ticktext": names, "showgrid": False, "zeroline": False}
    turned = 0 if len(names) <= 4 else -45 if has_numbers else -90
    ticks |= {} if has_numbers else {"tickfont": {"size": 9}}
    trace = {
        "type": "heatmap",
        "x": positions,
        "y": positions,
        "z": shares.tolist(),
        "zmin": 0,
        "zmax": 1,
        "customdata": [[[names[i], names[j], int(counts[i, j])] for j in positions] for i in positions],
        "hovertemplate": "%{customdata[0]} taken for %{customdata[1]}: %{customdata[2]} examples, %{z:.1%}"
        "<extra></extra>",
        # From nothing to the colour, so that it is right on a light and on a dark page.
        "colorscale": [[0, "rgba(75,150,240,0)"], [0.02, "rgba(75,150,240,0.12)"], [1, "rgba(75,150,240,0.8)"]],
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
    }
    traces = [trace]
    if has_numbers:
        # A heat map colours its own text by the colour scale, without what shines through it.
        cells = [(j, i, f"{int(counts[i, j]):,}") for i in positions for j in positions]
        x, y, text = zip(*cells, strict=True)
        traces.append({"type": "scatter", "mode": "text", "x": x, "y": y, "text": text, "hoverinfo": "skip"})
    return {
        "data": traces,
        "layout": {
            "xaxis": {**ticks, "title": {"text": "prediction"}, "tickangle": turned},
            "yaxis": {**ticks, "title": {"text": "truth"}, "autorange": "reversed"},
        },
    }
