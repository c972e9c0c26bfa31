"""What `src/sweep.py` does: `check` looks for mistakes in a sweep file, `local` runs its search and shows the runs."""

import argparse
import functools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.text import Text

from manyfit.console import Console
from manyfit.errors import EXIT_FAILED, EXIT_FINISHED, ConfigError, UserError
from manyfit.report.sweep import SweepRun, ranked, sweep_tables
from manyfit.sweep_check import mistakes
from manyfit.sweep_file import SweepFile
from manyfit.sweep_local import LocalSweep, default_folder

PAGE_NAME = "compare.html"
MOST_COMPARED = 12
"""Runs on the compare page, the best first: more curves than that cannot be told apart."""


def checked(path: Path, root: Path, overrides: Sequence[str]) -> SweepFile:
    """The sweep file at `path`, in which nothing is wrong.

    Raises:
        ConfigError: lists every mistake, each with its line and a remedy.
    """
    file = SweepFile.read(path)
    found = mistakes(file, root, overrides)
    if found:
        shown = "\n".join(mistake.shown(path) for mistake in found)
        number = f"{len(found)} mistakes" if len(found) > 1 else "one mistake"
        raise ConfigError(f"{path} has {number}.", shown)
    return file


def run_local(file: SweepFile, arguments: argparse.Namespace, outputs: Path, console: Console) -> int:
    """Run the search, show its runs, the best first, and write the page that compares them; 1 if a run failed.

    Raises:
        UserError: the search has no end, its folder holds another, or its first runs all failed.
    """
    for name in ("workers", "count"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name} {value} is out of range.", "Give a whole number >= 1.")
    folder = (arguments.folder or default_folder(outputs, file, arguments.overrides)).absolute()
    sweep = LocalSweep(file, folder, arguments.overrides)
    console.print(f"{file.path.name}: method {file.content['method']}, runs in {folder}", whole_lines=True)
    runs: list[SweepRun] = []
    try:
        show = functools.partial(console.print, whole_lines=True)
        sweep.run(count=arguments.count, workers=arguments.workers, show=show)
    finally:
        runs = sweep.runs()
        if runs:
            for part in sweep_tables(runs, sweep.metric, maximises=sweep.maximises):
                console.print(part, whole_lines=isinstance(part, Text))
    page = _compare(ranked(runs, maximises=sweep.maximises), folder, console)
    print(page or folder)
    return EXIT_FAILED if any(run.status == "failed" for run in runs) else EXIT_FINISHED


def _compare(runs: Sequence[SweepRun], folder: Path, console: Console) -> Path | None:
    """The page that compares the best runs; None where there are none to compare."""
    from manyfit.report.comparison import compare
    from manyfit.report.comparison_page import comparison_page
    from manyfit.report.runs import load_runs

    good = [run for run in runs if run.status == "finished" and run.folder]
    if len(good) < 2:
        return None
    try:
        comparison = compare(load_runs([Path(run.folder or "") for run in good[:MOST_COMPARED]]))
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        page = comparison_page(comparison, f"the best {len(comparison.runs)} of {len(runs)} runs, read {now}")
        page.write(folder / PAGE_NAME)
    except UserError as error:  # the search is over and its runs are there
        console.notice(f"No page that compares the runs was written: {error.message}")
        return None
    return folder / PAGE_NAME
