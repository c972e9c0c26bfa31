"""The page of a scaling study: the answer, its tables, and charts of speed, losses, time and learning."""

from collections.abc import Sequence
from typing import Any

from manyfit.report.claims import Estimate
from manyfit.report.page import COLORS, Cell, Page, Style
from manyfit.report.pairs import STRONG
from manyfit.report.scaling_learning import add_curves, add_equality
from manyfit.report.scaling_losses import PARTS, SAYS, WORKERS_SAY
from manyfit.report.scaling_result import ModeResult, Scaling, ScalingPoint, Training
from manyfit.report.scaling_tables import lost_cells, point_table
from manyfit.report.scaling_units import Unit
from manyfit.report.scaling_words import (
    EXPLAINS,
    Recommendation,
    caveats_of_place,
    prediction_words,
)

_PART_STYLES = {name: Style.of(index) for index, name in enumerate(PARTS)}


def scaling_page(
    found: Scaling,
    advice: Recommendation,
    trainings: Sequence[Training],
    *,
    title: str,
    facts: Sequence[tuple[str, str]],
    currency: str = "",
) -> Page:
    """The page, to be written.

    Args:
        trainings: What the curves show, those of the first repeat.
        title: Names the study.
        facts: What made it: command, hardware, versions, commit, date.
    """
    page = Page(title, f"{len(found.points)} points, {sum(point.repeats for point in found.points)} trainings")
    caveats = caveats_of_place(found)
    page.verdict(advice.sentence, [line for line in advice.details if line not in caveats])
    for line in caveats:
        page.text(line, tone="mark")
    for result in found.modes:
        _add_mode(page, result, found, currency)
    if found.outlook is not None:
        page.section("Several machines: PREDICTION", "Nobody measured this.")
        page.table(*found.outlook.rows_of_table())
        page.text(found.outlook.assumes, tone="mark")
    add_equality(page, found)
    add_curves(page, trainings)
    if found.failures:
        page.section("What failed")
        page.table(("training", "why"), [[name, Cell(why, tone="bad")] for name, why in found.failures.items()])
    page.section("How this was made")
    page.table(("what", ""), [list(fact) for fact in facts])
    return page


# --- one kind of scaling ----------------------------------------------------------------------------------------------


def _add_mode(page: Page, result: ModeResult, found: Scaling, currency: str) -> None:
    page.section(f"{result.mode.capitalize()} scaling", f"{EXPLAINS[result.mode].capitalize()}.")
    note = "batch: of a step. images/s: training, without warm-up and validation. run: start to end, probe left out."
    if found.target_accuracy is not None:
        note += f" to target: until validation accuracy {found.target_accuracy:.4f}, which every run reached."
    page.table(*point_table(result, currency), note=note)
    about = "Dotted: perfect scaling." + (" Open points: PREDICTION, not measured." if result.predictions else "")
    page.chart(_speed_up(result), f"Speed-up against {result.unit.plural}", about, half=True)
    bars = "Thin lines: 95 % intervals." if any(point.repeats > 1 for point in result.points) else ""
    page.chart(
        _efficiency(result),
        "Scaling efficiency",
        f"Speed-up over the ratio of the {result.unit.plural}. {bars}",
        half=True,
    )
    if any(point.lost for point in result.points):
        page.chart(_losses(result), "Where the lost time goes", "Parts sum to 100 % less the efficiency.", half=True)
    if result.mode == STRONG:
        page.chart(_time(result), "Time of a run", "Start to end, and from the start to the target.", half=True)
    if any(point.cost for point in result.points):
        page.chart(_cost(result, currency), "Cost of a run", half=True)
    if any(point.lost for point in result.points):
        rows = [lost_cells(point, result.unit) for point in result.points[1:]]
        says = WORKERS_SAY if result.unit.is_worker else SAYS
        explained = "; ".join(f"{name}: {says[name]}" for name in PARTS)
        page.table((result.unit.plural, "lost", *PARTS), rows, "Lost, as a share of the time", f"{explained}.")
    for line in prediction_words(result):
        page.text(line)


def _counts(points: Sequence[Any], unit: Unit) -> list[int]:
    return [unit.of(point.num_replicas) for point in points]


def _error_bars(estimates: Sequence[Estimate | None], scale: float = 1.0) -> dict[str, Any]:
    """The 95 % intervals, which need not be symmetric."""

    def ends(one: Estimate | None) -> tuple[float, float]:
        if one is None or one.low is None or one.high is None:
            return 0.0, 0.0
        return scale * (one.value - one.low), scale * (one.high - one.value)

    below, above = zip(*(ends(one) for one in estimates), strict=True)
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "visible": any(above)}


def _axis(title: str, values: Sequence[float]) -> dict[str, Any]:
    """An axis from 0 on; an interval may end outside it, or few repeats would hide what was measured."""
    return {"title": {"text": title}, "range": [0, 1.15 * max(values, default=1.0)]}


def _counts_axis(counts: Sequence[int], unit: Unit) -> dict[str, Any]:
    ticks = sorted(set(counts))
    return {"title": {"text": unit.plural}, "type": "log", "tickvals": ticks, "ticktext": [str(tick) for tick in ticks]}


def _speed_up(result: ModeResult) -> dict[str, Any]:
    points, predictions, unit = result.points, result.predictions, result.unit
    counts = _counts(points, unit) + _counts(predictions, unit)
    first = counts[0]
    measured, ideal = COLORS[0], COLORS[5]
    data: list[dict[str, Any]] = [
        {
            **{"x": counts, "y": [count / first for count in counts], "name": "perfect scaling", "mode": "lines"},
            "line": {"color": ideal, "dash": "dot", "width": 2},
            "hovertemplate": f"%{{x}} {unit.plural}, perfect: %{{y:.2f}}x<extra></extra>",
        },
        {
            **{"x": _counts(points, unit), "y": [point.speed_up.value for point in points], "name": "measured"},
            **{"mode": "lines+markers", "line": {"color": measured, "width": 2}, "marker": {"size": 9}},
            "error_y": _error_bars([point.speed_up for point in points]),
            "hovertemplate": f"%{{x}} {unit.plural}: %{{y:.2f}}x<extra>measured</extra>",
        },
    ]
    if predictions:
        last = points[-1]
        data.append(
            {
                "x": [unit.of(last.num_replicas), *_counts(predictions, unit)],
                "y": [last.speed_up.value, *(one.speed_up for one in predictions)],
                **{"name": "prediction", "mode": "lines+markers"},
                "line": {"color": COLORS[1], "dash": "dash", "width": 2},
                "marker": {"size": 9, "symbol": "circle-open"},
                "hovertemplate": f"%{{x}} {unit.plural}: %{{y:.2f}}x<extra>prediction</extra>",
            }
        )
    highest = max(count / first for count in counts)
    layout = {"xaxis": _counts_axis(counts, unit), "yaxis": _axis("speed-up (times)", [highest, *data[1]["y"]])}
    return {"data": data, "layout": layout | {"showlegend": True}}


def _bars(
    points: Sequence[ScalingPoint], values: Sequence[float | None], style: Style, unit: Unit, **more: Any
) -> dict[str, Any]:
    return {
        "type": "bar",
        "x": [str(count) for count in _counts(points, unit)],
        "y": values,
        "marker": style.fill,
        **more,
    }


def _efficiency(result: ModeResult) -> dict[str, Any]:
    points = result.points
    bars = _bars(
        points,
        [100 * point.efficiency.value for point in points],
        Style.of(0),
        result.unit,
        error_y=_error_bars([point.efficiency for point in points], 100),
        hovertemplate=f"%{{x}} {result.unit.plural}: %{{y:.0f}} %<extra></extra>",
    )
    layout = {
        "xaxis": {"title": {"text": result.unit.plural}, "type": "category"},
        "yaxis": _axis("efficiency (%)", bars["y"]),
    }
    return {"data": [bars], "layout": layout}


def _losses(result: ModeResult) -> dict[str, Any]:
    points = [point for point in result.points[1:] if point.lost]
    data = []
    for name, style in _PART_STYLES.items():
        values = [100 * (point.lost or {}).get(name, 0.0) for point in points]
        if any(abs(value) >= 0.05 for value in values):
            hover = f"%{{x}} {result.unit.plural}: %{{y:.1f}} %<extra>{name}</extra>"
            data.append(_bars(points, values, style, result.unit, name=name, hovertemplate=hover))
    layout = {
        "barmode": "relative",
        "showlegend": True,
        "xaxis": {"title": {"text": result.unit.plural}, "type": "category"},
        "yaxis": {"title": {"text": "lost (% of the time)"}},
    }
    return {"data": data, "layout": layout}


def _time(result: ModeResult) -> dict[str, Any]:
    points = result.points
    data = []
    for index, (name, key) in enumerate((("run", "seconds"), ("to target accuracy", "seconds_to_accuracy"))):
        values: list[Estimate | None] = [getattr(point, key) for point in points]
        data.append(
            _bars(
                points,
                [value.value if value else None for value in values],
                Style.of(index),
                result.unit,
                name=name,
                error_y=_error_bars(values),
                hovertemplate=f"%{{x}} {result.unit.plural}: %{{y:.1f}} s<extra>{name}</extra>",
            )
        )
    layout = {
        "barmode": "group",
        "showlegend": True,
        "xaxis": {"title": {"text": result.unit.plural}, "type": "category"},
        "yaxis": _axis("time (s)", [value for trace in data for value in trace["y"] if value is not None]),
    }
    return {"data": data, "layout": layout}


def _cost(result: ModeResult, currency: str) -> dict[str, Any]:
    points = result.points
    data = [
        _bars(
            points,
            [getattr(point, key) for point in points],
            Style.of(index),
            result.unit,
            name=name,
            hovertemplate=f"%{{x}} {result.unit.plural}: %{{y:.3g}} {currency}<extra>{name}</extra>",
        )
        for index, (name, key) in enumerate((("run", "cost"), ("to target accuracy", "cost_to_accuracy")))
    ]
    layout = {
        "barmode": "group",
        "showlegend": True,
        "xaxis": {"title": {"text": result.unit.plural}, "type": "category"},
        "yaxis": {"title": {"text": f"cost ({currency})"}, "rangemode": "tozero"},
    }
    return {"data": data, "layout": layout}
