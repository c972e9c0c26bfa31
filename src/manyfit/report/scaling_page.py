"""The page of a scaling study: the answer, its tables, and charts of speed, losses, time and learning."""

from collections.abc import Sequence
from typing import Any

from manyfit.report.claims import Estimate
from manyfit.report.page import COLORS, By, Cell, Page, Style
from manyfit.report.pairs import STRONG
from manyfit.report.runs import Run
from manyfit.report.scaling_equality import DIFFERENT, EQUAL, NOT_COMPARED
from manyfit.report.scaling_losses import PARTS, SAYS
from manyfit.report.scaling_result import ModeResult, Scaling, ScalingPoint, Training
from manyfit.report.scaling_tables import lost_cells, point_table
from manyfit.report.scaling_words import (
    EXPLAINS,
    NO_GPU,
    REHEARSAL,
    Recommendation,
    equality_words,
    prediction_words,
)
from manyfit.report.system_charts import device_charts

_FROM_ZERO = ("learning_rate", "images_per_second")
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
    page.verdict(advice.sentence, [line for line in advice.details if line not in (NO_GPU, REHEARSAL)])
    if not found.on_gpu:
        page.text(NO_GPU, tone="mark")
    if found.rehearsal:
        page.text(REHEARSAL, tone="mark")
    for result in found.modes:
        _add_mode(page, result, found, currency)
    _add_equality(page, found)
    _add_curves(page, trainings)
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
    page.chart(_speed_up(result), "Speed-up against replicas", about, half=True)
    bars = "Thin lines: 95 % intervals." if any(point.repeats > 1 for point in result.points) else ""
    page.chart(_efficiency(result), "Scaling efficiency", f"Speed-up over the ratio of the replicas. {bars}", half=True)
    if any(point.lost for point in result.points):
        page.chart(_losses(result), "Where the lost time goes", "Parts sum to 100 % less the efficiency.", half=True)
    if result.mode == STRONG:
        page.chart(_time(result), "Time of a run", "Start to end, and from the start to the target.", half=True)
    if any(point.cost for point in result.points):
        page.chart(_cost(result, currency), "Cost of a run", half=True)
    if any(point.lost for point in result.points):
        rows = [lost_cells(point) for point in result.points[1:]]
        explained = "; ".join(f"{name}: {SAYS[name]}" for name in PARTS)
        page.table(("replicas", "lost", *PARTS), rows, "Lost, as a share of the time", f"{explained}.")
    for line in prediction_words(result):
        page.text(line)


def _counts(points: Sequence[Any]) -> list[int]:
    return [point.num_replicas for point in points]


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


def _replicas_axis(counts: Sequence[int]) -> dict[str, Any]:
    ticks = sorted(set(counts))
    return {"title": {"text": "replicas"}, "type": "log", "tickvals": ticks, "ticktext": [str(tick) for tick in ticks]}


def _speed_up(result: ModeResult) -> dict[str, Any]:
    points, predictions = result.points, result.predictions
    counts = _counts(points) + _counts(predictions)
    first = points[0].num_replicas
    measured, ideal = COLORS[0], COLORS[5]
    data: list[dict[str, Any]] = [
        {
            **{"x": counts, "y": [count / first for count in counts], "name": "perfect scaling", "mode": "lines"},
            "line": {"color": ideal, "dash": "dot", "width": 2},
            "hovertemplate": "%{x} replicas, perfect: %{y:.2f}x<extra></extra>",
        },
        {
            **{"x": _counts(points), "y": [point.speed_up.value for point in points], "name": "measured"},
            **{"mode": "lines+markers", "line": {"color": measured, "width": 2}, "marker": {"size": 9}},
            "error_y": _error_bars([point.speed_up for point in points]),
            "hovertemplate": "%{x} replicas: %{y:.2f}x<extra>measured</extra>",
        },
    ]
    if predictions:
        last = points[-1]
        data.append(
            {
                "x": [last.num_replicas, *_counts(predictions)],
                "y": [last.speed_up.value, *(one.speed_up for one in predictions)],
                **{"name": "prediction", "mode": "lines+markers"},
                "line": {"color": COLORS[1], "dash": "dash", "width": 2},
                "marker": {"size": 9, "symbol": "circle-open"},
                "hovertemplate": "%{x} replicas: %{y:.2f}x<extra>prediction</extra>",
            }
        )
    highest = max(count / first for count in counts)
    layout = {"xaxis": _replicas_axis(counts), "yaxis": _axis("speed-up (times)", [highest, *data[1]["y"]])}
    return {"data": data, "layout": layout | {"showlegend": True}}


def _bars(points: Sequence[ScalingPoint], values: Sequence[float | None], style: Style, **more: Any) -> dict[str, Any]:
    return {"type": "bar", "x": [str(count) for count in _counts(points)], "y": values, "marker": style.fill, **more}


def _efficiency(result: ModeResult) -> dict[str, Any]:
    points = result.points
    bars = _bars(
        points,
        [100 * point.efficiency.value for point in points],
        Style.of(0),
        error_y=_error_bars([point.efficiency for point in points], 100),
        hovertemplate="%{x} replicas: %{y:.0f} %<extra></extra>",
    )
    layout = {
        "xaxis": {"title": {"text": "replicas"}, "type": "category"},
        "yaxis": _axis("efficiency (%)", bars["y"]),
    }
    return {"data": [bars], "layout": layout}


def _losses(result: ModeResult) -> dict[str, Any]:
    points = [point for point in result.points[1:] if point.lost]
    data = []
    for name, style in _PART_STYLES.items():
        values = [100 * (point.lost or {}).get(name, 0.0) for point in points]
        if any(abs(value) >= 0.05 for value in values):
            hover = f"%{{x}} replicas: %{{y:.1f}} %<extra>{name}</extra>"
            data.append(_bars(points, values, style, name=name, hovertemplate=hover))
    layout = {
        "barmode": "relative",
        "showlegend": True,
        "xaxis": {"title": {"text": "replicas"}, "type": "category"},
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
                name=name,
                error_y=_error_bars(values),
                hovertemplate=f"%{{x}} replicas: %{{y:.1f}} s<extra>{name}</extra>",
            )
        )
    layout = {
        "barmode": "group",
        "showlegend": True,
        "xaxis": {"title": {"text": "replicas"}, "type": "category"},
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
            name=name,
            hovertemplate=f"%{{x}} replicas: %{{y:.3g}} {currency}<extra>{name}</extra>",
        )
        for index, (name, key) in enumerate((("run", "cost"), ("to target accuracy", "cost_to_accuracy")))
    ]
    layout = {
        "barmode": "group",
        "showlegend": True,
        "xaxis": {"title": {"text": "replicas"}, "type": "category"},
        "yaxis": {"title": {"text": f"cost ({currency})"}, "rangemode": "tozero"},
    }
    return {"data": data, "layout": layout}


# --- the result and the curves ----------------------------------------------------------------------------------------


def _add_equality(page: Page, found: Scaling) -> None:
    compared = [(result.mode, one) for result in found.modes for one in result.equality]
    if not compared:
        return
    page.section(
        "Is the result the same?",
        "With the same batch of a step and the same seed every count trains the same network to rounding: dropout and "
        "augmentation draw what one replica draws. It cannot be so with batch norm of each replica's own "
        "(model.sync_batch_norm=false), nor with other random layers of a model of your own.",
    )
    tones = {EQUAL: "good", DIFFERENT: "bad"}
    rows = [
        [
            f"{one.num_replicas} replicas ({mode})",
            Cell(one.verdict, tone=tones.get(one.verdict, "mark")),
            _scientific(one.first_difference),
            _scientific(one.largest_difference),
            _scientific(one.tolerance),
            _points(one.accuracy_difference),
        ]
        for mode, one in compared
    ]
    columns = ("count", "result", "epoch 1", "all epochs", "tolerance", "best accuracy")
    page.table(columns, rows, note="Largest relative difference of training and validation loss; accuracy in points.")
    for text in dict.fromkeys(equality_words(one) for _, one in compared if one.verdict == NOT_COMPARED):
        page.text(text)


def _scientific(value: float | None) -> str | None:
    return None if value is None else f"{value:.1e}"


def _points(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.2f}"


def _add_curves(page: Page, trainings: Sequence[Training]) -> None:
    """Curves of the first repeat's runs, each run once."""
    runs = list({one.run.key: one.run for one in trainings if one.repeat == 1}.values())
    if not any(run.epochs for run in runs):
        return
    page.section("Learning", "The first repeat of every point.")
    names = {run.key: f"{run.num_replicas} x {run.record['batch'].get('per_replica_batch_size')}" for run in runs}
    styles = page.series({key: f"{name} a step" for key, name in names.items()})
    axes = {
        "epoch": By("epoch", [[row.get("epoch") for row in run.epochs] for run in runs]),
        "wall time": By("time since the start (s)", [list(run.elapsed) for run in runs]),
        "examples": By("examples seen", [list(run.examples_seen) for run in runs]),
    }
    for key, title, unit in (
        ("val_accuracy", "Validation accuracy", "accuracy"),
        ("val_loss", "Validation loss", "loss"),
        ("loss", "Training loss", "loss"),
        ("learning_rate", "Learning rate", "learning rate"),
        ("images_per_second", "Speed of each epoch", "images/s"),
    ):
        page.chart(
            {
                "data": [_curve(run, key, styles[run.key], names[run.key]) for run in runs],
                "layout": {
                    "yaxis": {"title": {"text": unit}, "rangemode": "tozero" if key in _FROM_ZERO else "normal"}
                },
            },
            title,
            by=axes,
            height=300,
            half=True,
        )
    device_charts(page, runs, styles, "The first repeat of every point.", add=Page.section)


def _curve(run: Run, key: str, style: Style, name: str) -> dict[str, Any]:
    return {
        **{"y": [row.get(key) for row in run.epochs], "name": name, "legendgroup": run.key},
        **{"mode": "lines+markers", "line": style.line, "marker": {"symbol": style.symbol, "size": 6}},
        "hovertemplate": f"%{{y:.5g}}<extra>{name}</extra>",
    }
