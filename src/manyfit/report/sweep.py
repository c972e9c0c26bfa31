"""The runs of a sweep, the best first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from manyfit.console import decimal, seconds
from manyfit.report.jobs import STYLES

MOST_COLUMNS = 3


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Args:
        name: What it was asked, beyond what all were.
        parameters: Those of the sweep, and their values.
        status: `finished`, `stopped` (early) or `failed`.
        value: The sweep's metric; of a stopped run the best so far.
        folder: The run folder.
        seconds: From its start to its end.
        said: Why it failed or was stopped.
    """

    name: str
    parameters: Mapping[str, Any]
    status: str
    value: float | None = None
    folder: str | None = None
    seconds: float | None = None
    said: str | None = None


def ranked(runs: Sequence[SweepRun], *, maximises: bool) -> list[SweepRun]:
    """Finished runs by their metric, then those that were stopped, then those that failed."""

    def rank(run: SweepRun) -> tuple[int, float]:
        place = ("finished", "stopped", "failed").index(run.status)
        if run.value is None:
            return place, float("inf")
        return place, -run.value if maximises else run.value

    return sorted(runs, key=rank)


def sweep_tables(runs: Sequence[SweepRun], metric: str | None, *, maximises: bool) -> list[Table | Text]:
    """The ranked table, why runs failed, and the overrides of the best one."""
    ordered = ranked(runs, maximises=maximises)
    varied = [name for name in _names(runs) if len({repr(run.parameters.get(name)) for run in runs}) > 1]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", justify="right", no_wrap=True)
    table.add_column((metric or "metric").rpartition("/")[2], justify="right", no_wrap=True)
    columns = varied if len(varied) <= MOST_COLUMNS else []
    for name in columns:
        table.add_column(name.rpartition(".")[2], no_wrap=True)
    if not columns:
        table.add_column("asked", overflow="fold")
    table.add_column("status", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    for place, run in enumerate(ordered, start=1):
        asked = [_shown(run.parameters.get(name)) for name in columns] or [run.name]
        status = Text(run.status, style=STYLES.get(run.status, ""))
        shown = decimal(run.value) if run.status == "finished" else f"({decimal(run.value)})"
        table.add_row(str(place), shown if run.value is not None else "-", *asked, status, seconds(run.seconds))
    lines: list[Table | Text] = [table]
    failed = [run for run in ordered if run.status == "failed"]
    lines += [Text(f"failed: {run.name}: {run.said}") for run in failed]
    if ordered and ordered[0].status == "finished" and ordered[0].value is not None:
        best = ordered[0]
        lines.append(Text(f"Best: {best.name} ({metric} {decimal(best.value)}), in {best.folder}", style="bold"))
    return lines


def _names(runs: Sequence[SweepRun]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.parameters))


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "null" if value is None else str(value)
