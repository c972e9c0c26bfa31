"""A learning-rate range test as its user sees it: a chart in the terminal, JSON, and a page."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from manyfit.console import REHEARSAL, plural
from manyfit.files import to_json, write_atomically
from manyfit.report.learning_rate_range import DIVERGED, NOT_FINITE, STOP_FACTOR
from manyfit.report.learning_rate_suggestion import RULE, RangeTest
from manyfit.report.page import COLORS, Page

JSON_NAME, PAGE_NAME = "find_lr.json", "find_lr.html"
CHART_WIDTH, CHART_HEIGHT = 66, 12
LABEL_WIDTH = 9

_SMOOTHED, _LOSS, _SUGGESTED, _STEEPEST, _MINIMUM = COLORS[0], COLORS[5], COLORS[1], COLORS[2], COLORS[3]


def write_range(folder: Path, test: RangeTest, facts: Mapping[str, Any]) -> list[Path]:
    """Write `find_lr.json` and `find_lr.html` into `folder`, and return their paths.

    Args:
        facts: What a record says of a run before it trains, for both.

    Raises:
        TrainingError: a file cannot be written.
    """
    paths = [folder / JSON_NAME, folder / PAGE_NAME]
    write_atomically(paths[0], to_json({**test.as_dict(), **facts}, indent=2) + "\n")
    range_page(test, facts).write(paths[1])
    return paths


# --- in words ---------------------------------------------------------------------------------------------------------


def ended_in_words(test: RangeTest) -> str:
    """Why the test ended where it did."""
    count, rates = len(test.losses), test.settings.rates
    if test.ended == DIVERGED:
        return (
            f"It ended after {count} of {test.settings.steps} steps, at {rates[count - 1]:.2g}: the smoothed loss was "
            f"more than {STOP_FACTOR:g} times the best."
        )
    if test.ended == NOT_FINITE:
        return (
            f"It ended after {count} of {test.settings.steps} steps, at {rates[count]:.2g}: loss or gradient was not a "
            "finite number."
        )
    return f"It took all {count} steps, up to {rates[-1]:.2g}."


def suggestion_in_words(test: RangeTest) -> str:
    """The suggestion in one sentence."""
    if test.suggestion is None:
        return (test.problem or "").split("\n", 1)[0]
    return f"Suggested learning rate: {test.suggestion.rate:.2g} ({test.suggestion.by})."


def override_in_words(test: RangeTest) -> list[str]:
    """How to train with it, a line that can be copied; nothing where no override does that."""
    return [] if test.override is None else [f"To train with it: {test.override}"]


def details_in_words(test: RangeTest) -> list[str]:
    """How the suggestion came about, and what the schedule makes of it."""
    if test.suggestion is None:
        return [*(test.problem or "").split("\n")[1:], ended_in_words(test)]
    found, lines = test.suggestion, [f"Rule: {RULE}."]
    lines.append(
        f"The loss falls fastest at {found.steepest:.2g} and is lowest at {found.minimum:.2g}, a tenth of which is "
        f"{found.tenth:.2g}."
    )
    if found.still_falling:
        lines.append(
            f"It was still falling at the highest rate: a higher --highest ({100 * test.settings.highest:g}) may "
            "suggest more."
        )
    return [*lines, _schedule_in_words(test), ended_in_words(test)]


def _schedule_in_words(test: RangeTest) -> str:
    if test.learning_rate is None:
        return (
            f"No override follows from it: {test.scaling} makes every rate of the training 0, whatever "
            "optimizer.learning_rate is. Give more epochs or another schedule."
        )
    highest, first = (test.learning_rate * factor for factor in (test.factor, test.start_factor))
    times = "" if math.isclose(test.factor, 1.0) else f" times {test.factor:.4g}"
    if math.isclose(highest, first):
        return f"Training begins with {highest:.2g}: optimizer.learning_rate{times} ({test.scaling})."
    return (
        f"The highest rate of the training is then {highest:.2g}: optimizer.learning_rate{times} ({test.scaling}); it "
        f"begins with {first:.2g}."
    )


# --- in the terminal --------------------------------------------------------------------------------------------------


def range_words(test: RangeTest) -> list[Text]:
    """The curve as text, the suggestion if there is one, and how it came about."""
    shown = [Text(text_chart(test))] if len(test.losses) > 1 else []
    if test.suggestion is None:
        return [*shown, Text(ended_in_words(test))]  # why there is none is told as an error
    shown.append(Text(suggestion_in_words(test), style="bold"))
    shown += [Text(line, style="bold") for line in override_in_words(test)]
    return [*shown, *(Text(line) for line in details_in_words(test))]


def text_chart(test: RangeTest, width: int = CHART_WIDTH, height: int = CHART_HEIGHT) -> str:
    """Loss against learning rate (logarithmic) in plain characters: `*` smoothed, `.` single losses, `|` suggested."""
    rates, smooth = test.settings.rates, test.curve
    low, high = _limits(test)

    def column(index: float) -> int:
        return round(index / (len(rates) - 1) * (width - 1))

    def row(value: float) -> int:
        return height - 1 - round((value - low) / (high - low) * (height - 1))

    grid = [[" "] * width for _ in range(height)]
    foot = ""
    if test.suggestion is not None:
        at = column(rates.index(min(rates, key=lambda rate: abs(math.log(rate / _suggested(test))))))
        for line in grid:
            line[at] = "|"
        mark = f"{_suggested(test):.2g}"
        foot = " " * (LABEL_WIDTH + 2 + max(0, min(at - len(mark) // 2, width - len(mark)))) + mark
    for mark, values in ((".", test.losses), ("*", smooth)):
        for index, value in enumerate(values):
            if low <= value <= high:
                grid[row(value)][column(index)] = mark
    labels = {0: f"{high:.4g}", height - 1: f"{low:.4g}"}
    lines = [f"{'loss':>{LABEL_WIDTH}}   (* smoothed, . single steps, | suggested)"]
    lines += [f"{labels.get(at, ''):>{LABEL_WIDTH}} |{''.join(line)}".rstrip() for at, line in enumerate(grid)]
    ends = f"{rates[0]:.2g}", f"{rates[-1]:.2g}"
    lines.append(f"{'':>{LABEL_WIDTH}} +{'-' * width}")
    lines.append(
        f"{'':>{LABEL_WIDTH}}  {ends[0]}{'learning rate, logarithmic':^{width - sum(map(len, ends))}}{ends[1]}"
    )
    return "\n".join([*lines, *([foot] if foot else [])])


def _suggested(test: RangeTest) -> float:
    assert test.suggestion is not None
    return test.suggestion.rate


def _limits(test: RangeTest) -> tuple[float, float]:
    """The losses worth showing: from the lowest to the highest before the smoothed minimum, and a bit of the rise."""
    smooth = test.curve
    lowest = smooth.index(min(smooth))
    before = [*test.losses[: lowest + 1], *smooth]
    low, high = min(before), max(before)
    return (low, high) if high > low else (low, low + max(abs(low), 1.0))


# --- the page ---------------------------------------------------------------------------------------------------------


def range_page(test: RangeTest, facts: Mapping[str, Any]) -> Page:
    """The page: the suggestion, the curve with what was read from it, and what was tested."""
    data, model, place, batch = (facts.get(key) or {} for key in ("data", "model", "strategy", "batch"))
    what = [
        f"{model.get('name', '?')} on {data.get('name', '?')}",
        plural(place.get("num_replicas"), "replica"),
        f"steps of {(batch.get('global_batch_size') or 0) * (batch.get('gradient_accumulation') or 1):,} examples",
    ]
    page = Page("Learning-rate range test", ", ".join(what))
    page.verdict(suggestion_in_words(test), [*override_in_words(test), *details_in_words(test)])
    if facts.get("rehearsal"):
        page.text(f"REHEARSAL: {REHEARSAL}", tone="mark")
    note = (
        "Each step trains with a higher rate than the one before. Smoothed from both sides, with Gaussian weights of "
        f"standard deviation {test.settings.width:.3g} steps, so that a fall stays at the rate that made it. What lies "
        "above the chart is cut off."
    )
    if test.losses:
        page.chart(_figure(test), "Loss against learning rate", note, height=440)
    if test.suggestion is not None:
        page.table(("read from the curve", "learning rate", "smoothed loss"), _read(test), note=f"Suggested: {RULE}.")
    page.table(("tested", ""), _tested(test, facts), note=f"Every step is in {JSON_NAME}.")
    return page


def _read(test: RangeTest) -> list[tuple[str, str, str]]:
    assert test.suggestion is not None
    found = test.suggestion
    marks = {
        "suggested": found.rate,
        "the loss falls fastest": found.steepest,
        "the loss is lowest": found.minimum,
        "a tenth of that": found.tenth,
    }
    return [(name, f"{rate:.3g}", _loss_at(test, rate)) for name, rate in marks.items()]


def _loss_at(test: RangeTest, rate: float) -> str:
    """The smoothed loss at the rate tried that is nearest; a dash below the lowest one."""
    if rate < 0.999 * test.settings.lowest:
        return "-"
    nearest = min(range(len(test.losses)), key=lambda index: abs(math.log(test.settings.rates[index] / rate)))
    return f"{test.curve[nearest]:.4g}"


def _tested(test: RangeTest, facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    settings, versions, batch = test.settings, facts.get("versions") or {}, facts.get("batch") or {}
    named = ("python", "tensorflow", "keras", "manyfit")
    rows = [
        ("rates", f"{settings.lowest:g} to {settings.highest:g}, {settings.steps} steps"),
        ("per-replica batch size", f"{batch.get('per_replica_batch_size', '-')}"),
        ("devices", ", ".join(map(str, (facts.get("strategy") or {}).get("devices") or ()))),
        ("command", str(facts.get("command") or "-")),
        ("versions", ", ".join(f"{name} {versions[name]}" for name in named if versions.get(name))),
    ]
    return rows + [("notice", str(notice)) for notice in facts.get("notices") or ()]


def _figure(test: RangeTest) -> dict[str, Any]:
    rates = test.settings.rates[: len(test.losses)]
    low, high = _limits(test)
    room = 0.05 * (high - low)
    bottom, top = low - room, high + room
    hover = "learning rate %{x:.3g}: loss %{y:.4g}<extra>"
    data: list[dict[str, Any]] = [
        {
            **{"x": rates, "y": list(test.losses), "name": "loss of a step", "mode": "markers"},
            "marker": {"color": _LOSS, "size": 6},
            "hovertemplate": f"{hover}a step</extra>",
        },
        {
            **{"x": rates, "y": test.curve, "name": "smoothed", "mode": "lines"},
            "line": {"color": _SMOOTHED, "width": 3},
            "hovertemplate": f"{hover}smoothed</extra>",
        },
    ]
    if test.suggestion is not None:
        found = test.suggestion
        marks: Sequence[tuple[str, float, str, str]] = (
            ("lowest loss", found.minimum, _MINIMUM, "dot"),
            ("a tenth of it", found.tenth, _MINIMUM, "dash"),
            ("steepest descent", found.steepest, _STEEPEST, "dashdot"),
            ("suggested", found.rate, _SUGGESTED, "solid"),
        )
        data += [
            {
                **{"x": [rate, rate], "y": [bottom, top], "mode": "lines", "name": f"{name}: {rate:.2g}"},
                "line": {"color": color, "dash": dash, "width": 4 if name == "suggested" else 2},
                "hovertemplate": f"{name}: %{{x:.3g}}<extra></extra>",
            }
            for name, rate, color, dash in marks
        ]
    layout = {
        "showlegend": True,
        "xaxis": {
            **{"title": {"text": "learning rate of the step (logarithmic, no unit)"}, "type": "log"},
            **{"exponentformat": "e", "dtick": 1},
        },
        "yaxis": {"title": {"text": "loss (mean of the step's examples)"}, "range": [bottom, top]},
    }
    return {"data": data, "layout": layout}
