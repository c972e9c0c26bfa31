"""A multirun whose jobs Slurm runs (or submitit, on this machine): one array job, a task of it for each combination.

`hydra/launcher=submitit_slurm` of Hydra's own plugin gives the words; its launcher would run Hydra's composition again
in every job, after it was told all at once. Here the jobs are checked before, and each is `src/train.py` in a process
and a folder of its own, as without Slurm.
"""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyfit.errors import EXIT_MAY_RETRY
from manyfit.files import to_json, write_atomically
from manyfit.launcher import LOCAL, SLURM, Launcher, submit
from manyfit.points import Point, Result, attempts, claim, kept_result, log_of, next_run, outcome_of, result_of
from manyfit.processes import ending_on_signals
from manyfit.record import RECORD_NAME
from manyfit.study import Command, override
from manyfit.submitted_job import Training

KILLED = 137
_POLL_SECONDS = 0.5
_MOST_SECONDS_BETWEEN_LOOKS = 15.0
_WAIT_FOR_CTRL_C = 3.0
"""Seconds in which jobs on this machine end by the Ctrl-C that came to them as well; a second would leave a part."""
_WAIT_FOR_FILES = 10.0
"""Seconds in which a network file system shows what another node wrote."""


def run_submitted(
    points: Sequence[Point],
    folder: Path,
    launcher: Launcher,
    *,
    command: Command,
    environment: Mapping[str, str],
    on_start: Callable[[Point, str], Any] = lambda point, job: None,
    on_end: Callable[[Result], Any] = lambda result: None,
    tell: Callable[[str], Any] = print,
) -> list[Result]:
    """Hand every point that is not finished to Slurm, wait, and give the results in the order of the points.

    The folders are those of `manyfit.study.run_study`. A point whose job is still there from an earlier start is
    waited for; one that was stopped or killed goes on in its folder.

    Args:
        on_start: Called with each point and the number of its job.
        on_end: Called with each result, kept ones included.
        tell: Called with what becomes of the jobs where the wait for them is ended.

    Raises:
        UserError: the jobs are not accepted.
        KeyboardInterrupt, SystemExit: the wait was ended. Jobs of Slurm go on; those on this machine are ended.
    """
    for point in points:
        claim(point, folder)
    results: dict[str, Result] = {}
    waiting: list[_Job] = []
    new: list[tuple[Point, Path]] = []
    going_on = _queued(launcher, [job for point in points for job in [_noted(point, folder)] if job])
    for point in points:
        if (kept := kept_result(point, folder)) is not None:
            results[point.label] = kept
            on_end(kept)
        elif (job := _noted(point, folder)) in going_on:
            waiting.append(_Job(point, attempts(folder / point.label)[0], job))
            on_start(point, f"{job}, which is there already")
        else:
            new.append((point, _run_of(point, folder)))
    if new:
        variables: dict[str, str | None] = dict(environment)
        if launcher.kind == LOCAL and launcher.parameters.get("gpus_per_node") is None:
            variables["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES")  # submitit would hide all
        trainings = [Training([*command(point, run), "resume=auto"], variables, run.absolute()) for point, run in new]
        for (point, run), job in zip(new, submit(trainings, launcher), strict=True):
            write_atomically(_note_of(run), to_json({"job": job.job_id}) + "\n")
            log_of(run).touch()
            waiting.append(_Job(point, run, job.job_id, job if launcher.kind == LOCAL else None))
            on_start(point, job.job_id)
    with ending_on_signals(), _when_the_wait_is_ended(waiting, folder, tell):
        for result in _results(waiting, launcher):
            results[result.point.label] = result
            on_end(result)
    return [results[point.label] for point in points]


# --- one job ----------------------------------------------------------------------------------------------------------


@dataclass
class _Job:
    point: Point
    run: Path
    number: str
    local: Any = None
    """The job itself where it is a process of this one."""

    def log(self) -> Path | None:
        """What Slurm and submitit had to say, where the training could say nothing."""
        return next((self.run.parents[1] / ".submitit" / self.number).glob("*_log.err"), None)


def _note_of(run: Path) -> Path:
    return run.with_name(f"{run.name}.job.json")


def _noted(point: Point, folder: Path) -> str | None:
    """The job that was last given a point."""
    for run in attempts(folder / point.label)[:1]:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return str(json.loads(_note_of(run).read_text(encoding="utf-8"))["job"])
    return None


def _run_of(point: Point, folder: Path) -> Path:
    """The run folder for a point: that of the last attempt if that can go on, else the next one's."""
    for run in attempts(folder / point.label)[:1]:
        try:
            code = json.loads(outcome_of(run).read_text(encoding="utf-8"))["exit_code"]
        except (OSError, ValueError, KeyError):
            code = KILLED
        if (code == EXIT_MAY_RETRY or not 0 <= code < 128) and (run / RECORD_NAME).exists():
            return run
    return next_run(point, folder)


# --- waiting for them -------------------------------------------------------------------------------------------------


def _results(waiting: Sequence[_Job], launcher: Launcher) -> Iterator[Result]:
    """What came of each job, as they end."""
    left = list(waiting)
    began = time.monotonic()
    while left:
        there = _queued(launcher, [job.number for job in left], left)
        for job in [job for job in left if job.number not in there]:
            left.remove(job)
            yield _result(job, launcher)
        if left:
            time.sleep(min(_POLL_SECONDS + (time.monotonic() - began) / 60, _MOST_SECONDS_BETWEEN_LOOKS))


def _result(job: _Job, launcher: Launcher) -> Result:
    """What came of a job that is over."""
    until = time.monotonic() + _WAIT_FOR_FILES
    while True:
        with contextlib.suppress(OSError, ValueError, KeyError):
            told = json.loads(outcome_of(job.run).read_text(encoding="utf-8"))
            return result_of(job.point, job.run, told["exit_code"], told["seconds"])
        if time.monotonic() > until:
            break
        time.sleep(0.1)
    ended = f"Slurm ended job {job.number}" if launcher.kind == SLURM else f"job {job.number} ended"
    state = _state(job.number) if launcher.kind == SLURM else None
    log = job.log()
    said = ended + (f" ({state})" if state else "") + (f"; see {log}" if log else "")
    return result_of(job.point, job.run, KILLED, None, said=said)


def _queued(launcher: Launcher, numbers: Sequence[str], local: Sequence[_Job] = ()) -> set[str]:
    """Those of the jobs that have not ended."""
    if launcher.kind == LOCAL:
        return {job.number for job in local if job.local is not None and not job.local.done()}
    if not numbers:
        return set()
    arrays = sorted({number.partition("_")[0] for number in numbers})
    words = ["squeue", "--noheader", "--array", "--format=%i", f"--jobs={','.join(arrays)}"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return set(numbers)  # nothing is known
    if done.returncode != 0 and "Invalid job id" not in done.stderr:
        return set(numbers)
    if done.returncode != 0 and len(arrays) > 1:  # one that Slurm has forgotten hides the others
        return {
            number for array in arrays for number in _queued(launcher, [n for n in numbers if n.split("_")[0] == array])
        }
    return set(done.stdout.split()) & set(numbers)


def _state(number: str) -> str | None:
    """How Slurm says that a job ended, as long as it remembers."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        words = ["scontrol", "--oneliner", "show", "job", number]
        told = subprocess.run(words, capture_output=True, text=True, timeout=60).stdout.split()
        return next((word.partition("=")[2] for word in told if word.startswith("JobState=")), None)
    return None


@contextlib.contextmanager
def _when_the_wait_is_ended(waiting: Sequence[_Job], folder: Path, tell: Callable[[str], Any]) -> Iterator[None]:
    """Jobs that are processes of this one end with it; Slurm's go on, which is said."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        arrays = ",".join(sorted({job.number.partition("_")[0] for job in waiting if job.local is None}))
        if arrays:
            tell(
                f"Slurm's jobs go on: squeue --jobs={arrays} shows them, scancel {arrays.replace(',', ' ')} ends them. "
                f"The same command with {override('hydra.sweep.dir', folder)} waits for them again."
            )
        raise
    finally:
        ours = [job for job in waiting if job.local is not None]
        until = time.monotonic() + _WAIT_FOR_CTRL_C
        while time.monotonic() < until and not all(job.local.done() for job in ours):
            time.sleep(0.1)
        for job in ours:
            if not job.local.done():
                job.local.cancel(check=False)
