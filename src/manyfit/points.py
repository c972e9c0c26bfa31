"""One training of many: what is asked of it, its place on disk, and what came of it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyfit.errors import ConfigError, UserError
from manyfit.files import to_json, write_atomically
from manyfit.killed import close_record, describe
from manyfit.record import RECORD_NAME, RunRecord

POINT_NAME = "point.json"
KEPT, FINISHED, STOPPED, FAILED = "kept", "finished", "stopped", "failed"


@dataclass(frozen=True)
class Point:
    """One training of a study.

    Args:
        name: Unique in the study; becomes the name of its folder.
        overrides: What is asked of it, as on the command line.
        repeat: Which time, counted from 1.
    """

    name: str
    overrides: tuple[str, ...] = ()
    repeat: int = 1

    @property
    def label(self) -> str:
        """The name of its folder."""
        plain = re.sub(r"[^\w.+=-]+", "-", self.name).strip("-.") or "point"
        return plain if self.repeat == 1 else f"{plain}.{self.repeat}"


@dataclass(frozen=True)
class Result:
    """What came of a point.

    Args:
        status: `finished`, `failed`, `stopped` (early, by the study), or `kept`: finished or stopped in an earlier
            start of the study.
        folder: The run folder.
        log: What the process wrote.
        record: The run's record; None where there is none.
        exit_code: Of the process; negative for the signal that ended it.
        seconds: From its start to its end.
        error: Why it failed, in a line.
        stopped: Why the study stopped it early; None if it did not.
    """

    point: Point
    status: str
    folder: Path
    log: Path
    record: dict[str, Any] | None = None
    exit_code: int | None = None
    seconds: float | None = None
    error: str | None = None
    stopped: str | None = None

    @property
    def succeeded(self) -> bool:
        """Whether it finished, or was stopped as not worth finishing, now or earlier."""
        return self.status in (KEPT, FINISHED, STOPPED)


# --- on disk ---------------------------------------------------------------------------------------------------------


def next_run(point: Point, folder: Path) -> Path:
    """The folder of a point's next attempt."""
    begun = len(attempts(folder / point.label))
    return folder / point.label / (f"run-{begun + 1}" if begun else "run")


def claim(point: Point, folder: Path) -> None:
    """Note what is asked of a point; refuse where its folder belongs to something else."""
    path = folder / point.label / POINT_NAME
    asked = {"name": point.name, "overrides": list(point.overrides), "repeat": point.repeat}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be used: {error}.", "Give another folder for the study.") from error
    if known is None:
        write_atomically(path, to_json(asked, indent=2) + "\n")
    elif known != asked:
        raise ConfigError(
            f"{path.parent} belongs to another study: it was asked {' '.join(known.get('overrides', []))}, now "
            f"{' '.join(point.overrides)}.",
            "Give another folder, or ask for the same as before to go on with it.",
        )


def attempts(folder: Path) -> list[Path]:
    """The run folders of a point that were begun, the last one first."""
    logs = [path for path in folder.glob("run*.txt") if re.fullmatch(r"run(-\d+)?", path.stem)]
    return sorted((path.with_suffix("") for path in logs), key=lambda path: (len(path.name), path.name), reverse=True)


def log_of(run: Path) -> Path:
    """What the process of a run writes."""
    return run.with_name(f"{run.name}.txt")


def outcome_of(run: Path) -> Path:
    """How the process of a run ended: `exit_code`, `seconds`."""
    return run.with_name(f"{run.name}.json")


def _record(run: Path) -> dict[str, Any] | None:
    if not (run / RECORD_NAME).exists():
        return None
    try:
        return RunRecord.load(run).data
    except UserError:
        return None


def kept_result(point: Point, folder: Path) -> Result | None:
    """The result of an attempt that finished or was stopped early: its record or its exit code says so."""
    for run in attempts(folder / point.label):
        record = _record(run)
        try:
            outcome = json.loads(outcome_of(run).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            outcome = {}
        stopped = outcome.get("stopped")
        good = outcome.get("exit_code") == 0 if record is None else record["status"] == "finished"
        if good or stopped:
            code, seconds = 0 if good else outcome.get("exit_code"), outcome.get("seconds")
            stopped = None if good else stopped
            return Result(
                point, KEPT, run, log_of(run), record=record, exit_code=code, seconds=seconds, stopped=stopped
            )
    return None


def _error(code: int, record: dict[str, Any] | None, log: Path) -> str:
    """The line that says best why a point failed."""
    if record is not None and record.get("error"):
        return str(record["error"]).splitlines()[0]
    return describe(-code) if code < 0 else _said(log) or f"exit code {code}"


def _said(log: Path) -> str | None:
    """The message of a process that was refused, else the last line that it wrote."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[1:]
    except OSError:
        return None
    said = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
    said = said or [line for line in lines if line.strip()]
    return said[-1].strip() if said else None


def result_of(
    point: Point, run: Path, code: int, seconds: float | None, *, stopped: str | None = None, said: str | None = None
) -> Result:
    """What came of a process that has ended; its record is closed where it did not do that itself.

    Args:
        code: Its exit code; negative for the signal that ended it.
        stopped: Why the study ended it early.
        said: Why it ended, where somebody else knows.
    """
    log = log_of(run)
    close_record(run, code, said or _said(log))
    record = _record(run)
    good = code == 0 and (record is None or record["status"] == "finished")
    stopped = stopped if not good else None
    outcome = {"exit_code": code, "seconds": seconds} | ({"stopped": stopped} if stopped else {})
    write_atomically(outcome_of(run), to_json(outcome) + "\n")
    return Result(
        point,
        FINISHED if good else STOPPED if stopped else FAILED,
        run,
        log,
        record=record,
        exit_code=code,
        seconds=seconds,
        error=None if good or stopped else said or _error(code, record, log),
        stopped=stopped,
    )
