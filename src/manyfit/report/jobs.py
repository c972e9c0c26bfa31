"""The closing table of many runs: what each was asked, how it ended, and where it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from manyfit.console import decimal, seconds

STYLES = {
    "finished": "green",
    "kept": "green",
    "failed": "red",
    "stopped": "yellow",
    "not run": "yellow",
    "submitted": "yellow",
}


@dataclass(frozen=True)
class Job:
    """One run of many.

    Args:
        name: What it was asked, beyond what all were.
        status: `finished`, `kept`, `stopped`, `failed`, `not run` or `submitted` (to Slurm, and not seen to end).
        record: Its record, if there is one.
        seconds: From its start to its end.
        said: Why it failed, or was stopped, in a line.
    """

    name: str
    status: str
    folder: Path | None = None
    record: Mapping[str, Any] | None = None
    seconds: float | None = None
    said: str | None = None


def jobs_tables(jobs: Sequence[Job]) -> list[Table | Text]:
    """The table, a line with the cause of each failure, and how many succeeded."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("job", justify="right", no_wrap=True)
    table.add_column("asked", overflow="fold")
    table.add_column("status", no_wrap=True)
    for name in ("val accuracy", "val loss", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for number, job in enumerate(jobs):
        best = (job.record or {}).get("best") or {}
        numbers = [decimal(best.get("val_accuracy")), decimal(best.get("val_loss")), seconds(job.seconds)]
        table.add_row(str(number), Text(job.name), Text(job.status, style=STYLES.get(job.status, "")), *numbers)
    lines: list[Table | Text] = [table]
    lines += [Text(f"job {number} ({job.name}): {job.said}") for number, job in enumerate(jobs) if job.said]
    return [*lines, Text(_count(jobs), style="bold")]


def _count(jobs: Sequence[Job]) -> str:
    good = sum(job.status in ("finished", "kept") for job in jobs)
    bad = [status for status in STYLES if status not in ("finished", "kept")]
    others = [f"{number} {status}" for status in bad if (number := sum(job.status == status for job in jobs))]
    return f"{good} of {len(jobs)} finished" + ("." if good == len(jobs) else f" ({', '.join(others)}).")
