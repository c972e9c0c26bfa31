"""What ends a run in good order, at the end of the call that is running: a signal, or its time being up."""

import signal
import types
from collections.abc import Callable

import keras

from manyfit.errors import EXIT_MAY_RETRY, EXIT_TERMINATED
from manyfit.processes import process_seconds

EXIT_CODES = {
    signal_number: EXIT_TERMINATED if name == "SIGUSR1" else 128 + signal_number
    for name in ("SIGTERM", "SIGINT", "SIGUSR1")
    if (signal_number := getattr(signal, name, None)) is not None
}
"""The exit code by signal; Slurm sends SIGUSR1 some time before it ends a job (`--signal=USR1@60`)."""


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
    """

    def __init__(self, max_minutes: float | None = None, elapsed: Callable[[], float] = process_seconds) -> None:
        super().__init__()
        self._max_minutes = max_minutes
        self._elapsed = elapsed
        self._received: int | None = None
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
        self._received = number
        for known in EXIT_CODES:
            signal.signal(known, signal.SIG_DFL)

    def check(self) -> None:
        """Raise `Stopped` if a signal has come, or the time is up."""
        if self._received is not None:
            raise Stopped(f"stopped by {signal.Signals(self._received).name}", EXIT_CODES[self._received])
        if self._max_minutes is not None and self._elapsed() >= 60 * self._max_minutes:
            raise Stopped(f"stopped after max_minutes={self._max_minutes:g}", EXIT_MAY_RETRY)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Stop here if it is time to."""
        self.check()

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Stop here if it is time to."""
        self.check()
