"""Signals that end a run in good order: at the end of the call that is running, with the record closed."""

import signal
import types

import keras


class Stopped(Exception):
    """The run was asked to stop; `exit_code` is 128 + the signal's number."""

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


class StopOnSignal(keras.callbacks.Callback):
    """Raises `Stopped` out of `fit` after SIGTERM or SIGINT; a second signal ends the process at once.

    Use it as a context manager around `fit`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._received: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "StopOnSignal":
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
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
        signal.signal(number, signal.SIG_DFL)

    def check(self) -> None:
        """Raise `Stopped` if a signal has come."""
        if self._received is not None:
            raise Stopped(self._received)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Stop here if a signal has come."""
        self.check()

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Stop here if a signal has come."""
        self.check()
