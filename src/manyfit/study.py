"""Many runs: a list of named override sets, each in a process and a folder of its own, and what came of them.

A study can be started again: what is finished is kept. When it ends, however it ends, so do the processes it started.
"""

import contextlib
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

from manyfit.killed import close_record
from manyfit.points import (
    FAILED,
    FINISHED,
    KEPT,
    STOPPED,
    Point,
    Result,
    claim,
    kept_result,
    log_of,
    next_run,
    result_of,
)
from manyfit.processes import GRACE_SECONDS, end_processes, ending_on_signals, signal_group, start_process
from manyfit.sweep_arguments import quoted

__all__ = [
    "FAILED",
    "FINISHED",
    "KEPT",
    "ONE_RUNS_OWN",
    "STOPPED",
    "Command",
    "Point",
    "Result",
    "as_group",
    "interleaved",
    "override",
    "run_study",
    "train_command",
]

_POLL_SECONDS = 0.05

ONE_RUNS_OWN = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH", "MANYFIT_SUPERVISOR")
"""Variables that would make one W&B run of all the points."""


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
            claim(point, folder)
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
                claim(point, folder)
                kept = kept_result(point, folder)
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
        return result_of(self.point, self.folder, code, seconds, stopped=self.stopped)


def _end_all(running: Sequence[_Running]) -> None:
    end_processes([one.process for one in running])
    for one in running:
        close_record(one.folder, one.process.returncode)


def _start(point: Point, folder: Path, command: Command, environment: dict[str, str]) -> _Running:
    run = next_run(point, folder)
    words = [str(word) for word in command(point, run)]
    with log_of(run).open("wb") as log:
        log.write(("$ " + shlex.join(words).replace("\n", "\\n") + "\n").encode())
        log.flush()
        process = start_process(words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    return _Running(point, run, process)
