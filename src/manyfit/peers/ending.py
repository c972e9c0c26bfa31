"""The end of a process whose ranks cannot go on together, and whose main thread may never run again."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable

_POLL_SECONDS = 0.1


def wait_for_the_end(
    leave_seconds: float, close_seconds: float, *, is_closed: Callable[[], bool], is_known: Callable[[], bool]
) -> None:
    """Give the main thread time to end the process; returns when that is up.

    Args:
        leave_seconds: For a main thread that has heard of nothing, and for the end of Python after it.
        close_seconds: For one that has heard of the fault, and closes what is open.
        is_closed: Whether it has let go of the other ranks: what it does then is its own affair.
        is_known: Whether it has heard of the fault.
    """
    main, began, ended = threading.main_thread(), time.monotonic(), None
    while True:
        now = time.monotonic()
        if is_closed():
            # At the end of Python TensorFlow may wait for the others.
            ended = now if ended is None or main.is_alive() else ended
            if now - ended > leave_seconds:
                return
        elif now - began > (close_seconds if is_known() else leave_seconds):
            return
        time.sleep(_POLL_SECONDS)


def say(message: str) -> None:
    """Write an error where scripts write theirs."""
    print(f"Error: {message}", file=sys.stderr, flush=True)


def flush_streams() -> None:
    """Flush what the process has written, unless whoever holds the lock of a stream never lets go of it."""

    def flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()

    thread = threading.Thread(target=flush, daemon=True)
    thread.start()
    thread.join(1.0)
