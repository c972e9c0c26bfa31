"""What happened: the record of one run, its folder, and what it says about the code and the machine."""

import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from manyfit.errors import ConfigError, UserError
from manyfit.files import append_line, remove_quietly, to_json, to_plain, unwritable, write_atomically
from manyfit.masking import mask, mask_text
from manyfit.processes import num_cores

SCHEMA = 1
RECORD_NAME = "record.json"
ROWS_NAME = "epochs.jsonl"
LOCK_NAME = ".lock"
"""Held by the process that works on a run; it stays behind, empty."""
STATUSES = ("running", "finished", "failed", "stopped")
SECTIONS = ("data", "model", "strategy", "batch", "best", "timing", "tracker", "versions", "git", "host")
LATE_SECTIONS = ("swa", "features", "throughput", "verdict", "system", "mistakes", "profile")
"""Sections that a record has only where the run came that far."""
TESTED_VERSIONS = {"tensorflow": "2.21", "keras": "3.15", "wandb": "0.31"}
"""The releases that every guarantee was tested with; the only place that names them in code."""
DISTRIBUTIONS = ("manyfit", "tensorflow", "keras", "wandb", "hydra-core", "omegaconf", "numpy")


class RunRecord:
    """The record of a run: a dict that every change writes to `record.json`, whole or not at all.

    Each epoch is also a line of `epochs.jsonl`. A value that is not finite is written as null; NumPy scalars and
    arrays become plain numbers and lists; secrets in text are masked.

    Attributes:
        folder: The run folder.
        data: The record: the dicts named in `SECTIONS` and, in time, in `LATE_SECTIONS`; `epochs`, `notices` and, of
            a run that has them, `phases`, lists; and single values. Change it through the methods, or call `write`
            afterwards.
    """

    def __init__(self, folder: Path, data: dict[str, Any]):
        self.folder = Path(folder)
        self.data = data
        self._rows_are_written = False

    @classmethod
    def create(cls, folder: Path, /, **sections: Any) -> Self:
        """A new record in an existing `folder`, status `running`; `sections` are its first contents.

        Raises:
            ConfigError: the folder already holds a record.
            TrainingError: the folder cannot be written to.
        """
        data: dict[str, Any] = {
            "schema": SCHEMA,
            "status": "running",
            "started": _now(),
            "ended": None,
            "exit_code": None,
            "error": None,
            "rehearsal": False,
            "command": None,
            "notices": [],
            **{section: {} for section in SECTIONS},
            "attempts": [],
            "epochs": [],
        }
        data.update(mask(to_plain(sections)))
        _begin_attempt(data, epoch=0, step=0)
        path = Path(folder) / RECORD_NAME
        try:
            with path.open("x"):  # one claim at most succeeds when two runs start in one folder
                pass
        except FileExistsError:
            raise _holds_a_run(Path(folder)) from None
        except OSError as error:
            raise unwritable(path, error) from error
        record = cls(folder, data)
        try:
            record.write()
        except UserError:
            remove_quietly(path)
            raise
        return record

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The record of the run in `folder`.

        Raises:
            UserError: there is no record, or it is cut off, not a record, or of another schema.
        """
        path = Path(folder) / RECORD_NAME
        try:
            data = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"{folder} holds no run: there is no {path}.", "Give the folder of a run.") from None
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}.", "Check its permissions.") from error
        except (ValueError, RecursionError) as error:
            reason = str(error).splitlines()[0][:200]
            raise UserError(f"{path} is not readable JSON ({reason}).", "Restore it, or run again.") from error
        _check_shape(path, data)
        return cls(folder, data)

    def go_on(self, epoch: int, step: int, /, **sections: Any) -> None:
        """Begin another attempt at this run after `epoch` whole epochs and `step` steps; later rows are dropped.

        Args:
            sections: What holds from now on: another strategy, other versions, another host.
        """
        last = self.data.setdefault("attempts", [])[-1:]
        if last and last[0].get("status") == "running":
            last[0]["status"] = "killed"  # nobody was left to say how it ended
        self.data["epochs"] = [row for row in self.data["epochs"] if (row.get("epoch") or 0) <= epoch]
        self.data.update(mask(to_plain(sections)), status="running", ended=None, exit_code=None, error=None)
        _begin_attempt(self.data, epoch=epoch, step=step)
        self._rows_are_written = False
        self.write()

    def write(self) -> None:
        """Write `record.json` by replacing it, so that a reader or a crash never meets half a record."""
        write_atomically(self.folder / RECORD_NAME, _encode(self.data))

    def update(self, section: str, /, **values: Any) -> None:
        """Merge `values` into a dict section, and write."""
        self.data.setdefault(section, {}).update(mask(to_plain(values)))
        self.write()

    def add_epoch(self, row: dict[str, Any]) -> None:
        """Append the row of one epoch to the record and to `epochs.jsonl`."""
        plain = to_plain(row)
        path = self.folder / ROWS_NAME
        if not self._rows_are_written:
            # A crash may have left half a row, or a row the record does not have: the record is the truth.
            write_atomically(path, "".join(to_json(known) + "\n" for known in self.data["epochs"]))
        self._rows_are_written = False  # until the line is whole on the disk
        append_line(path, to_json(plain))
        self._rows_are_written = True
        self.data["epochs"].append(plain)
        self.write()

    def set_status(self, status: str, /, **extra: Any) -> None:
        """Set the status and, with it, further values of the record: `set_status("failed", exit_code=1)`."""
        if status not in STATUSES:
            raise ValueError(f"status={status!r} is not one of {', '.join(STATUSES)}.")
        self.data.update(status=status, ended=None if status == "running" else _now())
        for attempt in self.data.get("attempts", [])[-1:]:
            attempt.update(status=status, ended=self.data["ended"], exit_code=extra.get("exit_code"))
        for key, value in mask(to_plain(extra)).items():
            if isinstance(value, dict) and isinstance(self.data.get(key), dict):
                self.data[key].update(value)
            else:
                self.data[key] = value
        self.write()

    def notice(self, text: str) -> None:
        """Add a notice that the user has seen, once, and write."""
        text = mask_text(text)
        if text not in self.data["notices"]:
            self.data["notices"].append(text)
            self.write()


def make_run_folder(explicit: Path | None, outputs: Path, name: str) -> Path:
    """The folder of a new run, made: `explicit` exactly, else `outputs/DATE/TIME_name`, shared with no other run.

    Raises:
        ConfigError: `explicit` already holds something, or the folder cannot be made.
    """
    folder = explicit
    try:
        if explicit is None:
            folder = _make_unique(outputs, re.sub(r"[^\w.+=-]+", "-", name)[:120])
        else:
            explicit.mkdir(parents=True, exist_ok=True)
            check_unused(explicit)
    except OSError as error:
        raise ConfigError(
            f"The run folder {folder or outputs} cannot be made: {error.strerror or error}.",
            "Give hydra.run.dir=PATH, a new or empty folder that you may write to.",
        ) from error
    return Path(folder or outputs).absolute()


def environment() -> dict[str, Any]:
    """The record's `versions`, `git`, `host` and `command`; imports none of the packages it names."""
    import psutil  # only where a run starts: it costs the quick commands 40 ms

    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in DISTRIBUTIONS}},
        "git": _git(Path(__file__).resolve().parent),
        "host": {
            "name": platform.node(),
            "platform": platform.platform(),
            "cpu_count": os.cpu_count(),
            "cpu_usable": num_cores(),
            "memory_bytes": psutil.virtual_memory().total,
        },
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
    }


def untested_versions(versions: dict[str, str | None]) -> list[str]:
    """A line for each library that is another version than those this project is tested with.

    >>> untested_versions({"tensorflow": "2.21.1", "keras": "3.99.0"})
    ['keras 3.99.0 is not a version that manyfit is tested with (3.15): run src/check.py before long work.']
    """
    return [
        f"{name} {found} is not a version that manyfit is tested with ({tested}): run src/check.py before long work."
        for name, tested in TESTED_VERSIONS.items()
        if (found := versions.get(name)) is not None and not f"{found}.".startswith(f"{tested}.")
    ]


def _begin_attempt(data: dict[str, Any], *, epoch: int, step: int) -> None:
    """Note that a process begins to work on the run, `epoch` whole epochs and `step` steps from its start."""
    data["attempts"].append(
        {
            "started": _now(),
            "ended": None,
            "status": "running",
            "exit_code": None,
            "from_epoch": epoch + 1,
            "from_step": step,
            "num_replicas": data.get("strategy", {}).get("num_replicas"),
            "host": data.get("host", {}).get("name"),
            "command": data.get("command"),
        }
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(folder: Path) -> dict[str, Any]:
    """Commit and state of the repository that tracks `folder`; nulls where none does."""

    def ask(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        # A git hook sets GIT_DIR and the like, which would name another repository.
        surroundings = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        answer = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=10, check=True)
        return answer.stdout.strip()

    try:
        if not ask("ls-files", "."):  # an installed copy inside somebody else's repository
            return {"commit": None, "dirty": None}
        return {"commit": ask("rev-parse", "HEAD"), "dirty": bool(ask("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}


def _make_unique(outputs: Path, name: str) -> Path:
    now = datetime.now()
    parent = outputs / now.strftime("%Y-%m-%d")
    parent.mkdir(parents=True, exist_ok=True)
    attempt = 1
    while True:
        suffix = f"-{attempt}" if attempt > 1 else ""
        folder = parent / f"{now.strftime('%H-%M-%S')}_{name}{suffix}"
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            attempt += 1


def check_unused(folder: Path) -> None:
    """Raise a ConfigError where `folder` holds anything; one that is not there yet is fine."""
    try:
        holds_a_run = (folder / RECORD_NAME).exists()
        found = sorted(entry.name for entry in folder.iterdir() if entry.name != LOCK_NAME)
    except OSError:
        return  # making it, or writing into it, says what is wrong
    if holds_a_run:
        raise _holds_a_run(folder)
    if found:
        raise ConfigError(
            f"The run folder {folder} is not empty: it holds {', '.join(found[:3])}{' ...' if found[3:] else ''}.",
            "Give hydra.run.dir=PATH, a new or empty folder.",
        )


def _holds_a_run(folder: Path) -> ConfigError:
    return ConfigError(
        f"{folder} already holds a run, which is never overwritten.",
        "Give another hydra.run.dir=PATH, or leave it out for a new folder under outputs/.",
    )


def _check_shape(path: Path, data: Any) -> None:
    """Refuse JSON that is no record, so that readers may trust the types of the sections."""
    if not isinstance(data, dict) or "schema" not in data:
        raise UserError(f"{path} is not the record of a run.", "Give the folder of a run.")
    if data["schema"] != SCHEMA:
        raise UserError(
            f"{path} has schema {str(data['schema'])[:40]}, expected {SCHEMA}.",
            "Read it with the version of this project that wrote it.",
        )
    expected = {section: dict for section in SECTIONS} | {"epochs": list, "notices": list, "status": str}
    expected |= {section: dict for section in LATE_SECTIONS if section in data}
    wrong = [name for name, kind in expected.items() if not isinstance(data.get(name), kind)]
    if not wrong:
        wrong += [] if all(isinstance(row, dict) for row in data["epochs"]) else ["epochs"]
        wrong += [] if data["status"] in STATUSES else ["status"]
        attempts = data.get("attempts", [])  # a record of an older version has none
        wrong += [] if _are_dicts(attempts) else ["attempts"]
        wrong += [] if _are_dicts(data.get("phases", [])) else ["phases"]  # only where the run has some
    if wrong:
        raise UserError(f"{path} lacks or garbles: {', '.join(wrong)}.", "Restore it, or run again.")


def _are_dicts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def _encode(data: dict[str, Any]) -> str:
    """The record as JSON that a person can read: indented, but an epoch a line."""
    parts = []
    for key, value in data.items():
        if key == "epochs" and value:
            text = "[\n" + ",\n".join(f"    {to_json(row)}" for row in value) + "\n  ]"
        else:
            text = to_json(value, indent=2).replace("\n", "\n  ")
        parts.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
