"""What `src/show.py` does: reads a run folder and says in words what is in it."""

from pathlib import Path

from rich.text import Text

from manyfit import checkpoint
from manyfit.console import Console
from manyfit.files import to_json
from manyfit.locks import FileLock
from manyfit.record import LOCK_NAME, RunRecord
from manyfit.report.show import Sheet, in_bytes, sheet


def run_command(folder: Path, console: Console, *, as_json: bool = False) -> Sheet:
    """Read a run folder and print what is in it.

    Raises:
        UserError: there is no run.
    """
    RunRecord.load(folder)  # a folder without a run is refused before anything else in it is read
    told = sheet(folder, _checkpoints(folder), _in_use(folder))
    if as_json:
        print(to_json(told.as_dict(), indent=1))
        return told
    console.print(Text(told.title, style="bold"))
    for heading, rows in told.sections:
        width = max(len(name) for name, _ in rows)
        console.print(Text(f"\n{heading}", style="bold cyan"))
        for name, value in rows:
            console.print(Text(f"  {name:<{width}}  {value}"), whole_lines=True)
    if told.notices:
        console.print(Text("\nnotices", style="bold cyan"))
        for notice in told.notices:
            console.print(Text(f"  {notice}"), whole_lines=True)
    console.print(Text("\nwhat you can do", style="bold cyan"))
    for purpose, line in told.commands:
        console.print(Text(f"  {purpose}:"), Text(f"    {line}"), whole_lines=True)
    return told


def _checkpoints(folder: Path) -> list[str]:
    """How far each checkpoint is, the furthest first; their contents are not read."""
    found = checkpoint.paths(Path(folder) / checkpoint.FOLDER_NAME)
    return [f"{_where(checkpoint.position_of(path))} ({in_bytes(path.stat().st_size)})" for path in found]


def _where(position: checkpoint.Position) -> str:
    if position.step == 0:
        return f"after epoch {position.epoch}"
    return f"in epoch {position.epoch + 1}, after step {position.step}"


def _in_use(folder: Path) -> bool | None:
    """Whether a process works on the run; None where nothing tells."""
    path = Path(folder) / LOCK_NAME
    if not path.exists():
        return None
    lock = FileLock(path)
    try:
        return not lock.take(exclusive=False)
    finally:
        lock.release()
