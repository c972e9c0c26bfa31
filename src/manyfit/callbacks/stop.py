"""What ends a run in good order, at the end of the call that is running: a signal, or its time being up."""

import signal
import time
import types
from collections.abc import Callable

import keras

from manyfit.errors import EXIT_MAY_RETRY, EXIT_TERMINATED
from manyfit.peers import Peers, alone
from manyfit.processes import process_seconds

EXIT_CODES = {
    signal_number: EXIT_TERMINATED if name == "SIGUSR1" else 128 + signal_number
    for name in ("SIGTERM", "SIGINT", "SIGUSR1")
    if (signal_number := getattr(signal, name, None)) is not None
}
"""The exit code by signal; Slurm sends SIGUSR1 some time before it ends a job (`--signal=USR1@60`)."""


SAME_SIGNAL_SECONDS = 1.0
"""A second SIGTERM within so long is the first: Slurm sends a job that it preempts two, a few milliseconds apart."""


class Stopped(Exception):
    """The run was asked to stop."""

    def __init__(self, reason: str, exit_code: int):
        super().__init__(reason)
        self.exit_code = exit_code


class StopOnSignal(keras.callbacks.Callback):
    """Raises `Stopped` out of `fit` after SIGTERM, SIGINT or SIGUSR1, or when `max_minutes` have passed.

    A second signal ends the process at once. Use it as a context manager around `fit`.

    Args:
        max_minutes: Minutes since the process began; None for no limit.
        elapsed: Seconds since the process began.
        peers: The other workers: all stop at the same step, as soon as one is asked to.
    """

    def __init__(
        self,
        max_minutes: float | None = None,
        elapsed: Callable[[], float] = process_seconds,
        peers: Peers | None = None,
    ) -> None:
        super().__init__()
        self._peers = peers or alone()
        self._max_minutes = max_minutes
        self._elapsed = elapsed
        self._received: int | None = None
        self._received_at = 0.0
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopOnSignal":
        try:
            for number in EXIT_CODES:
                self._previous[number] = signal.signal(number, self._receive)
        except ValueError:
            pass  # not the main thread: the signals are somebody else's
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
        self._previous.clear()

    def _receive(self, number: int, frame: types.FrameType | None) -> None:
        if self._received is None:
            self._received, self._received_at = number, time.monotonic()
            for known in EXIT_CODES:
                if known != signal.SIGTERM:
                    signal.signal(known, signal.SIG_DFL)
        elif time.monotonic() - self._received_at > SAME_SIGNAL_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def check(self) -> None:
        """Raise `Stopped` if a signal has come to this process, or its time is up."""
        if (reason := self._reason()) is not None:
            raise Stopped(*reason)

    def _reason(self) -> tuple[str, int] | None:
        if self._received is not None:
            return f"stopped by {signal.Signals(self._received).name}", EXIT_CODES[self._received]
        if self._max_minutes is not None and self._elapsed() >= 60 * self._max_minutes:
            return f"stopped after max_minutes={self._max_minutes:g}", EXIT_MAY_RETRY
        return None

    def _check_all(self) -> None:
        reasons = [reason for reason in self._peers.gather("stop", self._reason()) if reason is not None]
        if reasons:
            text, exit_code = reasons[0]
            raise Stopped(text, exit_code)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Stop here if it is time to."""
        self._check_all()

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Stop here if it is time to."""
        self._check_all()
