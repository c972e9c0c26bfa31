"""Large arrays that many runs share on disk: addressed by what they hold, whole or not there, verified, bounded.

An entry is a folder `KEY/` with `array.npy` and `entry.json`. It is made beside its place and moved there in one
rename. `locks/KEY.lock` says who uses it (shared) or makes it (exclusive).
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from manyfit.files import flush
from manyfit.locks import FileLock, made_by_one

ARRAY_NAME = "array.npy"
ENTRY_NAME = "entry.json"
ALIGNMENT = 64
"""TensorFlow shares the memory of an array that begins at a multiple of this many bytes."""

_LOCKS = "locks"
_ABANDONED_SECONDS = 48 * 3600


class _CannotStore(Exception):
    """Why an entry is not kept on disk, in words."""


@dataclass(frozen=True, eq=False)
class Stored:
    """An array and where it came from.

    Args:
        array: Read it; it may be memory-mapped.
        reused: It was there already.
        path: Its folder; None where it is in memory only.
    """

    array: np.ndarray
    reused: bool
    path: Path | None


def key_of(facts: dict[str, Any]) -> str:
    """The address of what `facts` determine: 64 hex digits, whatever their order.

    >>> key_of({"a": 1, "b": [2]}) == key_of({"b": [2], "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def num_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    """Bytes of an array.

    >>> num_bytes((2, 3), "float32")
    24
    """
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def aligned_array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised array in memory at a multiple of `ALIGNMENT` bytes."""
    count = num_bytes(shape, dtype)
    memory = np.empty(count + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + count].view(dtype).reshape(shape)


class ArrayStore:
    """Arrays under one folder that together stay below a limit: the one used longest ago goes first.

    Nothing that goes wrong with the folder ends a run: the array is then made in memory, with a notice. An array that
    was handed out is evicted by nobody until `close`, or the end of the process.

    Args:
        folder: Made when first needed.
        limit_bytes: What all entries may take.
        notify: Told, in one line each, what the user should know.
    """

    def __init__(self, folder: Path, limit_bytes: float, notify: Callable[[str], None] = lambda text: None):
        self.folder = Path(folder)
        self.limit_bytes = limit_bytes
        self._notify = notify
        self._held: dict[str, FileLock] = {}

    def close(self) -> None:
        """Let others evict what this store has handed out; the arrays stay valid."""
        while self._held:
            self._held.popitem()[1].release()

    def __enter__(self) -> "ArrayStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_or_make(
        self,
        key: str,
        shape: tuple[int, ...],
        dtype: Any,
        fill: Callable[[np.ndarray], None],
        *,
        accept: Callable[[np.ndarray], bool] = lambda array: True,
        facts: dict[str, Any] | None = None,
    ) -> Stored:
        """The stored array, memory-mapped and verified, else a new one that `fill` writes and that is then stored.

        While another process makes the same entry, this one waits for it.

        Args:
            key: Its address.
            shape: Its shape.
            dtype: Its type.
            fill: Writes all of the array it gets; it may raise, and nothing is stored then.
            accept: A last look at a stored array; where it says no, the array is made anew.
            facts: What the array holds, for people who look into the folder.
        """

        def on_wait() -> None:
            self._notify("Another process is making the same cache entry: waiting for it.")

        place = self.folder / key
        with made_by_one(self._lock_path(key), on_wait) as lock:
            found = self._read(place, shape, dtype)
            reused = found is not None and accept(found)
            stored = Stored(found, True, place) if found is not None and reused else None
            stored = stored or self._make(place, shape, dtype, fill, facts or {})
        if stored.path is not None:
            lock = self._held.setdefault(key, FileLock(self._lock_path(key)))
            lock.take(exclusive=False)
        return stored

    def has(self, key: str) -> bool:
        """Whether there is such an entry, damaged or not."""
        return (self.folder / key / ENTRY_NAME).is_file()

    def release(self, key: str) -> None:
        """Let others evict this entry; the array stays valid."""
        if key in self._held:
            self._held.pop(key).release()

    def remove(self, key: str) -> bool:
        """Remove an entry that nobody uses; False where somebody does."""
        return not self.has(key) or self._evict(self.folder / key)

    def _lock_path(self, key: str) -> Path:
        return self.folder / _LOCKS / f"{key}.lock"

    def _read(self, place: Path, shape: tuple[int, ...], dtype: Any) -> np.ndarray | None:
        """The array of an entry; None where there is none, or a damaged one, which is told."""
        if not place.is_dir():
            return None
        try:
            array = _verified(place, tuple(shape), np.dtype(dtype))
        except FileNotFoundError as error:
            if place.is_dir():
                self._notify(f"The cache entry {place} lacks {Path(error.filename).name} and is made anew.")
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._notify(f"The cache entry {place} is damaged ({error}) and is made anew.")
            return None
        with contextlib.suppress(OSError):  # a folder that is only read keeps its old times
            os.utime(place / ENTRY_NAME)
        return array

    # --- making an entry --------------------------------------------------------------------------------------------

    def _make(self, place: Path, shape: tuple[int, ...], dtype: Any, fill: Callable, facts: dict) -> Stored:
        try:
            staging, array = self._stage(place.name, shape, dtype)
        except (OSError, _CannotStore) as error:
            self._notify(f"The cache {self.folder} cannot be used ({_reason(error)}): memory takes its place.")
            array = aligned_array(shape, dtype)
            fill(array)
            return Stored(array, False, None)
        try:
            fill(array)
            self._publish(staging, place, array, facts)
            return Stored(_mapped(place, shape, dtype), False, place)
        except _CannotStore as error:
            self._notify(f"{error} What was computed is kept for this run.")
            return Stored(array, False, None)  # the file goes, its pages stay as long as the array
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _stage(self, key: str, shape: tuple[int, ...], dtype: Any) -> tuple[Path, np.ndarray]:
        """A folder beside the entry's place and the array in it, whose space on the disk is reserved."""
        size = num_bytes(shape, dtype)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_abandoned(key)
        self._make_room(size, key)
        staging = Path(tempfile.mkdtemp(prefix=f".new-{key[:16]}-", dir=self.folder))
        try:
            path = staging / ARRAY_NAME
            with path.open("wb") as file:
                header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False}
                np.lib.format.write_array_header_1_0(file, header | {"shape": tuple(shape)})
                end = file.tell() + size
                file.truncate(end)
                file.flush()
                if hasattr(os, "posix_fallocate"):
                    # A write into a mapped file on a full disk would kill the process: fail here instead.
                    os.posix_fallocate(file.fileno(), 0, end)
            return staging, np.load(path, mmap_mode="r+", allow_pickle=False) if size else np.empty(shape, dtype)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise

    def _publish(self, staging: Path, place: Path, array: np.ndarray, facts: dict[str, Any]) -> None:
        """Make the staged array the entry, in one move, after it has reached the disk."""
        path = staging / ARRAY_NAME
        try:
            if isinstance(array, np.memmap):
                array.flush()
            entry = {"sha256": _sha256(path), "bytes": path.stat().st_size, "facts": facts}
            (staging / ENTRY_NAME).write_text(json.dumps(entry, indent=1), encoding="utf-8")
            for name in (ARRAY_NAME, ENTRY_NAME):
                flush(staging / name)
            staging.chmod(0o755)
            if place.exists():  # damaged: a good one would have been taken
                _remove(place)
            try:
                os.rename(staging, place)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # else another process was first
                    raise
            flush(self.folder)
        except OSError as error:
            raise _CannotStore(f"The cache entry {place} cannot be written: {_reason(error)}.") from error

    # --- keeping within the limit -----------------------------------------------------------------------------------

    def _make_room(self, needed: int, key: str) -> None:
        limit = f"its limit of {self.limit_bytes / 1e9:.3g} GB"
        if needed > self.limit_bytes:
            raise _CannotStore(f"{needed / 1e9:.3g} GB are more than {limit}")
        entries = [path for path in self.folder.iterdir() if re.fullmatch("[0-9a-f]{64}", path.name)]
        sizes = {path: _size(path / ARRAY_NAME) for path in (*entries, *self.folder.glob(".*")) if path.name != key}
        total = sum(sizes.values()) + needed
        for path in sorted(set(entries) & set(sizes), key=lambda path: _last_used(path / ENTRY_NAME)):
            if total > self.limit_bytes and self._evict(path):
                total -= sizes[path]
        if total > self.limit_bytes:
            raise _CannotStore(f"{limit} is taken by entries in use")

    def _evict(self, place: Path) -> bool:
        """Remove an entry that nobody uses; False where somebody does."""
        if place.name in self._held:
            return False
        lock = FileLock(self._lock_path(place.name))
        try:
            if not lock.take(exclusive=True):
                return False
            _remove(place)
        except OSError:
            return False
        finally:
            lock.release()
        return True

    def _remove_abandoned(self, key: str) -> None:
        """Remove what processes left behind that died while they made or removed an entry."""
        for path in self.folder.glob(".*"):
            with contextlib.suppress(OSError):
                # Whoever makes `key` holds the lock that this process has now.
                if path.name.startswith(f".new-{key[:16]}-") or time.time() - _last_used(path) > _ABANDONED_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)


def _verified(place: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The array of an entry.

    Raises:
        ValueError: it is not what was written, or not what is expected.
    """
    entry = json.loads((place / ENTRY_NAME).read_text(encoding="utf-8"))
    size = (place / ARRAY_NAME).stat().st_size
    if size != entry["bytes"]:
        raise ValueError(f"{size} bytes, expected {entry['bytes']}")
    if _sha256(place / ARRAY_NAME) != entry["sha256"]:
        raise ValueError("its bytes have changed")
    array = _mapped(place, shape, dtype)
    if (array.shape, array.dtype) != (shape, dtype):
        raise ValueError(f"{array.dtype} {array.shape}, expected {dtype} {shape}")
    return array


def _mapped(place: Path, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    # Copy on write: the file never changes, and TensorFlow can share memory that is not read-only.
    return np.load(place / ARRAY_NAME, mmap_mode="c" if num_bytes(shape, dtype) else None, allow_pickle=False)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _last_used(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def _remove(place: Path) -> None:
    """Take an entry out of its place in one move, then delete it."""
    trash = place.with_name(f".old-{place.name[:16]}-{os.getpid()}-{time.monotonic_ns()}")
    os.rename(place, trash)
    shutil.rmtree(trash, ignore_errors=True)


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
