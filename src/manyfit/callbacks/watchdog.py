"""Ends a training that stands still, and leaves in the log where each of its threads stood."""

import faulthandler
import os
import tempfile
import threading
import time
from collections.abc import Callable
from types import TracebackType

import keras

from manyfit.errors import EXIT_MAY_RETRY

FIRST_STEP_FACTOR = 3
"""How much longer the first step may take, which traces and compiles."""


class Watchdog(keras.callbacks.Callback):
    """Calls `on_stuck` and ends the process with exit code 75 when no call of steps ends for too long.

    A stuck collective or file system cannot be interrupted from Python, so there is no softer way. Use it as a context
    manager around `fit`.

    Args:
        minutes: Minutes without a finished call; None watches nothing.
        on_stuck: Told the reason and the stacks of all threads; it must not need the thread that stands still.
        leave: Ends the process.
    """

    def __init__(
        self,
        minutes: float | None,
        on_stuck: Callable[[str, str], None],
        *,
        leave: Callable[[int], None] = os._exit,
    ):
        super().__init__()
        self._seconds = None if minutes is None else 60 * minutes
        self._minutes = minutes
        self._on_stuck = on_stuck
        self._leave = leave
        self._done = threading.Event()
        self._beat_at = time.monotonic()
        self._warm = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Watchdog":
        if self._seconds is not None:
            self._beat_at = time.monotonic()
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def expect_trace(self) -> None:
        """The next step is the first of another model, and may take as long as a first step."""
        self._warm = False
        self.beat()

    def beat(self) -> None:
        """Something has moved."""
        self._beat_at = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Steps have ended."""
        self._warm = True
        self.beat()

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Steps of a validation have ended."""
        self.beat()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """An epoch has ended."""
        self.beat()

    def _watch(self) -> None:
        assert self._seconds is not None
        # A clock that was set, or a machine that slept, is not a training that stands still: only waits are counted.
        tick = min(1.0, self._seconds / 4)
        waited, seen = 0.0, self._beat_at
        while not self._done.wait(tick):
            waited = waited + tick if seen == self._beat_at else 0.0
            seen = self._beat_at
            if waited >= self._seconds * (1 if self._warm else FIRST_STEP_FACTOR):
                self._on_stuck(f"No step ended for {self._minutes:g} minutes (watchdog.minutes).", stacks())
                self._leave(EXIT_MAY_RETRY)
                return


def stacks() -> str:
    """Where every thread of this process stands."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
