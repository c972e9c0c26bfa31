"""A comparison as a page: verdict, tables and charts."""

from collections.abc import Sequence
from typing import Any

from manyfit.console import seconds
from manyfit.report import pairs
from manyfit.report.claims import Estimate
from manyfit.report.comparison import Comparison
from manyfit.report.comparison_sheets import Sheet, sheets
from manyfit.report.cost import money
from manyfit.report.page import SHORTEST_NAME, By, Page, Style, cut, label
from manyfit.report.runs import PARTS, Run, further_metrics
from manyfit.report.system_charts import device_charts
from manyfit.report.verdict_words import details, headline, times
from manyfit.schema import metrics

LEARNING = (
    ("val_loss", "Validation loss", "loss", "log"),
    ("val_accuracy", "Validation accuracy", "accuracy (share of examples)", None),
    ("loss", "Training loss", "loss", "log"),
    ("accuracy", "Training accuracy", "accuracy (share of examples)", None),
)
PACE = (
    ("images_per_second", "Speed", "images/s", None),
    ("learning_rate", "Learning rate", "learning rate", "log"),
)
_LOG_FROM = 20
"""A loss or learning rate is drawn on a logarithmic axis where its values are further apart than this factor."""
_MOST_WITH_MARKERS = 60
GREY = "#8a8f99"
PART_COLORS = dict(
    zip(PARTS, ("#a58796", "#964b96", "#4b96f0", "#c32d00", "#e17800", "#8a8f99", "#c3c7ce"), strict=True)
)


def comparison_page(comparison: Comparison, subtitle: str = "") -> Page:
    """The page, ready to be written."""
    runs = comparison.runs
    page = Page(_title(comparison), subtitle)
    page.verdict(headline(comparison), details(comparison))
    for run in runs:
        if not run.finished:
            page.text(f"{run.name}: {pairs.how_it_ended(run)}.", tone="mark")
        if run.rehearsal:
            page.text(
                f"{run.name}: a rehearsal on drawn pictures; its accuracy says nothing about photos.", tone="mark"
            )
    styles = page.series({run.key: run.name for run in runs})
    found = {sheet.key: sheet for sheet in sheets(comparison)}
    _add(page, "Runs", found.get("runs"))
    if sheet := found.get("claims"):
        _add(page, sheet.title, sheet)
        speed_charts(page, comparison, styles)
    if any(run.epochs for run in runs):
        page.section("Curves")
        if len(runs) > 1:
            page.text("The first run is drawn wider, so that curves that are equal show both colours.")
        curves(page, runs, styles)
    device_charts(page, runs, styles, found.get("devices"), add=_add)
    if sheet := found.get("times"):
        page.section(sheet.title)
        time_split(page, runs)
        _table(page, sheet)
    if sheet := found.get("costs"):
        page.section(sheet.title)
        _cost_chart(page, comparison, styles)
        _table(page, sheet)
    if sheet := found.get("settings"):
        _add(page, sheet.title, sheet)
    return page


def _title(comparison: Comparison) -> str:
    names = [run.name for run in comparison.runs]
    return (
        f"Comparison of {cut(names[0], 40)} and {cut(names[1], 40)}"
        if len(names) == 2
        else f"Comparison of {len(names)} runs"
    )


def _add(page: Page, title: str, sheet: Sheet | None) -> None:
    page.section(title)
    if sheet is not None:
        _table(page, sheet)


def _table(page: Page, sheet: Sheet) -> None:
    page.table(sheet.columns, sheet.rows, note=sheet.note)


# --- charts -----------------------------------------------------------------------------------------------------------


def curves(page: Page, runs: Sequence[Run], styles: dict[str, Style]) -> None:
    """Metrics, speed and learning rate, against epochs, examples seen or time."""
    for name, title, axis, scale in (*LEARNING, *_metric_curves(runs), *PACE):
        shown = [run for run in runs if any(row.get(name) is not None for row in run.epochs)]
        traces = [
            _curve(run, name, styles[run.key], wide=index == 0 < len(shown) - 1) for index, run in enumerate(shown)
        ]
        values = [value for trace in traces for value in trace["y"] if isinstance(value, int | float)]
        layout: dict[str, Any] = {"yaxis": {"title": {"text": axis}} | _range(values, scale, name)}
        if layout["yaxis"].get("type") == "log":
            layout["yaxis"]["title"]["text"] += ", logarithmic"
        page.chart({"data": traces, "layout": layout}, title, by=_axes(shown), half=True, height=300)


def _metric_curves(runs: Sequence[Run]) -> list[tuple[str, str, str, str | None]]:
    """What was asked for with `metrics`, as it validates and as it trains."""
    return [
        (f"{prefix}{name}", f"{kind} {metrics.in_words(name)}", metrics.in_words(name), None)
        for name in further_metrics(runs)
        for prefix, kind in (("val_", "Validation"), ("", "Training"))
    ]


def _curve(run: Run, name: str, style: Style, *, wide: bool) -> dict[str, Any]:
    # The first line is drawn wider: equal curves, which strong scaling promises, then show both colours.
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(run.epochs) <= _MOST_WITH_MARKERS else "lines",
        "y": [row.get(name) for row in run.epochs],
        "name": label(run.name),
        "legendgroup": run.key,
        "line": style.line | ({"width": 5} if wide else {}),
        "marker": {"color": style.color, "symbol": style.symbol, "size": 10 if wide else 6},
        "hovertemplate": "%{y:.5~g} at %{x:,.5~g}<extra>%{fullData.name}</extra>",
    }


def _range(values: Sequence[float], scale: str | None, name: str) -> dict[str, Any]:
    """How the vertical axis runs: logarithmic where values are far apart, from 0 for speeds and what never changes."""
    if not values:
        return {}
    low, high = min(values), max(values)
    if low == high:
        return {"range": sorted((0.0, 1.2 * high))} if high else {}
    if scale and low > 0 and high > _LOG_FROM * low:
        return {"type": "log", "exponentformat": "e", "dtick": 1}
    return {"rangemode": "tozero"} if name == "images_per_second" else {}


def _axes(runs: Sequence[Run]) -> dict[str, By]:
    def epochs(run: Run) -> list[Any]:
        return [row.get("epoch", index) for index, row in enumerate(run.epochs, start=1)]

    longest = max((run.elapsed[-1] or 0.0 for run in runs if run.elapsed), default=0.0)
    unit, size = ("h", 3600) if longest > 3 * 3600 else ("min", 60) if longest > 300 else ("s", 1)
    return {
        "epochs": By("epoch", [epochs(run) for run in runs]),
        "examples seen": By("training examples seen", [list(run.examples_seen) for run in runs]),
        "time": By(
            f"time since the start of the run ({unit})",
            [[None if one is None else one / size for one in run.elapsed] for run in runs],
        ),
    }


def speed_charts(page: Page, comparison: Comparison, styles: dict[str, Style]) -> None:
    """Speed-up and efficiency as bars, the ideal drawn where replicas were added."""
    known = [(claim, claim.speed_up) for claim in comparison.claims if claim.speed_up is not None]
    ideal = [
        (claim.group.first.num_replicas or 1) / (claim.baseline.first.num_replicas or 1) if claim.scaling else None
        for claim, _ in known
    ]
    runs = [claim.group.first for claim, _ in known]
    values = [one for _, one in known]
    ticks = {"symbol": "line-ns-open", "size": 22, "color": GREY, "line": {"width": 3}}
    marks = {"type": "scatter", "mode": "markers", "x": ideal, "y": [run.key for run in runs], "marker": ticks}
    marks["hovertemplate"] = "ideal: %{x:.3g}x<extra></extra>"
    has_ideal = any(value is not None for value in ideal)
    page.chart(
        {
            "data": [*_bars(runs, values, styles), *([marks] if has_ideal else [])],
            "layout": _bar_layout(
                "speed-up (times the baseline)",
                runs,
                [times(one.value) for one in values],
                [*_ends(values), *ideal, 1.0],
            )
            | {"shapes": [_line_at(1.0)]},
        },
        "Speed-up",
        "The dotted line: as fast as the baseline."
        + (" The grey marks: as many times as there are replicas." if has_ideal else ""),
        height=_height(len(known)),
        half=True,
    )
    efficient = [(claim, claim.efficiency.scaled(100)) for claim in comparison.claims if claim.efficiency is not None]
    runs = [claim.group.first for claim, _ in efficient]
    values = [one for _, one in efficient]
    texts = [f"{one.value:.0f} %" for one in values]
    page.chart(
        {
            "data": _bars(runs, values, styles),
            "layout": _bar_layout("efficiency (%)", runs, texts, [*_ends(values), 100.0])
            | {"shapes": [_line_at(100.0)]},
        },
        "Efficiency",
        "Speed-up over the ratio of replicas; the dotted line: each replica does as much as the baseline's.",
        height=_height(len(efficient)),
        half=True,
    )


def _ends(values: Sequence[Estimate]) -> list[float]:
    return [one.value if one.high is None else one.high for one in values]


def _line_at(x: float) -> dict[str, Any]:
    line = {"color": GREY, "width": 1.5, "dash": "dot"}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def _bars(runs: Sequence[Run], values: Sequence[Estimate], styles: dict[str, Style]) -> list[dict[str, Any]]:
    """Horizontal bars, one a run in its colour, with its interval where there is one."""
    return [
        {
            "type": "bar",
            "orientation": "h",
            "y": [run.key],
            "x": [value.value],
            "name": label(run.name),
            "legendgroup": run.key,
            "marker": styles[run.key].fill,
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": [0.0 if value.high is None else value.high - value.value],
                "arrayminus": [0.0 if value.low is None else value.value - value.low],
                "visible": value.low is not None,
                "color": GREY,
            },
            "hovertemplate": "%{x:.4~g}<extra>%{fullData.name}</extra>",
        }
        for run, value in zip(runs, values, strict=True)
    ]


def _bar_layout(axis: str, runs: Sequence[Run], texts: Sequence[str], values: Sequence[float | None]) -> dict[str, Any]:
    """The axes of horizontal bars: the value of each stands beside its name, where nothing is drawn over it."""
    largest = max((value for value in values if value is not None), default=1.0)
    names = [label(run.name, SHORTEST_NAME) for run in runs]
    return {
        "xaxis": {"title": {"text": axis}, "range": [0, 1.08 * largest or 1.0]},
        "yaxis": {
            "type": "category",
            "autorange": "reversed",
            "tickvals": [run.key for run in runs],
            "ticktext": [f"{name}  <b>{text}</b> " for name, text in zip(names, texts, strict=True)],
        },
        "barmode": "overlay",
        "bargap": 0.35,
    }


def _height(bars: int) -> int:
    return 110 + 34 * bars


def time_split(page: Page, runs: Sequence[Run]) -> None:
    """Stacked bars: what each run spent its time on."""
    shown = [run for run in runs if run.time_split]
    data = []
    for part in PARTS:
        values = [run.time_split.get(part) for run in shown]
        if any(values):
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": part,
                    "y": [run.key for run in shown],
                    "x": values,
                    "marker": {"color": PART_COLORS[part]},
                    "customdata": [run.name for run in shown],
                    "hovertemplate": f"%{{customdata}}<br>{part}: %{{x:,.1f}} s<extra></extra>",
                }
            )
    sums = [sum(run.time_split.values()) for run in shown]
    layout = _bar_layout("seconds", shown, [seconds(one) for one in sums], sums) | {
        "barmode": "stack",
        "showlegend": True,
    }
    layout["legend"] = {"traceorder": "normal"}
    page.chart({"data": data, "layout": layout}, "Time", height=_height(len(shown)) + 60)


def _cost_chart(page: Page, comparison: Comparison, styles: dict[str, Style]) -> None:
    """What a run cost, a chart a currency."""
    currencies = dict.fromkeys(cost.currency for cost in comparison.costs.values() if cost and cost.run is not None)
    for currency in currencies:
        priced = [
            (run, cost.run)
            for run in comparison.runs
            if (cost := comparison.costs[run.key]) and cost.currency == currency and cost.run is not None
        ]
        shown, values = [run for run, _ in priced], [Estimate(amount) for _, amount in priced]
        texts = [money(one.value, currency) for one in values]
        axis = f"cost of the run ({currency})"
        page.chart(
            {"data": _bars(shown, values, styles), "layout": _bar_layout(axis, shown, texts, _ends(values))},
            "Cost of a run",
            height=_height(len(shown)),
        )
