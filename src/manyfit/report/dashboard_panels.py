"""The panels of a saved view and of a report: what W&B shows of some runs, in the colours of the page."""

import json
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from manyfit.report.page import Style
from manyfit.report.runs import Run, further_metrics
from manyfit.schema.metrics import in_words

MAX_TITLE = 128
EPOCH = "epoch/epoch"
LEARNING = (
    ("Training loss", "loss", "loss"),
    ("Validation loss", "val_loss", "loss"),
    ("Training accuracy", "accuracy", "accuracy"),
    ("Validation accuracy", "val_accuracy", "accuracy"),
    ("Learning rate", "learning_rate", "learning rate"),
)
"""Title, key of the rows that W&B gets (below `epoch/`), title of the axis."""

GPU_METRICS = (
    ("GPU utilisation", "gpu", "utilisation (%)"),
    ("GPU memory", "memoryAllocatedBytes", "memory (bytes)"),
)
"""The same for W&B's own system metrics, below `system/gpu.N.`."""

_TABLES = "Tables"


@dataclass(frozen=True)
class Dashboard:
    """What is shown.

    Args:
        title: Of the view and the report.
        runs: What they show, in the order of their colours.
        markdown: The text of the report, tables included.
        group: The runs' group in W&B: later members are shown as well; None to show these runs alone.
        command: What makes it again, from the shell.
    """

    title: str
    runs: tuple[Run, ...]
    markdown: str
    group: str | None
    command: str


def run_id(run: Run) -> str | None:
    """W&B's name of a run; None for one that W&B was not told of."""
    return (run.record.get("tracker") or {}).get("run_id")


def gpu_indices(runs: Iterable[Run]) -> list[int]:
    """The GPUs that any of the runs used, as W&B numbers them.

    A record names its devices `GPU:2 NVIDIA A100`.
    """
    names = [device for run in runs for device in run.devices]
    return sorted({int(found[1]) for name in names if (found := re.match(r"GPU:(\d+)", name))})


def _library() -> tuple[Any, Any]:
    """The modules for views and for reports."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it uses an old style of pydantic's
        import wandb_workspaces.reports.v2 as wr
        import wandb_workspaces.workspaces as ws
    return ws, wr


def view_of(dashboard: Dashboard, runs: Sequence[Run], entity: str, project: str) -> Any:
    """The Workspace, unsaved; the runs have the colours of the page."""
    ws, _ = _library()
    settings = {run_id: ws.RunSettings(color=color) for run_id, color in _colors(runs).items()}
    return ws.Workspace(
        entity=entity,
        project=project,
        name=dashboard.title[:MAX_TITLE],
        sections=[
            ws.Section(name=name, panels=panels, is_open=True) for name, panels in _sections(dashboard, runs).items()
        ],
        settings=ws.WorkspaceSettings(x_axis=EPOCH, max_runs=max(10, len(runs))),
        runset_settings=ws.RunsetSettings(filters=_filter(dashboard, runs), run_settings=settings),
    )


def report_of(dashboard: Dashboard, runs: Sequence[Run], entity: str, project: str) -> Any:
    """The Report, unsaved. With an entity, making its specification asks the server for the project."""
    _, wr = _library()
    where = {"entity": entity, "project": project} if entity else {}
    settings = {run_id: wr.RunSettings(color=color) for run_id, color in _colors(runs).items()}
    sections = _sections(dashboard, runs)
    blocks: list[Any] = [wr.MarkdownBlock(text=dashboard.markdown)]
    for name, panels in sections.items():
        if name == _TABLES:
            continue  # the text has them
        runset = wr.Runset(name=name, filters=_filter(dashboard, runs), run_settings=settings, **where)
        blocks += [wr.H2(text=name), wr.PanelGrid(runsets=[runset], panels=panels, hide_run_sets=True)]
    return wr.Report(
        project=project,
        entity=entity,
        title=dashboard.title[:MAX_TITLE],
        description=f"{len(runs)} runs, by manyfit",
        blocks=blocks,
        width="fixed",
    )


def _sections(dashboard: Dashboard, runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The panels by their heading; those without data are left out."""
    _, wr = _library()

    def lines(title: str, keys: list[str], axis: str, x: str = EPOCH, title_x: str = "epoch") -> Any:
        return wr.LinePlot(
            title=title,
            x=x,
            y=keys,
            title_x=title_x,
            title_y=axis,
            max_runs_to_show=max(10, len(runs)),
            smoothing_type="none",
        )

    measured = {key for run in runs for row in run.epochs for key, value in row.items() if value is not None}
    metrics = [
        (f"{kind} {in_words(name)}", f"{prefix}{name}", in_words(name))
        for name in further_metrics(runs)
        for prefix, kind in (("", "Training"), ("val_", "Validation"))
    ]
    learning = [lines(title, [f"epoch/{key}"], axis) for title, key, axis in (*LEARNING, *metrics) if key in measured]
    speed = [
        lines("Images/s of each epoch", ["epoch/images_per_second"], "images/s"),
        wr.BarPlot(title="Images/s of the training", metrics=["throughput/images_per_second"], title_x="images/s"),
    ]
    gpus = gpu_indices(runs)
    devices = [
        lines(title, [f"system/gpu.{index}.{key}" for index in gpus], axis, "RelativeTime(Process)", "time (s)")
        for title, key, axis in GPU_METRICS
        if gpus
    ]
    devices.append(lines("CPU utilisation", ["system/cpu"], "utilisation (%)", "RelativeTime(Process)", "time (s)"))
    sections = {
        "Learning": learning,
        "Speed": speed,
        "Devices": devices,
        "What differs": [wr.RunComparer(diff_only="split")],
        _TABLES: [wr.MarkdownPanel(markdown=dashboard.markdown)],
    }
    for panels in sections.values():
        _lay_out(panels, wr.Layout)
    return {name: panels for name, panels in sections.items() if panels}


def _lay_out(panels: Sequence[Any], layout: Any) -> None:
    """Two panels a row; one alone has the whole row. The grid of W&B is 24 wide."""
    width = 24 if len(panels) == 1 else 12
    for index, panel in enumerate(panels):
        panel.layout = layout(x=12 * (index % 2), y=8 * (index // 2), w=width, h=16 if width == 24 else 8)


def _filter(dashboard: Dashboard, runs: Sequence[Run]) -> str:
    if dashboard.group:
        return f"Metric('Group') == {json.dumps(dashboard.group)}"
    return f"Metric('ID') in {json.dumps([run_id(run) for run in runs])}"


def _colors(runs: Sequence[Run]) -> dict[str, str]:
    return {str(run_id(run)): Style.of(index).color for index, run in enumerate(runs)}
