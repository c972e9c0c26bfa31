"""What the user reads: header, notices, lines, closing table and errors, on the screen and in the run's `log.txt`."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import IO, Any

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from manyfit import phases
from manyfit.errors import UserError
from manyfit.masking import mask_text
from manyfit.report.profile import sentence as profile_sentence
from manyfit.system.statistics import gpus_in_words

LOG_WIDTH = 100
REHEARSAL = (
    "these pictures are drawn by code, not photographed. The numbers show that everything works; they say nothing "
    "about real data. For the real thing, give data.root=PATH or data.source=tfds."
)


class Console:
    """The screen and the log file of one process.

    Args:
        stdout: Where lines go; the process's own standard output by default.
        stderr: Where errors go.
        width: Columns; None to ask the terminal (80 when piped).
        live: Whether bars that move may be drawn; None to decide: a real terminal, and not one of a CI job.
    """

    def __init__(
        self,
        *,
        stdout: IO[str] | None = None,
        stderr: IO[str] | None = None,
        width: int | None = None,
        live: bool | None = None,
    ):
        for stream in (stdout or sys.stdout, stderr or sys.stderr):
            _replace_what_the_encoding_lacks(stream)
        self.rich = RichConsole(file=stdout, width=width, highlight=False, markup=False, emoji=False)
        self.rich_stderr = RichConsole(
            file=stderr, stderr=stderr is None, width=width, highlight=False, markup=False, emoji=False
        )
        self.live = _may_draw(self.rich) if live is None else live
        self.sinks: list[Callable[[str], None]] = []
        self._log_path: Path | None = None
        self._early_lines: list[str] = []

    # --- the log file ---------------------------------------------------------------------------------------------

    def tee(self, path: Path) -> None:
        """Write every line to `path` as well, with its time, including the lines shown before this call.

        A file that cannot be written is reported once and given up; it never ends a run.
        """
        self._log_path = Path(path)
        early, self._early_lines = self._early_lines, []
        self._append(early)

    def log(self, text: str) -> None:
        """Write `text` to the log file and the sinks alone: what is too long for the screen, such as a traceback."""
        text = mask_text(text)
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")[:19]
        lines = [line.rstrip() for line in text.rstrip("\n").splitlines()]
        self._append([f"{now}  {line}".rstrip() for line in lines])
        for sink in self.sinks:
            sink("\n".join(lines))

    def _append(self, lines: list[str]) -> None:
        if self._log_path is None:
            self._early_lines += lines
            return
        try:
            with self._log_path.open("a", encoding="utf-8") as log_file:
                log_file.writelines(f"{line}\n" for line in lines)
        except OSError as error:
            path, self._log_path = self._log_path, None
            self.notice(f"{path} cannot be written ({error.strerror}); the run goes on without it.")
            self._early_lines = []

    # --- what is shown --------------------------------------------------------------------------------------------

    def print(self, *renderables: RenderableType, whole_lines: bool = False, style: str | None = None) -> None:
        """Show something, and log it as plain text.

        `whole_lines` leaves the breaking of long lines to the terminal, so that paths and commands can be copied.
        """
        for renderable in renderables:
            self.rich.print(renderable, soft_wrap=whole_lines, style=style)
            self.log(as_text(renderable, whole_lines=whole_lines))

    def notice(self, text: str) -> None:
        """Show what the user should know but did not ask for: a default taken, a thing that could not be had."""
        self._stand_out("notice", text, "yellow")

    def rehearsal(self) -> None:
        """Say that the data were drawn: shown at the start and in the closing summary."""
        self._stand_out("REHEARSAL", REHEARSAL, "bold yellow")

    def _stand_out(self, title: str, text: str, style: str) -> None:
        line = Text(f"{title}: {text}")
        if self.rich.is_terminal:
            width = min(LOG_WIDTH, self.rich.width)
            self.rich.print(Panel(Text(text), title=title, title_align="left", width=width, style=style))
        else:
            self.rich.print(line, soft_wrap=True)
        self.log(line.plain)

    def error(self, error: UserError) -> None:
        """Show on stderr what was received, what was expected and how to go on; no traceback."""
        message = Text.assemble(("error: ", "bold red"), error.message)
        self.rich_stderr.print(message, soft_wrap=not self.rich_stderr.is_terminal)
        if error.remedy:
            self.rich_stderr.print(Text(error.remedy), soft_wrap=not self.rich_stderr.is_terminal)
        self.log(f"error: {error.message}\n{error.remedy}")

    def header(self, record: Mapping[str, Any], *, folder: Path | str, facts: Mapping[str, str] | None = None) -> None:
        """Show what is about to run.

        Args:
            record: What `record.json` holds; sections that are missing are left out.
            folder: The run folder.
            facts: Further rows, such as precision and optimizer.
        """
        self._table("manyfit", [*header_rows(record), *(facts or {}).items()])
        self.print(Text(f"run folder: {folder}"), whole_lines=True)
        if record.get("rehearsal"):
            self.rehearsal()

    def summary(self, record: Mapping[str, Any], *, folder: Path | str, sync_command: str | None = None) -> None:
        """Show what came out, where it is, and the line that uploads an offline run."""
        self._table(f"run {record.get('status', 'finished')}", summary_rows(record))
        if record.get("rehearsal"):
            self.rehearsal()
        url = (record.get("tracker") or {}).get("url")
        if url:
            self.print(Text(f"W&B: {url}"), whole_lines=True)
        if sync_command:
            self.print(Text("upload to W&B:"), Text(f"  {sync_command}"), whole_lines=True)
        self.print(Text(f"run folder: {folder}"), whole_lines=True)

    def _table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in rows:
            grid.add_row(Text(name), Text(value))
        framed = Panel(grid, title=title, title_align="left", border_style="cyan", expand=False)
        plain = [Text(f"--- {title} ---"), *(Text(f"{name}: {value}") for name, value in rows)]
        if self.rich.is_terminal:
            self.rich.print(framed)
        else:
            for line in plain:
                self.rich.print(line, soft_wrap=True)
        self.log("\n".join(line.plain for line in plain))


def as_text(renderable: RenderableType, *, whole_lines: bool = False) -> str:
    """Anything that rich can show, as plain lines without control codes."""
    if isinstance(renderable, Text):
        return renderable.plain
    buffer = StringIO()
    plain = RichConsole(file=buffer, width=LOG_WIDTH, color_system=None, force_terminal=False, markup=False)
    plain.print(renderable, soft_wrap=whole_lines)
    return buffer.getvalue()


def _may_draw(rich: RichConsole) -> bool:
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false")
    return rich.is_terminal and not rich.is_dumb_terminal and not in_ci


def _replace_what_the_encoding_lacks(stream: Any) -> None:
    # A class name in Japanese must not end a run whose terminal speaks Latin-1.
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "")
    if not encoding.startswith("utf") and hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")


# --- the rows of the two tables -----------------------------------------------------------------------------------


def count(number: Any) -> str:
    """A whole number with its thousands apart; `?` where it is not known."""
    return f"{number:,}" if isinstance(number, int) else "?"


def decimal(number: Any, digits: int = 4) -> str:
    """A number with `digits` decimals; `-` where it is not known."""
    return f"{number:,.{digits}f}" if isinstance(number, int | float) else "-"


def seconds(number: Any) -> str:
    """A duration for people.

    >>> seconds(4.25), seconds(75.0), seconds(3725.0), seconds(None)
    ('4.2 s', '1 min 15 s', '1 h 2 min', '-')
    """
    if not isinstance(number, int | float):
        return "-"
    if round(number, 1) < 60:
        return f"{number:.1f} s"
    whole = round(number)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def plural(number: Any, noun: str) -> str:
    """`1 replica`, `4 replicas`, `2 classes`."""
    if number == 1:
        return f"1 {noun}"
    return f"{count(number)} {noun}{'es' if noun.endswith('s') else 's'}"


def _some(names: Sequence[str], limit: int = 10) -> str:
    if len(names) <= limit:
        return ", ".join(map(str, names))
    return f"{', '.join(map(str, names[: limit - 1]))} ... {names[-1]}"


def header_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each row of the header."""
    rows = []
    if data := record.get("data"):
        skipped = f", {count(data['num_skipped'])} skipped" if data.get("num_skipped") else ""
        source = f" from {data['source']}" if data.get("source") not in (None, data.get("name")) else ""
        rows.append(("data", f"{data.get('name')}{source}"))
        split = f"{count(data.get('num_train'))} train, {count(data.get('num_validation'))} validation"
        rows.append(("examples", split + skipped))
        if names := data.get("class_names"):
            rows.append(("classes", f"{len(names)} ({_some(names)})"))
    if model := record.get("model"):
        weights = model.get("weights")
        rows.append(("model", f"{model.get('name')}, weights {'none' if weights is None else weights}"))
        total, trained = model.get("num_parameters"), model.get("num_trainable_parameters")
        share = "all trained" if total == trained else f"of which {count(trained)} are trained"
        rows.append(("parameters", f"{count(total)}, {share}"))
    if strategy := record.get("strategy"):
        rows.append(("strategy", f"{strategy.get('name')}, {plural(strategy.get('num_replicas'), 'replica')}"))
        devices = [str(device).rpartition("device:")[2] or str(device) for device in strategy.get("devices") or ()]
        rows.append(("devices", ", ".join(devices) or "?"))
    if batch := record.get("batch"):
        per_replica = f"{count(batch.get('per_replica_batch_size'))} a replica"
        steps = plural(batch.get("steps_per_epoch"), "step")
        rows.append(("batch", f"{count(batch.get('global_batch_size'))} in all, {per_replica}, {steps} an epoch"))
    if tracker := record.get("tracker"):
        where = tracker.get("url") or tracker.get("path")
        rows.append(("tracker", f"{tracker.get('mode')}" + (f", {where}" if where else "")))
    return rows


def summary_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of each row of the closing table."""
    epochs = record.get("epochs") or []
    best, timing = record.get("best") or {}, record.get("timing") or {}
    rows = []
    if best.get("epoch") is not None:
        mean = f", the mean of the last {averaged}" if (averaged := best.get("averaged_epochs")) else ""
        rows.append(("best epoch", f"{best['epoch']} of {len(epochs)}{mean}"))
        rows.append(("val accuracy", decimal(best.get("val_accuracy"))))
        rows.append(("val loss", decimal(best.get("val_loss"))))
        more = [name for name in best if name.startswith("val_") and name not in ("val_accuracy", "val_loss")]
        rows += [(name.replace("_", " "), decimal(best[name])) for name in more]
    elif epochs:
        rows.append(("epochs", f"{len(epochs)}, none of them counts as best"))
    else:
        rows.append(("epochs", "none was finished"))
    rows += phases.summary_rows(record)
    speed = mean_images_per_second(epochs)
    rows.append(("images/s", decimal(speed, 1) if speed else f"- ({why_no_speed(record)})"))
    throughput = record.get("throughput") or {}
    if throughput.get("step_milliseconds_p50") is not None:
        p50, p95 = (decimal(throughput.get(f"step_milliseconds_{name}"), 2) for name in ("p50", "p95"))
        rows.append(("step", f"{p50} ms (95 % within {p95} ms)"))
    if gpus := gpus_in_words(record.get("system") or {}):
        rows.append(("GPUs", gpus))
    if sentence := (record.get("verdict") or {}).get("sentence"):
        rows.append(("verdict", str(sentence)))
    if profile := record.get("profile"):
        rows.append(("profile", profile_sentence(profile)))
    apart = [
        f"{label} {seconds(timing[key])}"
        for key, label in (("startup_seconds", "start-up"), ("first_step_seconds", "first step"))
        if timing.get(key) is not None
    ]
    total = seconds(timing.get("total_seconds"))
    rows.append(("time", f"{total} ({', '.join(apart)})" if apart else total))
    return rows


def why_no_speed(record: Mapping[str, Any]) -> str:
    """Why a run that trained has no speed."""
    profiled = record.get("profile") and len(record.get("epochs") or ()) == 1
    return "its only epoch was profiled" if profiled else "too short to measure without its warm-up"


def mean_images_per_second(epochs: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean over the epochs after the first, or the first alone where there is no other; None if unknown.

    The harmonic mean, as each epoch trains on the same number of examples.
    """
    rates = [row.get("images_per_second") for row in epochs]
    known = [rate for rate in (rates[1:] if any(rates[1:]) else rates) if rate]
    return len(known) / sum(1 / rate for rate in known) if known else None
