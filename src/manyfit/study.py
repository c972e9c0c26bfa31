"""Many runs: a list of named override sets, each in a process and a folder of its own, and what came of them.

A study can be started again: what is finished is kept. When it ends, however it ends, so do the processes it started.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from manyfit.errors import ConfigError, UserError
from manyfit.files import to_json, write_atomically
from manyfit.killed import close_record, describe
from manyfit.processes import GRACE_SECONDS, end_processes, ending_on_signals, signal_group, start_process
from manyfit.record import RECORD_NAME, RunRecord
from manyfit.sweep_arguments import quoted

POINT_NAME = "point.json"
KEPT, FINISHED, STOPPED, FAILED = "kept", "finished", "stopped", "failed"
_POLL_SECONDS = 0.05

ONE_RUNS_OWN = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH", "MANYFIT_SUPERVISOR")
"""Variables that would make one W&B run of all the points."""


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


Command = Callable[[Point, Path], Sequence[str]]
"""Makes the command line of a point from its overrides and its run folder, which is not there yet."""


def train_command(point: Point, folder: Path) -> list[str]:
    """The command line that trains a point with `src/train.py`."""
    script = Path(__file__).resolve().parents[1] / "train.py"
    return [sys.executable, str(script), *point.overrides, override("hydra.run.dir", folder)]


def override(key: str, value: object) -> str:
    """`KEY=VALUE` as Hydra reads it, quoted where the value needs it.

    >>> override("data.root", "/photos"), override("data.root", "my photos, 2024")
    ('data.root=/photos', 'data.root="my photos, 2024"')
    """
    text = str(value)
    if re.fullmatch(r"[\w./:+-]+", text):
        return f"{key}={text}"
    return f"{key}={quoted(text)}"


def as_group(kind: str, folder: Path) -> dict[str, str]:
    """Variables that make one group in W&B of a study's runs, under its kind; what the user has set stays.

    >>> as_group("scale", Path("outputs/2026-01-31/12-00-00_mnist"))
    {'WANDB_JOB_TYPE': 'scale', 'WANDB_RUN_GROUP': 'scale 2026-01-31 12-00-00_mnist'}
    """
    group = f"{kind} {folder.parent.name} {folder.name}"[:128]
    given = {"WANDB_JOB_TYPE": kind, "WANDB_RUN_GROUP": group}
    return {name: value for name, value in given.items() if not os.environ.get(name)}


def interleaved(points: Sequence[Point], repeats: int) -> list[Point]:
    """All points once, then all again: what drifts on the machine meets every point alike."""
    return [replace(point, repeat=repeat) for repeat in range(1, repeats + 1) for point in points]


def run_study(
    points: Iterable[Point],
    folder: Path,
    *,
    command: Command = train_command,
    workers: int = 1,
    environment: Mapping[str, str] | None = None,
    on_start: Callable[[Point], Any] = lambda point: None,
    on_end: Callable[[Result], Any] = lambda result: None,
    stop_early: Callable[[Point, Path], str | None] = lambda point, folder: None,
) -> list[Result]:
    """Run every point that is not finished yet, in order; the results are in the order of the points.

    A list of points is checked before the first of them starts. Any other iterable is asked for the next point once a
    process is free, so that a search can choose it by the results so far, which it gets through `on_end`.

    A point has `folder/LABEL/` with `run/` (after a failure `run-2/`, ...), beside it `run.txt`, all that the process
    wrote, and `point.json`, what was asked. A point that fails stops no other.

    Args:
        workers: Processes at a time; more than one makes their speeds meaningless on shared devices.
        environment: Variables on top of this process's own.
        on_start: Called with each point that is started.
        on_end: Called with each result, kept ones included.
        stop_early: Called again and again with each running point and its run folder; a reason ends the run, which
            then counts as `stopped`.

    Raises:
        ConfigError: the folder holds another point of the same name.
        KeyboardInterrupt, SystemExit: the study was told to end (SIGINT; SIGTERM or SIGHUP); its processes have ended.
    """
    results: dict[str, Result] = {}
    if isinstance(points, Sequence):
        labels = [point.label for point in points]
        if len(set(labels)) < len(labels):
            raise ValueError(f"Points of one name: {sorted({label for label in labels if labels.count(label) > 1})}.")
        for point in points:
            _claim(point, folder)
    waiting = iter(points)
    order: list[str] = []
    inherited = {name: value for name, value in os.environ.items() if name not in ONE_RUNS_OWN}
    surroundings = {**inherited, "PYTHONUNBUFFERED": "1", **(environment or {})}
    with ending_on_signals(), contextlib.ExitStack() as stack:
        running: list[_Running] = []
        stack.callback(lambda: _end_all(running))
        exhausted = False
        while running or not exhausted:
            while not exhausted and len(running) < workers:
                point = next(waiting, None)
                if point is None:
                    exhausted = True
                    break
                if point.label in order:
                    raise ValueError(f"Points of one name: {point.label}.")
                order.append(point.label)
                _claim(point, folder)
                kept = _kept(point, folder)
                if kept is not None:
                    results[point.label] = kept
                    on_end(kept)
                    continue
                on_start(point)
                running.append(_start(point, folder, command, surroundings))
            for one in list(running):
                if one.process.poll() is None:
                    one.stop_if(stop_early)
                    continue
                running.remove(one)
                results[one.point.label] = one.result()
                on_end(results[one.point.label])
            if running:
                time.sleep(_POLL_SECONDS)
    return [results[label] for label in order]


# --- one point --------------------------------------------------------------------------------------------------------


@dataclass
class _Running:
    point: Point
    folder: Path
    process: subprocess.Popen
    started: float = field(default_factory=time.monotonic)
    stopped: str | None = None
    stopped_at: float = 0.0

    def stop_if(self, stop_early: Callable[[Point, Path], str | None]) -> None:
        """End the process where it is not worth going on; by force if it takes too long."""
        if self.stopped is None:
            self.stopped = stop_early(self.point, self.folder)
            if self.stopped is not None:
                self.stopped_at = time.monotonic()
                signal_group(self.process, signal.SIGTERM)
        elif time.monotonic() - self.stopped_at > GRACE_SECONDS:
            end_processes([self.process], grace_seconds=0.0)

    def result(self) -> Result:
        """What came of the process, which has ended."""
        seconds, code = time.monotonic() - self.started, self.process.returncode
        end_processes([self.process], grace_seconds=0.0)  # what it may have left behind
        log = _log(self.folder)
        close_record(self.folder, code, _said(log))
        record = _record(self.folder)
        good = code == 0 and (record is None or record["status"] == "finished")
        stopped = self.stopped if not good else None
        outcome = {"exit_code": code, "seconds": seconds} | ({"stopped": stopped} if stopped else {})
        write_atomically(_outcome(self.folder), to_json(outcome) + "\n")
        return Result(
            self.point,
            FINISHED if good else STOPPED if stopped else FAILED,
            self.folder,
            log,
            record=record,
            exit_code=code,
            seconds=seconds,
            error=None if good or stopped else _error(code, record, log),
            stopped=stopped,
        )


def _end_all(running: Sequence[_Running]) -> None:
    end_processes([one.process for one in running])
    for one in running:
        close_record(one.folder, one.process.returncode)


def _start(point: Point, folder: Path, command: Command, environment: dict[str, str]) -> _Running:
    attempts = _attempts(folder / point.label)
    run = folder / point.label / (f"run-{len(attempts) + 1}" if attempts else "run")
    words = [str(word) for word in command(point, run)]
    with _log(run).open("wb") as log:
        log.write(("$ " + shlex.join(words).replace("\n", "\\n") + "\n").encode())
        log.flush()
        process = start_process(words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    return _Running(point, run, process)


def _claim(point: Point, folder: Path) -> None:
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


def _attempts(folder: Path) -> list[Path]:
    """The run folders of a point that were begun, the last one first."""
    logs = [path for path in folder.glob("run*.txt") if re.fullmatch(r"run(-\d+)?", path.stem)]
    return sorted((path.with_suffix("") for path in logs), key=lambda path: (len(path.name), path.name), reverse=True)


def _log(run: Path) -> Path:
    return run.with_name(f"{run.name}.txt")


def _outcome(run: Path) -> Path:
    return run.with_name(f"{run.name}.json")


def _record(run: Path) -> dict[str, Any] | None:
    if not (run / RECORD_NAME).exists():
        return None
    try:
        return RunRecord.load(run).data
    except UserError:
        return None


def _kept(point: Point, folder: Path) -> Result | None:
    """The result of an attempt that finished or was stopped early: its record or its exit code says so."""
    for run in _attempts(folder / point.label):
        record = _record(run)
        try:
            outcome = json.loads(_outcome(run).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            outcome = {}
        stopped = outcome.get("stopped")
        good = outcome.get("exit_code") == 0 if record is None else record["status"] == "finished"
        if good or stopped:
            code, seconds = 0 if good else outcome.get("exit_code"), outcome.get("seconds")
            stopped = None if good else stopped
            return Result(point, KEPT, run, _log(run), record=record, exit_code=code, seconds=seconds, stopped=stopped)
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
