"""What `src/predict.py` does: finds the pictures, streams them through the model, writes what was asked for."""

import contextlib
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from manyfit.console import Console, plural
from manyfit.data.picture_files import find_pictures
from manyfit.errors import ConfigError, UserError
from manyfit.peers import Peers, alone
from manyfit.processes import ending_on_signals
from manyfit.quiet import quiet_tensorflow
from manyfit.report.prediction import (
    Explained,
    Overview,
    Shown,
    class_table,
    csv_files,
    prediction_line,
    prediction_page,
    unreadable_lines,
)
from manyfit.trained_run import TrainedRun
from manyfit.workers import OnLost

_SECONDS_BETWEEN_LINES = 10.0


def run_command(arguments: Namespace, console: Console, peers: Peers | None = None) -> Overview:
    """Predict, show and write; the overview of what came out. Of several workers the chief shows and writes.

    Raises:
        UserError: no such run, model or picture, a file that cannot be written, or no file that can be read.
    """
    peers = peers or alone()
    for name in ("csv", "html"):
        check_writable(f"--{name}", getattr(arguments, name))
    if arguments.explain and arguments.html is None:
        raise ConfigError("--explain draws on the page, and --html is missing.", "Give --html FILE as well.")
    if arguments.thumbnails < 2:
        raise ConfigError(f"--thumbnails {arguments.thumbnails} is less than 2.", "Give the most that the page shows.")
    run = TrainedRun.load(arguments.run)
    paths = find_pictures(arguments.pictures)
    with quiet_tensorflow():
        from manyfit.prediction import Predictor, thumbnail  # only here: TensorFlow takes its ten seconds
        from manyfit.prediction_workers import stream_of_all

        peers.watch(OnLost(console, peers))
        predictor = Predictor(run, replicas=arguments.replicas, device=arguments.device)
    overview = Overview(run.class_names, most_pictures=arguments.thumbnails)
    # The JPEG library remarks on damaged files, which are reported below; on a signal nothing half written stays.
    with quiet_tensorflow(), ending_on_signals():
        stream = stream_of_all(predictor, paths, peers)
        if not peers.is_chief:
            for _ in stream:
                pass
            return overview
        _stream(stream, len(paths), overview, arguments, console)
    if run.rehearsal:
        console.notice("the model was trained on pictures drawn by code (a rehearsal): it says nothing about photos.")
    console.print(overview.sentence(), *([class_table(overview)] if overview.num_predicted else []))
    for line in unreadable_lines(overview):
        console.print(line, whole_lines=True)
    if arguments.csv is not None:
        console.print(str(arguments.csv), whole_lines=True)
        if overview.num_unreadable:
            console.print(str(arguments.csv.with_suffix(".unreadable.csv")), whole_lines=True)
    if arguments.html is not None:
        with quiet_tensorflow():
            explained = _explain(predictor, overview, console) if arguments.explain else None
            page = prediction_page(
                overview,
                title=f"Predictions of {run.name}",
                subtitle=f"{len(paths):,} files, read {datetime.now(UTC).strftime('%Y-%m-%d %H:%M UTC')}",
                notes=_notes(run),
                thumbnail=thumbnail,
                explained=explained,
            )
        page.write(arguments.html)
        console.print(str(arguments.html), whole_lines=True)
    if not overview.num_predicted:
        raise UserError(
            f"None of the {len(paths):,} files could be read as a picture.", "Give JPEG, PNG, GIF, BMP or WebP files."
        )
    return overview


def check_writable(flag: str, path: Path | None) -> None:
    """Refuse a file that could not be written, before anything is read.

    Raises:
        ConfigError: it is a folder, or lies in none.
    """
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        said = "is a folder" if path.is_dir() else "is in a folder that does not exist"
        raise ConfigError(f"{flag} {path} {said}.", "Give the path of a file in a folder that exists.")


def _stream(stream, num_files: int, overview: Overview, arguments: Namespace, console: Console) -> None:
    from manyfit.prediction import Unreadable

    names = overview.class_names
    with contextlib.ExitStack() as stack:
        write, write_unreadable = None, None
        if arguments.csv is not None:
            write, write_unreadable = stack.enter_context(csv_files(arguments.csv, names))
        to_screen = arguments.csv is None and arguments.html is None
        advance = stack.enter_context(_progress(num_files, console, silent=to_screen))
        for done in stream:
            advance()
            if isinstance(done, Unreadable):
                overview.add_unreadable(done.path, done.reason)
                if write_unreadable is not None:
                    write_unreadable(done.path, done.reason)
                continue
            best = int(done.probabilities.argmax())
            shown = Shown(done.path, names[best], float(done.probabilities[best]))
            overview.add(shown)
            if write is not None:
                write(shown, done.probabilities)
            if to_screen:
                console.print(prediction_line(shown), whole_lines=True)


def _explain(predictor, overview: Overview, console: Console) -> Explained:
    """What speaks for the label of each picture that the page shows."""
    from manyfit.explain import METHOD, Explainer, overlays

    explainer = Explainer(predictor.network)
    if explainer.why_not is not None:
        console.notice(f"--explain shows nothing: {explainer.why_not}.")
        return Explained(f"Nothing can be shown: {explainer.why_not}.")
    most, least = overview.kept
    asked = [(one.path, overview.class_names.index(one.label)) for one in (*most, *least)]
    found: dict[str, str] = {}
    with _progress(len(asked), console, silent=False, doing="explaining") as advance:
        for (path, _), drawn in zip(asked, overlays(explainer, asked), strict=True):
            advance()
            if drawn is not None:
                found[path] = drawn
    height, width = explainer.shape
    none = len(asked) - len(found)
    text = (
        "The brighter a place, the more it speaks for the label that the picture was given. Found by "
        f"{METHOD}; here the map is that of {explainer.layer}, {height} x {width} places."
    )
    return Explained(text + (f" In {plural(none, 'picture')} no place speaks for it." if none else ""), found)


@contextlib.contextmanager
def _progress(total: int, console: Console, *, silent: bool, doing: str = "predicting") -> Iterator[Callable[[], None]]:
    """A function to call after each picture: it moves a bar on a terminal, and makes a line now and then elsewhere."""
    if silent:
        yield lambda: None
        return
    if console.live:
        columns = (TextColumn(doing), BarColumn(bar_width=None), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console.rich, expand=True, transient=True) as bar:
            task = bar.add_task("", total=total)
            yield lambda: bar.advance(task)
        return
    started = said = time.monotonic()
    done = 0

    def advance() -> None:
        nonlocal done, said
        done += 1
        now = time.monotonic()
        if now - said >= _SECONDS_BETWEEN_LINES:
            said = now
            console.print(f"{done:,} of {total:,} files, {done / (now - started):,.0f} a second", whole_lines=True)

    yield advance


def _notes(run: TrainedRun) -> list[str]:
    best = run.record.get("best") or {}
    accuracy = best.get("val_accuracy")
    known = f", validation accuracy {accuracy:.4f}" if isinstance(accuracy, int | float) else ""
    notes = [f"Model: {run.record['model'].get('name')} of epoch {best.get('epoch')}{known}."]
    if run.rehearsal:
        notes.append("A rehearsal: the model was trained on pictures drawn by code. It says nothing about photos.")
    return notes
