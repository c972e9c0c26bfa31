"""What a job of a multirun does on the machine that it was given: train in a process of its own, and say how it ended.

The job that submits pickles it by name: what it imports has to be there, and quick.
"""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manyfit.files import to_json, write_atomically
from manyfit.points import log_of, outcome_of
from manyfit.processes import GRACE_SECONDS, signal_group, start_process
from manyfit.study import ONE_RUNS_OWN


class Training:
    """What a job does: train in a process of its own, and note how that ended.

    Args:
        command: The command line of the training.
        environment: Variables on top of the job's own; None for one that it shall not have.
        run: The run folder.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str | None], run: Path):
        self.command = list(command)
        self.environment = dict(environment)
        self.run = run
        self._process: subprocess.Popen | None = None

    def __call__(self) -> int:
        """Train; the exit code, negative for the signal that ended it. Submitit calls this in every task of the job."""
        from submitit import JobEnvironment

        rank = JobEnvironment().global_rank
        log = log_of(self.run) if rank == 0 else self.run.with_name(f"{self.run.name}.rank-{rank}.txt")
        if rank == 0:
            outcome_of(self.run).unlink(missing_ok=True)  # of a start before, which was put back into the queue
        without = {*ONE_RUNS_OWN, *(name for name, value in self.environment.items() if value is None)}
        given = {name: value for name, value in self.environment.items() if value is not None}
        environ = {name: value for name, value in os.environ.items() if name not in without} | given
        # Submitit's warning, SIGUSR2, comes to every process of the job. It is `checkpoint` that tells the training, by
        # the one signal after which it saves: a second one would end it at once.
        words = ["/bin/sh", "-c", 'trap "" USR2; exec "$@"', "sh", *self.command]
        began = time.monotonic()
        with log.open("ab") as output:
            output.write(("$ " + shlex.join(self.command).replace("\n", "\\n") + "\n").encode())
            output.flush()
            self._process = start_process(
                words,
                env={"PYTHONUNBUFFERED": "1", **environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            self._wait()
        finally:  # the handler of submitit's warning ends this by an exception
            code = self._wait()
            if rank == 0:
                told = {"exit_code": code, "seconds": time.monotonic() - began}
                write_atomically(outcome_of(self.run), to_json(told) + "\n")
        return code

    def checkpoint(self) -> Any:
        """Let the training save and end; what goes on with it. Submitit calls this before it requeues the job."""
        from submitit.helpers import DelayedSubmission

        if self._process is not None and not _has_ended(self._process.pid):
            signal_group(self._process, signal.SIGTERM)
            until = time.monotonic() + 3 * GRACE_SECONDS
            while not _has_ended(self._process.pid) and time.monotonic() < until:
                time.sleep(0.1)
        return DelayedSubmission(self)

    def _wait(self) -> int:
        """The exit code. Without the lock of `Popen.wait`, in which a signal's handler would wait for itself."""
        assert self._process is not None
        while not _has_ended(self._process.pid):
            time.sleep(0.1)
        return self._process.wait()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None}


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
