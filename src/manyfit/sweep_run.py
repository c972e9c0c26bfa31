"""A run that a W&B agent starts: trained in a child process, with a small one beside it that outlives it.

The agent leaves its children running when it is told to end, and takes no notice of one that a signal ended. The
process that the agent starts therefore only composes, checks and watches: it passes signals on, ends the training when
the agent is gone, and where the training was killed it closes the record and ends with a code that the agent counts.
"""

import os
import re
import subprocess
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from hydra.core.hydra_config import HydraConfig

from manyfit.config import RunConfig
from manyfit.errors import UserError
from manyfit.killed import close_record, describe
from manyfit.processes import END_SIGNALS, end_processes, signal_group, signals_received_by, start_process
from manyfit.record import RunRecord
from manyfit.study import override
from manyfit.sweep_arguments import agent_parameters, check_arrived
from manyfit.sweep_report import SUPERVISOR, by_agent, is_supervised, tell_wandb

GRACE_SECONDS = 120.0
"""How long a training may take to stop once the agent is gone; the step that runs may still be compiled."""

_POLL_SECONDS = 0.25
_PARENT = os.getppid()


def arrived(config: RunConfig) -> None:
    """Refuse a run of a sweep in which a parameter is not what the sweep gave it; any other run passes.

    Raises:
        ConfigError: names the parameter.
    """
    check_arrived(config, agent_parameters(), HydraConfig.get().runtime.choices)


def is_agents_child() -> bool:
    """Whether a W&B agent started this process, which is then the one that watches."""
    return by_agent() and not is_supervised(_PARENT)


def run_supervised(outputs: Path, folder: Path | None) -> int:
    """Train what this process was asked in a child; the exit code, 128 + the signal's number where one ended it.

    Args:
        outputs: The runs of a sweep go to `sweeps/SWEEP/RUN` there.
        folder: The run folder that was asked for; None for that one.
    """
    command = [sys.executable, *sys.argv]
    if folder is None:
        folder = run_folder(outputs)
        command.append(override("hydra.run.dir", folder))
    environment = {**os.environ, SUPERVISOR: str(os.getpid())}
    with _passing_signals_on() as started:
        process = start_process(command, env=environment, stderr=subprocess.PIPE)
        started(process)
        errors = _Errors(process)
        code = _wait(process)
    said = errors.said()
    if code < 0:
        said = f"The training was {describe(-code)}."
        close_record(folder, code)
        print(f"Error: {said}", file=sys.stderr)
    code = 128 - code if code < 0 else code
    if code and not _was_told(folder, killed=process.returncode < 0):
        tell_wandb(said or f"The training ended with code {code}.", code)
    return code


class _Errors:
    """Passes on what a process writes to stderr, and keeps the end of it."""

    def __init__(self, process: subprocess.Popen):
        self._lines: deque[str] = deque(maxlen=20)
        self._thread = threading.Thread(target=self._read, args=(process.stderr,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            text = line.decode("utf-8", "replace")
            self._lines.append(text)
            sys.stderr.write(text)
            sys.stderr.flush()

    def said(self) -> str:
        """The message of a run that was refused, else the last lines."""
        self._thread.join(timeout=5.0)  # what the training started may hold the pipe open
        text = "".join(self._lines).strip()
        return text.rpartition("Error: ")[2] if text.startswith("Error: ") else text


def _was_told(folder: Path, *, killed: bool) -> bool:
    """Whether W&B knows how the run ended, or needs not: the run opened it and ended by itself, or stayed offline."""
    try:
        tracker = RunRecord.load(folder).data["tracker"]
    except UserError:
        return False
    return tracker.get("mode") not in (None, "online") or (bool(tracker.get("run_id")) and not killed)


def run_folder(outputs: Path) -> Path:
    """`sweeps/SWEEP/RUN`, not there yet: an agent may start a run again under its old id."""
    parts = [os.environ.get(name) or "run" for name in ("WANDB_SWEEP_ID", "WANDB_RUN_ID")]
    folder = outputs.joinpath("sweeps", *(re.sub(r"[^\w.-]+", "-", part) for part in parts))
    candidate, attempt = folder, 1
    while candidate.exists():
        attempt += 1
        candidate = folder.with_name(f"{folder.name}-{attempt}")
    return candidate


def _wait(process: subprocess.Popen) -> int:
    """Wait for the training; end it where the process that started this one is gone."""
    while True:
        try:
            return process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if os.getppid() != _PARENT:
                print("The agent is gone: the training stops.", file=sys.stderr)
                end_processes([process], GRACE_SECONDS)


@contextmanager
def _passing_signals_on() -> Iterator[Callable[[subprocess.Popen], None]]:
    """Inside, signals go to the process that the yielded function was given, also those that came before."""
    target: list[subprocess.Popen] = []
    early: list[int] = []

    def receive(number: int, frame: types.FrameType | None) -> None:
        if target:
            signal_group(target[0], number)
        else:
            early.append(number)

    def started(process: subprocess.Popen) -> None:
        target.append(process)
        for number in early:
            signal_group(process, number)

    with signals_received_by(receive, END_SIGNALS):
        yield started
