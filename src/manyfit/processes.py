"""Processes that end with this one, however it ends."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

GRACE_SECONDS = 30.0
"""How long a process that is told to end may save what it has."""

_POLL_SECONDS = 0.05
END_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""What asks a process to end."""

_LAUNCHER = """
import ctypes, os, sys
parent, number, *command = sys.argv[1:]
ctypes.CDLL(None).prctl(1, int(number))  # PR_SET_PDEATHSIG
if os.getppid() != int(parent):
    os._exit(143)
os.execvp(command[0], command)
"""


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_seconds() -> float:
    """Seconds since this process began: what its user has waited."""
    return time.monotonic() - _began()


@functools.cache
def _began() -> float:
    """When this process began, on the clock of `time.monotonic`."""
    if sys.platform == "linux":
        # Field 22 of proc(5), in ticks since boot; psutil counts from the boot's time in whole seconds.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    import psutil

    return time.monotonic() - (time.time() - psutil.Process().create_time())


def start_process(
    command: Sequence[str],
    *,
    dies_by: int = signal.SIGTERM,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[Any] | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    text: bool = False,
) -> subprocess.Popen:
    """Start a command in a process group of its own, so that Ctrl-C reaches this process alone.

    On Linux it gets the signal `dies_by` when this process ends, however that happens; another interpreter asks for
    that and becomes the command, since code between fork and exec is unsafe where there are threads.
    """
    words = list(command)
    if sys.platform == "linux":
        words = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(int(dies_by)), *words]
    return subprocess.Popen(
        words, env=env, stdin=stdin, stdout=stdout, stderr=stderr, text=text, start_new_session=True
    )


def end_processes(processes: Sequence[subprocess.Popen], grace_seconds: float = GRACE_SECONDS) -> None:
    """Tell processes and all that they started to end, wait, and end what is still there.

    A Ctrl-C while it waits ends them at once.
    """
    processes = list(processes)
    try:
        for process in processes:
            signal_group(process, signal.SIGTERM)
        until = time.monotonic() + grace_seconds
        while time.monotonic() < until and any(process.poll() is None for process in processes):
            time.sleep(_POLL_SECONDS)
    finally:
        for process in processes:
            signal_group(process, getattr(signal, "SIGKILL", signal.SIGTERM))
            process.wait()


def signal_group(process: subprocess.Popen, number: int) -> None:
    """Send a signal to a process and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)


@contextlib.contextmanager
def signals_received_by(
    receive: Callable[[int, types.FrameType | None], Any], numbers: Iterable[int]
) -> Iterator[None]:
    """Inside, these signals call `receive`, but for those that are ignored; in another than the main thread, none."""
    previous: dict[int, Any] = {}
    try:
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
                previous[number] = signal.signal(number, receive)
    except ValueError:
        pass  # not the main thread: the signals are somebody else's
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Inside, signals that ask this process to end raise, so that what it started is ended first."""

    def receive(number: int, frame: types.FrameType | None) -> None:
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    with signals_received_by(receive, END_SIGNALS):
        yield
