"""Several workers on this machine: the process that the user started starts them, waits, and outlives none of them."""

import collections
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from manyfit.cluster import FROM_LOCAL, LOCAL_WORKER, TF_CONFIG, Cluster
from manyfit.errors import EXIT_FINISHED, EXIT_MAY_RETRY, EXIT_TERMINATED
from manyfit.killed import describe
from manyfit.local_places import free_ports, gpu_shares
from manyfit.peers.names import PORT_TAKEN_CODE
from manyfit.processes import END_SIGNALS, signal_group, signals_received_by, start_process
from manyfit.schema.checks import AUTO
from manyfit.sweep_report import SUPERVISOR

MOST_STARTS = 3
GRACE_SECONDS = 15.0
"""How long the other workers may take to end by themselves, and to say why, when one has failed."""

STOP_SECONDS = 120.0
"""How long a training may take to save and stop after a signal; the step that runs may still be compiled."""

KILL_SECONDS = 10.0
_GRPC_FAILED = "Could not start gRPC server"
_MOST_LINES = 200
_POLL_SECONDS = 0.05
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
_SIGNALS = (*END_SIGNALS, *(getattr(signal, name) for name in ("SIGUSR1",) if hasattr(signal, name)))


def run(
    num_workers: int,
    argv: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    *,
    device: str = AUTO,
    show: Callable[[str], Any] | None = None,
    grace_seconds: float = GRACE_SECONDS,
    stop_seconds: float = STOP_SECONDS,
) -> int:
    """Run `argv` in as many processes, which train together; the exit code of the first that failed, or 0.

    Rank 0 has this process's terminal. What the others write is shown where one of them fails first. Signals are passed
    on. Where a port is taken meanwhile, all start again on others.

    Args:
        argv: The command line without the interpreter, as in `sys.argv`.
        device: `strategy.device`: the GPUs are shared out unless it is `cpu`.
        show: Told what happens to the workers; by default it goes to stderr.
        grace_seconds: How long the others may take to end when one has failed.
        stop_seconds: How long they may take to end after a signal.

    Raises:
        ConfigError: fewer GPUs than workers.
    """
    show = show or _say
    shares = gpu_shares(num_workers, environ, device)
    with _received_signals() as received:
        for start in range(1, MOST_STARTS + 1):
            addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(num_workers))
            cluster = Cluster(FROM_LOCAL, addresses, 0, job=f"{os.getpid()}-{secrets.token_hex(4)}")
            workers: list[_Worker] = []
            try:
                for rank in range(num_workers):
                    workers.append(_start(cluster, rank, argv, environ, shares[rank]))
                code = _Watch(workers, received, show, grace_seconds, stop_seconds).wait()
            finally:
                for worker in workers:
                    worker.end()
            if code != PORT_TAKEN_CODE:
                return code
            if start < MOST_STARTS:
                show(f"A port was taken meanwhile: the workers start again on others ({start + 1} of {MOST_STARTS}).")
    return EXIT_MAY_RETRY


# --- one worker -------------------------------------------------------------------------------------------------------


@dataclass
class _Worker:
    """One process, and the end of what it wrote (of rank 0, which has the terminal, nothing)."""

    rank: int
    process: subprocess.Popen
    lines: collections.deque[str] = field(default_factory=lambda: collections.deque(maxlen=_MOST_LINES))
    reader: threading.Thread | None = None
    was_ended: bool = False

    def read(self) -> None:
        """Keep the end of what it writes."""
        self.reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self.reader.start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            self.lines.append(line.decode("utf-8", "replace").rstrip("\r\n"))

    def said(self) -> list[str]:
        """Its last lines, after its end."""
        if self.reader is not None:
            self.reader.join(timeout=1.0)  # what it started may hold the pipe open
        return list(self.lines)

    def signal(self, number: int) -> None:
        """Send a signal to the process itself: it tells those that it started."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def end(self) -> None:
        """End it and all that it started, at once."""
        self.was_ended = self.was_ended or self.process.poll() is None
        signal_group(self.process, _KILL)
        self.process.wait()


def _start(cluster: Cluster, rank: int, argv: Sequence[str], environ: Mapping[str, str], gpus: str | None) -> _Worker:
    told = Cluster(cluster.source, cluster.workers, rank).tf_config()
    variables = {TF_CONFIG: json.dumps(told), LOCAL_WORKER: cluster.job, "PYTHONUNBUFFERED": "1"}
    if gpus is not None:
        variables["CUDA_VISIBLE_DEVICES"] = gpus
    if environ.get(SUPERVISOR):
        variables[SUPERVISOR] = str(os.getpid())  # the process beside an agent's training watches this one
    streams: dict[str, Any] = {}
    if rank > 0:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    # Not SIGTERM: a worker may be waiting for one that is gone, and TensorFlow takes no notice of that signal.
    command = [sys.executable, *argv]
    process = start_process(command, dies_by=_KILL, env={**environ, **variables}, **streams)
    worker = _Worker(rank, process)
    if rank > 0:
        worker.read()
    return worker


# --- all of them ------------------------------------------------------------------------------------------------------


class _Watch:
    """Waits for the workers; sees to it that none waits for one that is gone."""

    def __init__(
        self,
        workers: Sequence[_Worker],
        received: collections.deque[int],
        show: Callable[[str], Any],
        grace_seconds: float,
        stop_seconds: float,
    ):
        self._workers = workers
        self._received = received
        self._show = show
        self._grace = grace_seconds
        self._stop = stop_seconds
        self._told: int | None = None
        self._first: _Worker | None = None
        self._term_at = self._kill_at = float("inf")

    def wait(self) -> int:
        """The exit code: of the first worker that failed, that of a signal, `PORT_TAKEN_CODE`, or 0."""
        while running := [worker for worker in self._workers if worker.process.poll() is None]:
            self._pass_signals_on(running)
            self._notice_failure()
            if self._first is not None and self._port_was_taken(self._first):
                return PORT_TAKEN_CODE
            now = time.monotonic()
            if now >= self._term_at:
                self._term_at, self._kill_at = float("inf"), now + KILL_SECONDS
                for worker in running:
                    worker.was_ended = True
                    worker.signal(signal.SIGTERM)
            if now >= self._kill_at:
                for worker in running:
                    worker.end()
            time.sleep(_POLL_SECONDS)
        self._notice_failure()
        return self._code()

    def _pass_signals_on(self, running: Sequence[_Worker]) -> None:
        while self._received:
            number = self._received.popleft()
            first = self._told is None
            self._told = self._told or number
            self._term_at = float("inf")
            self._kill_at = min(self._kill_at, time.monotonic() + (self._stop if first else KILL_SECONDS))
            for worker in running:
                worker.signal(number)

    def _notice_failure(self) -> None:
        if self._first is not None:
            return
        failed = [worker for worker in self._workers if worker.process.poll() not in (None, EXIT_FINISHED)]
        # Of two that ended at once, the one that only noticed that the other had gone may be retried.
        failed.sort(key=lambda worker: (worker.process.returncode == EXIT_MAY_RETRY, worker.rank))
        if failed:
            self._first = failed[0]
            if self._told is None:
                self._term_at = time.monotonic() + self._grace

    def _port_was_taken(self, worker: _Worker) -> bool:
        if self._told is not None:
            return False
        return worker.process.returncode == PORT_TAKEN_CODE or any(_GRPC_FAILED in line for line in worker.said())

    def _code(self) -> int:
        first = self._first
        if first is None:
            return EXIT_FINISHED
        if self._port_was_taken(first):
            return PORT_TAKEN_CODE
        code = first.process.returncode
        if self._told is not None:
            expected = EXIT_TERMINATED if signal.Signals(self._told).name == "SIGUSR1" else 128 + self._told
            return code if code > 0 else expected
        self._tell(first)
        return 128 - code if code < 0 else code

    def _tell(self, worker: _Worker) -> None:
        """Say which worker failed first; rank 0 has said so itself unless a signal ended it."""
        code = worker.process.returncode
        for line in worker.said():
            self._show(f"[rank {worker.rank}] {line}")
        if code < 0:
            self._show(f"Rank {worker.rank} was {describe(-code)}.")
        elif worker.rank > 0:
            self._show(f"Rank {worker.rank} ended with exit code {code}; its last lines are above.")


@contextlib.contextmanager
def _received_signals() -> Iterator[collections.deque[int]]:
    """Inside, signals that would end this process are put into the deque instead."""
    received: collections.deque[int] = collections.deque()

    def receive(number: int, frame: types.FrameType | None) -> None:
        received.append(number)

    with signals_received_by(receive, _SIGNALS):
        yield received


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
