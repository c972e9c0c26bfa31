"""Locks between processes, which the system frees when a process ends; where there are none, nothing is locked."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_WAIT_SECONDS = 0.2


class FileLock:
    """A lock named by a file, shared by many users or held by one maker; it never waits by itself.

    A file system without locks, or a folder that is only read, grants everything.

    Args:
        path: The lock file; it stays behind, empty, since removing it would let two processes hold it.
    """

    def __init__(self, path: Path):
        self._descriptor: int | None = None
        if fcntl is not None:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def take(self, *, exclusive: bool) -> bool:
        """Take the lock, or change the kind that is held; False where another process stands in the way."""
        if fcntl is None or self._descriptor is None:
            return True
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def release(self) -> None:
        """Give it back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@contextlib.contextmanager
def made_by_one(path: Path, on_wait: Callable[[], None]) -> Iterator[FileLock]:
    """Inside, no other process makes what `path` names; others may be using it.

    Args:
        path: The lock file.
        on_wait: Called once if another process is making it, and this one waits.
    """
    lock = FileLock(path)
    try:
        waits = False
        # A shared lock that can be had means that the others only use it.
        while not (lock.take(exclusive=True) or lock.take(exclusive=False)):
            if not waits:
                on_wait()
            waits = True
            time.sleep(_WAIT_SECONDS)
        yield lock
    finally:
        lock.release()
