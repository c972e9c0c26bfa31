"""What `src/compare.py` does: reads the runs, shows the comparison, writes the files that were asked for."""

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from manyfit.console import Console
from manyfit.errors import ConfigError
from manyfit.files import to_json, write_atomically
from manyfit.record import environment
from manyfit.report.comparison import Comparison, compare
from manyfit.report.comparison_json import as_dict
from manyfit.report.comparison_page import comparison_page
from manyfit.report.comparison_text import markdown, terminal
from manyfit.report.runs import load_runs


def run_command(arguments: argparse.Namespace, console: Console) -> Comparison:
    """Compare, show and write; the comparison.

    Raises:
        UserError: a folder that holds no run, a value that is none, a file that cannot be written.
    """
    _check_files(arguments)
    folders = list(arguments.runs)
    if arguments.baseline is not None and arguments.baseline.resolve() not in {one.resolve() for one in folders}:
        folders.insert(0, arguments.baseline)
    runs = load_runs(folders)
    baseline = None
    if arguments.baseline is not None:
        baseline = next(run for run in runs if run.folder.resolve() == arguments.baseline.resolve())
    comparison = compare(runs, baseline=baseline, target=arguments.target, price=_price(arguments))
    for run in runs:
        for problem in run.problems:
            console.notice(f"{run.name}: {problem}.")
    console.print(*terminal(comparison, console.rich.width))
    _write(arguments, comparison, console)
    if arguments.wandb:
        _to_wandb(arguments, comparison, console)
    return comparison


def _check_files(arguments: argparse.Namespace) -> None:
    """Refuse what could not be written, before anything is read."""
    for name in ("html", "markdown", "json"):
        path: Path | None = getattr(arguments, name)
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            said = "is a folder" if path.is_dir() else "is in a folder that does not exist"
            raise ConfigError(f"--{name} {path} {said}.", "Give the path of a file in a folder that exists.")
    if arguments.png is not None and arguments.png.exists() and not arguments.png.is_dir():
        raise ConfigError(f"--png {arguments.png} is a file.", "Give a folder; it is made where it does not exist.")


def _price(arguments: argparse.Namespace) -> Mapping[str, Any]:
    return {"price_per_hour": arguments.price, "per": arguments.per, "currency": arguments.currency}


def _write(arguments: argparse.Namespace, comparison: Comparison, console: Console) -> None:
    written: list[Path] = []
    if arguments.json is not None:
        write_atomically(arguments.json, to_json(as_dict(comparison), indent=2) + "\n")
        written.append(arguments.json)
    if arguments.markdown is not None:
        write_atomically(arguments.markdown, markdown(comparison))
        written.append(arguments.markdown)
    if arguments.html is not None or arguments.png is not None:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        page = comparison_page(comparison, f"{len(comparison.runs)} runs, read {now}")
        if arguments.html is not None:
            page.write(arguments.html)
            written.append(arguments.html)
        if arguments.png is not None:
            from manyfit.report.images import write_images  # only where asked for: it starts a browser

            written += write_images(page, arguments.png)
    for path in written:
        console.print(str(path), whole_lines=True)


def _to_wandb(arguments: argparse.Namespace, comparison: Comparison, console: Console) -> None:
    """Save the view and the report, or write beside the page what they would be."""
    from manyfit.report.dashboard import publish  # only where asked for: it takes seconds
    from manyfit.report.dashboard_panels import Dashboard

    beside = arguments.html or arguments.markdown or arguments.json or Path("comparison")
    title = f"Comparison: {', '.join(run.name for run in comparison.runs)}"
    shown = Dashboard(title, comparison.runs, markdown(comparison), None, environment()["command"])
    for line in publish(shown, beside.absolute().with_suffix(".wandb.json"), show=console.print).says:
        console.print(line, whole_lines=True)
