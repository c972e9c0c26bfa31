"""What the devices did over time, as charts with the phases shaded."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from manyfit.console import plural
from manyfit.report.page import DASHES, Page, Style, cut, label
from manyfit.report.runs import Run
from manyfit.report.system_samples import nodes_of, phases

PHASE_COLORS = {
    "start": "#a58796",
    "features": "#964b96",
    "train": "#4b96f0",
    "validation": "#e17800",
    "end": "#8a8f99",
}
_SHADE = 0.16
MANY_RUNS = 6
"""With more runs than these the rows are lower, and of the GPUs of a run the mean is drawn."""
_MOST_POINTS = 2000
"""Points of a line; of more samples each point is the mean of several."""
GPU_METRICS = (
    ("utilization_percent", "GPU utilisation", "%", 1.0),
    ("memory_used_bytes", "GPU memory in use", "GiB", 2**-30),
    ("power_watts", "GPU power", "W", 1.0),
)
HOST_METRICS = (
    ("cpu_percent", "CPU utilisation, all cores", "%", 1.0),
    ("memory_bytes", "Memory in use", "GiB", 2**-30),
)


def device_charts(
    page: Page, runs: Sequence[Run], styles: Mapping[str, Style], sheet: Any, *, add: Callable[[Page, str, Any], None]
) -> None:
    """The section on devices, where any run has samples; says so of the runs that have none of a GPU."""
    sampled = [run for run in runs if run.samples]
    if not sampled:
        return
    add(page, "Devices during the training", sheet)
    without = [run for run in sampled if not run.gpu_names]
    if without:
        page.text(
            f"No GPU samples: {', '.join(cut(run.name) for run in without[:6])}{' ...' if len(without) > 6 else ''}."
        )
    for metric, title, unit, factor in (*GPU_METRICS, *HOST_METRICS):
        _over_time(page, sampled, styles, metric, title, unit, factor)


def _over_time(
    page: Page, runs: Sequence[Run], styles: Mapping[str, Style], metric: str, title: str, unit: str, factor: float
) -> None:
    """One chart a metric: a row a run, so that its own phases can be shaded behind its own lines."""
    of_gpu = metric in {name for name, *_ in GPU_METRICS}
    rows = [(run, lines) for run in runs if (lines := _lines(run, metric, factor, of_gpu, len(runs) > MANY_RUNS))]
    if not rows:
        return
    top = max(value for _, lines in rows for _, _, ys in lines for value in ys if value is not None)
    limit = 105 if unit == "%" and top <= 100 else top * 1.05 or 1
    last = max(xs[-1] for _, lines in rows for _, xs, _ in lines)
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"shapes": [], "annotations": [], "showlegend": True, "legend": {"traceorder": "normal"}}
    tall = 130 if len(rows) <= MANY_RUNS else 62
    height = 110 + tall * max(len(rows), 2 if len(rows) == 1 else 1)
    gap = 26 / (height - 110)
    layout["legend"]["y"] = 1 + gap  # above the name of the first row
    share = (1 - gap * (len(rows) - 1)) / len(rows)
    for index, (run, lines) in enumerate(rows):
        suffix = "" if index == 0 else str(index + 1)
        upper = 1 - index * (share + gap)
        layout[f"yaxis{suffix}"] = {
            "domain": [max(0.0, upper - share), upper],
            "range": [0, limit],
            "nticks": 4 if tall > 100 else 3,
            "ticksuffix": f" {unit}",
        }
        layout["annotations"].append(_name_above(run, upper, _gpus(run, lines) if of_gpu else ""))
        layout["shapes"] += _shades(run, f"y{suffix}", limit, last)
        data += [_line(run, styles[run.key], f"y{suffix}", unit, number, *line) for number, line in enumerate(lines)]
    layout["xaxis"] = {
        "title": {"text": "time since the start of the run (s)"},
        "range": [0, last],
        "anchor": "y" if len(rows) == 1 else f"y{len(rows)}",
    }
    data += [
        _phase_in_legend(name) for name in dict.fromkeys(name for run, _ in rows for name, _, _ in phases(run.samples))
    ]
    page.chart(
        {"data": data, "layout": layout},
        f"{title} ({unit})",
        f"Shaded: the phases of the run{' (of rank 0)' if any(run.worker_samples for run, _ in rows) else ''}."
        + (f" {_dashes(rows)}" if of_gpu else ""),
        height=height,
    )


def _line(
    run: Run,
    style: Style,
    yaxis: str,
    unit: str,
    number: int,
    text: str,
    xs: Sequence[float],
    ys: Sequence[float | None],
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": xs,
        "y": ys,
        "yaxis": yaxis,
        "name": text or label(run.name),
        "legendgroup": run.key,
        "showlegend": False,
        "line": {**style.line, "dash": DASHES[number % len(DASHES)], "width": 1.8},
        "hovertemplate": f"{text + ': ' if text else ''}%{{y:.4~g}} {unit} at %{{x:,.1f}} s<extra></extra>",
    }


def _name_above(run: Run, upper: float, gpus: str) -> dict[str, Any]:
    return {
        "text": _label(run, gpus),
        "hovertext": label(run.name, 200),
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": upper,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
    }


def _shades(run: Run, yaxis: str, limit: float, last: float) -> list[dict[str, Any]]:
    """A path for each phase, of all its stretches: hundreds of rectangles would take a browser seconds."""
    paths: dict[str, list[str]] = {}
    for name, first, until in phases(run.samples, shortest=last / 400):
        paths.setdefault(name, []).append(f"M{first:g},0V{limit:g}H{until:g}V0Z")
    return [
        {
            "type": "path",
            "layer": "below",
            "xref": "x",
            "yref": yaxis,
            "path": "".join(parts),
            "fillcolor": PHASE_COLORS[name],
            "opacity": _SHADE,
            "line": {"width": 0},
        }
        for name, parts in paths.items()
    ]


def _phase_in_legend(name: str) -> dict[str, Any]:
    square = {"symbol": "square", "size": 12, "color": PHASE_COLORS[name], "opacity": 0.5}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [None],
        "y": [None],
        "name": name,
        "marker": square,
        "hoverinfo": "skip",
    }


def _label(run: Run, gpus: str) -> str:
    text = label(run.name, 40)
    return f"{text}, {gpus}" if gpus else text


def _gpus(run: Run, lines: Sequence[Any]) -> str:
    count = sum(max(len(sample["gpus"]) for sample in samples) for samples in run.samples_by_rank.values())
    return f"mean of {count} GPUs" if len(lines) < count else plural(count, "GPU")


def _dashes(rows: Sequence[tuple[Run, Sequence[Any]]]) -> str:
    _, most = max(rows, key=lambda row: len(row[1]))
    if len(most) > 1:
        named = ", ".join(f"{name} {dash}" for (name, _, _), dash in zip(most, DASHES, strict=False))
        return f"A line a GPU: {named}{', and so on' if len(most) > len(DASHES) else ''}."
    return "The mean over the GPUs of each run." if len(rows) > MANY_RUNS else ""


Line = tuple[str, list[float], list[float | None]]
"""Name (`GPU 0`), seconds and values."""


def _lines(run: Run, metric: str, factor: float, of_gpu: bool, mean: bool) -> list[Line]:
    """The lines of a run: one, or one a GPU, or the mean over these; lines without a value are left out."""
    found: dict[str, list[tuple[float, float | None]]] = {}
    workers = run.samples_by_rank
    hosts: dict[str, int] = {}  # workers of one machine see the same of it
    for rank, samples in workers.items():
        of_worker = f"rank {rank}" if len(workers) > 1 else ""
        went_on_elsewhere = len(nodes_of(samples)) > 1
        for sample in samples:
            second = sample["elapsed_seconds"]
            if not of_gpu:
                if hosts.setdefault(str(sample.get("node")), rank) == rank:
                    found.setdefault(of_worker, []).append((second, sample.get(metric)))
                continue
            owner = of_worker or (str(sample.get("node")) if went_on_elsewhere else "")
            for gpu in sample["gpus"]:
                name = "" if mean else f"GPU {gpu.get('index')}" + (f" of {owner}" if owner else "")
                found.setdefault(name, []).append((second, gpu.get(metric)))
    if mean and of_gpu:
        moment = 0.0 if len(workers) == 1 else 1.0  # workers are not sampled at the same time
        found = {name: _mean_of_moments(points, moment) for name, points in found.items()}
    lines = []
    for name, points in found.items():
        size = -(-len(points) // _MOST_POINTS)
        blocks = [points[at : at + size] for at in range(0, len(points), size)]
        values = [None if (middle := _mean(block)) is None else middle * factor for block in blocks]
        if any(value is not None for value in values):
            lines.append((name, [block[0][0] for block in blocks], values))
    return lines


def _mean_of_moments(points: Sequence[tuple[float, float | None]], moment: float) -> list[tuple[float, float | None]]:
    """One point every `moment` seconds (0: one a time), the mean over all devices that were sampled in it."""
    moments: dict[float, list[tuple[float, float | None]]] = {}
    for point in sorted(points, key=lambda point: point[0]):
        moments.setdefault(point[0] // moment if moment else point[0], []).append(point)
    return [(block[0][0], _mean(block)) for block in moments.values()]


def _mean(block: Sequence[tuple[float, float | None]]) -> float | None:
    known = [value for _, value in block if value is not None]
    return sum(known) / len(known) if known else None
