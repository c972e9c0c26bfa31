"""What is in a run folder, in words: how it went, what it was, what lies there, and what can be done next."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyfit.console import header_rows, plural, summary_rows
from manyfit.errors import UserError
from manyfit.record import LOCK_NAME, RunRecord

CHECKPOINTS = "checkpoints"
_FILES = {
    "model.keras": "the model of the best epoch, plain Keras",
    "config.yaml": "what was asked",
    "record.json": "what happened",
    "epochs.jsonl": "the row of each epoch",
    "manifest.json": "the files of the data, used and skipped",
    "system.jsonl": "samples of GPUs, CPU, memory and disk",
    "log.txt": "what was on the screen",
    CHECKPOINTS: "the exact state of the training",
    "wandb": "what W&B keeps, for `wandb sync`",
    "tensorboard": "event files for TensorBoard",
    "export": "exported models",
    "profile": "the trace of some steps, for ui.perfetto.dev and xprof",
}


@dataclass(frozen=True)
class Sheet:
    """A run folder in words.

    Args:
        title: Folder and status.
        sections: Heading and rows of each part; a row is a name and a value.
        notices: What the run told its user.
        commands: What can be done next: a purpose and the line that does it.
    """

    title: str
    sections: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    notices: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "title": self.title,
            "sections": {heading: dict(rows) for heading, rows in self.sections},
            "notices": list(self.notices),
            "commands": dict(self.commands),
        }


def sheet(folder: Path, checkpoints: Sequence[str], in_use: bool | None = None) -> Sheet:
    """What lies in a run folder.

    Args:
        folder: The run folder.
        checkpoints: How far each checkpoint is, in words, the furthest first.
        in_use: Whether a process works on it now; None where that cannot be told.

    Raises:
        UserError: there is no run.
    """
    record = RunRecord.load(folder).data
    status = str(record["status"])
    sections = [
        ("how it went", _how_it_went(record, in_use)),
        ("attempts", _attempts(record)),
        ("what ran", tuple(header_rows(record)) + _versions(record)),
        ("result", tuple(summary_rows(record))),
        ("in the folder", _contents(folder)),
        ("checkpoints", tuple((f"{index}", where) for index, where in enumerate(checkpoints, start=1))),
    ]
    return Sheet(
        f"{Path(folder).absolute().name}: {status}{', a rehearsal' if record.get('rehearsal') else ''}",
        tuple((heading, rows) for heading, rows in sections if rows),
        tuple(str(notice) for notice in record["notices"]),
        tuple(_commands(Path(folder), record, bool(checkpoints))),
    )


def _how_it_went(record: Mapping[str, Any], in_use: bool | None) -> tuple[tuple[str, str], ...]:
    status = str(record["status"])
    if status == "running" and in_use is False:
        status = "running by its record, but no process is at it: it was killed"
    rows = [("status", status), ("started", _moment(record.get("started"))), ("ended", _moment(record.get("ended")))]
    if record.get("exit_code") is not None:
        rows.append(("exit code", str(record["exit_code"])))
    if record.get("error"):
        rows.append(("error", str(record["error"])))
    rows.append(("command", str(record.get("command") or "-")))
    if record.get("rehearsal"):
        rows.append(("rehearsal", "yes: its pictures were drawn by code; the numbers say nothing about real data"))
    return tuple(rows)


def _attempts(record: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    attempts = record.get("attempts") or []
    if len(attempts) < 2:
        return ()
    rows = []
    for index, attempt in enumerate(attempts, start=1):
        parts = [
            f"{attempt.get('status') or '?'} {_moment(attempt.get('started'))} to {_moment(attempt.get('ended'))}",
            f"from epoch {attempt.get('from_epoch', '?')}, step {attempt.get('from_step', '?')}",
            plural(attempt.get("num_replicas"), "replica"),
            f"on {attempt['host']}" if attempt.get("host") else "",
        ]
        rows.append((str(index), ", ".join(part for part in parts if part)))
    return tuple(rows)


def _versions(record: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items() if version)
    git, host = record["git"], record["host"]
    commit = f"{git['commit'][:12]}{', with changes' if git.get('dirty') else ''}" if git.get("commit") else "-"
    return (("versions", versions or "-"), ("commit", commit), ("host", str(host.get("name") or "-")))


def _contents(folder: Path) -> tuple[tuple[str, str], ...]:
    rows = []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}.", "Check its permissions.") from error
    for entry in entries:
        if entry.name == LOCK_NAME:
            continue
        size, num_files = _size(entry)
        many = f", {plural(num_files, 'file')}" if entry.is_dir() else ""
        what = f"  {_FILES[entry.name]}" if entry.name in _FILES else ""
        rows.append((entry.name, f"{in_bytes(size)}{many}{what}"))
    total = sum(_size(entry)[0] for entry in entries)
    return (*rows, ("in all", in_bytes(total)))


def _size(entry: os.DirEntry) -> tuple[int, int]:
    """Bytes and number of the files in an entry."""
    if not entry.is_dir(follow_symlinks=False):
        return entry.stat(follow_symlinks=False).st_size, 1
    found = [os.path.join(here, name) for here, _, names in os.walk(entry.path) for name in names]
    return sum(os.lstat(path).st_size for path in found), len(found)


def in_bytes(number: int) -> str:
    """A size for people.

    >>> in_bytes(900), in_bytes(12_300), in_bytes(4_200_000)
    ('900 B', '12.3 kB', '4.2 MB')
    """
    if number < 1000:
        return f"{number} B"
    for unit, size in (("kB", 1e3), ("MB", 1e6)):
        if number < 999.95 * size:
            return f"{number / size:,.1f} {unit}"
    return f"{number / 1e9:,.1f} GB"


def _moment(text: Any) -> str:
    return str(text).replace("T", " ").removesuffix("+00:00") + " UTC" if text else "-"


def _commands(folder: Path, record: Mapping[str, Any], has_checkpoint: bool) -> list[tuple[str, str]]:
    run = shlex.quote(str(folder))
    commands = []
    if record["status"] != "finished":
        start = "" if has_checkpoint else " (from its start: there is no checkpoint)"
        commands.append((f"go on with it{start}", f"python src/train.py resume={run}"))
    elif record.get("phases"):
        line = f"python src/train.py resume={run} 'phases=[...]' 'resume.allow=[phases]'"
        commands.append(("train it for more epochs, or another phase", line))
    else:
        epochs = len(record["epochs"]) * 2 or 1
        line = f"python src/train.py resume={run} epochs={epochs} 'resume.allow=[epochs]'"
        commands.append(("train it for more epochs", line))
    commands.append(("compare it with others", f"python src/compare.py {run} OTHER_RUN --html page.html"))
    if sync := (record["tracker"] or {}).get("sync_command"):
        commands.append(("upload it to W&B", str(sync)))
    if (folder / "model.keras").exists():
        commands += [
            ("evaluate its model", f"python src/evaluate.py {run} [--data-root PATH]"),
            ("label pictures", f"python src/predict.py {run} PICTURES --csv labels.csv --html labels.html"),
            ("export its model", f"python src/export.py {run} --format keras|saved_model|tflite|onnx"),
        ]
    return commands
