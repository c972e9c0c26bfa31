"""The calibration of evaluated models on their page: is a model right as often as it says?"""

from collections.abc import Mapping, Sequence
from typing import Any

from manyfit.report.classification import CALIBRATION
from manyfit.report.evaluation import bin_in_words, calibration_in_words, ends_in_words
from manyfit.report.page import Cell, Page, Style, label
from manyfit.report.paired import wilson


def calibration_section(page: Page, evaluations: Sequence[Mapping[str, Any]], styles: Mapping[str, Style]) -> None:
    """The reliability diagram, how many examples each point stands for, and the errors; nothing where none is known.

    Args:
        evaluations: What `Evaluation.as_dict` gives, one a run.
        styles: The style of each run by its key, in the same order.
    """
    known = [
        (one, key, style)
        for one, (key, style) in zip(evaluations, styles.items(), strict=True)
        if one.get("calibration")
    ]
    if not known:
        return
    page.section("Calibration", "Is the model right as often as it says? On the dashed line it is.")
    with_intervals = len(known) == 1
    traces = [_line(one, key, style, with_intervals=with_intervals) for one, key, style in known]
    even = {
        "x": [0, 1], "y": [0, 1], "mode": "lines", "hoverinfo": "skip",
        "line": {"dash": "dash", "color": "#808890", "width": 1.5},
    }  # fmt: skip
    axes = {
        "xaxis": {"title": {"text": "confidence (probability of the predicted class)"}, "range": [0, 1.02]},
        "yaxis": {"title": {"text": "accuracy"}, "range": [0, 1.02]},
    }
    whiskers = " Whiskers: 95 % interval of Wilson, from the examples in the bin." if with_intervals else ""
    page.chart(
        {"data": [even, *traces], "layout": axes},
        "Reliability diagram",
        f"{CALIBRATION[0].upper()}{CALIBRATION[1:]}. Below the line the model is too sure.{whiskers}",
        height=380,
        half=True,
    )
    bars = [_bars(one, key, style) for one, key, style in known]
    counts = {
        "xaxis": {"title": {"text": "confidence"}, "range": [0, 1.02]},
        "yaxis": {"title": {"text": "examples"}, "rangemode": "tozero"},
        "barmode": "group",
        "bargap": 0.1,
    }
    note = "How many examples each point of the other chart stands for."
    page.chart({"data": bars, "layout": counts}, "Examples in each bin", note, height=380, half=True)
    _tables(page, known)


def _tables(page: Page, known: Sequence[tuple[Mapping[str, Any], str, Style]]) -> None:
    """The errors in numbers and in words; of one run also its bins."""
    rows = [
        [
            Cell(one["run"], series=key if len(known) > 1 else None),
            f"{one['calibration']['expected_error']:.4f}",
            ends_in_words((one.get("intervals") or {}).get("calibration_error")),
            f"{one['calibration']['by_chance']:.4f}",
            f"{one['calibration']['maximum_error']:.4f}",
        ]
        for one, key, _ in known
    ]
    for one, *_ in known:
        page.text((f"{one['run']}: " if len(known) > 1 else "") + str(calibration_in_words(one)))
    chance = (
        "By chance: what a perfectly calibrated model with the same confidences stays below in 95 of 100 such sets of "
        "examples (consistency resampling, Bröcker and Smith, 2007)."
    )
    columns = ("run", "expected error (ECE)", "95 % interval", "by chance", "largest of a bin (MCE)")
    page.table(columns, rows, note=chance)
    if len(known) == 1:
        page.table(
            ("confidence", "examples", "mean confidence", "accuracy", "difference"),
            [_bin_row(one) for one in known[0][0]["calibration"]["bins"] if one["num_examples"]],
            title="The bins",
        )


def _line(one: Mapping[str, Any], key: str, style: Style, *, with_intervals: bool) -> dict[str, Any]:
    bins = [part for part in one["calibration"]["bins"] if part["num_examples"]]
    trace = {
        "x": [part["confidence"] for part in bins],
        "y": [part["accuracy"] for part in bins],
        "customdata": [[bin_in_words(part), part["num_examples"]] for part in bins],
        "hovertemplate": "%{customdata[0]}: confidence %{x:.3f}, accuracy %{y:.3f}, %{customdata[1]} examples"
        f"<extra>{label(one['run'])}</extra>",
        "mode": "lines+markers",
        "line": style.line,
        "marker": {"color": style.color, "symbol": style.symbol, "size": 7},
        "legendgroup": key,
    }
    if with_intervals:
        counts = [part["num_examples"] for part in bins]
        ends = [wilson(round(part["accuracy"] * count), count) for part, count in zip(bins, counts, strict=True)]
        trace["error_y"] = {
            "type": "data", "symmetric": False, "thickness": 1, "width": 3, "color": style.color,
            "array": [(one.high or 0.0) - one.value for one in ends],
            "arrayminus": [one.value - (one.low or 0.0) for one in ends],
        }  # fmt: skip
    return trace


def _bars(one: Mapping[str, Any], key: str, style: Style) -> dict[str, Any]:
    bins = one["calibration"]["bins"]
    return {
        "type": "bar",
        "x": [(part["low"] + part["high"]) / 2 for part in bins],
        "y": [part["num_examples"] for part in bins],
        "customdata": [bin_in_words(part) for part in bins],
        "hovertemplate": f"%{{customdata}}: %{{y}} examples<extra>{label(one['run'])}</extra>",
        "marker": style.fill,
        "legendgroup": key,
    }


def _bin_row(part: Mapping[str, Any]) -> list[str]:
    gap = part["confidence"] - part["accuracy"]
    return [
        bin_in_words(part),
        f"{part['num_examples']:,}",
        f"{part['confidence']:.4f}",
        f"{part['accuracy']:.4f}",
        f"{gap:+.4f}",
    ]
