"""Files that are whole or not there, and values in the types of JSON."""

import contextlib
import dataclasses
import enum
import json
import math
import os
import threading
from pathlib import Path
from typing import Any

from manyfit.errors import TrainingError


def to_plain(value: Any) -> Any:
    """`value` in the types of JSON: NumPy scalars and arrays as numbers and lists, paths as strings.

    A float that is not finite becomes None, since JSON has no such number.

    >>> to_plain({"path": Path("a"), "losses": (0.5, float("nan")), "sizes": {2, 1}})
    {'path': 'a', 'losses': [0.5, None], 'sizes': [1, 2]}
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, enum.Enum):
        return to_plain(value.value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((to_plain(item) for item in value), key=lambda item: (str(type(item)), item))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_plain(dataclasses.asdict(value))
    for method in ("numpy", "tolist"):  # an eager tensor or variable; a NumPy scalar or array
        convert = getattr(value, method, None)
        if callable(convert):
            return to_plain(convert())
    return int(value) if isinstance(value, int) else str(value)


def to_json(value: Any, indent: int | None = None) -> str:
    """`value` as JSON that any reader takes; on one line unless indented."""
    return json.dumps(to_plain(value), ensure_ascii=False, allow_nan=False, indent=indent)


def write_atomically(path: Path, text: str) -> None:
    """Write `text` beside `path` and then replace it: a reader or a crash never meets half a file.

    Raises:
        TrainingError: the disk is full, or the folder cannot be written to; the old file is as it was.
    """
    # A thread that finds a fault may write while the training does.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            _write_through(file, text)
        os.replace(temporary, path)
    except OSError as error:
        remove_quietly(temporary)
        raise unwritable(path, error) from error


def append_line(path: Path, line: str) -> None:
    """Append one line, on the disk when this returns.

    Raises:
        TrainingError: the disk is full, or the file cannot be written to; part of the line may be there.
    """
    try:
        with path.open("ab") as file:
            _write_through(file, line + "\n")
    except OSError as error:
        raise unwritable(path, error) from error


def flush(path: Path) -> None:
    """Wait until a file, or what a folder lists, has reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_quietly(path: Path) -> None:
    """Remove a file that may be there; on a file system that is only read it can't be, and need not."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def unwritable(path: Path, error: OSError) -> TrainingError:
    """The error for the user when `path` could not be written."""
    reason = error.strerror or str(error)
    return TrainingError(f"{path} cannot be written: {reason}.", "Free space there, or check its permissions.")


def _write_through(file: Any, text: str) -> None:
    # A file name that is not UTF-8 arrives with lone surrogates; backslashreplace writes JSON's own escape for them.
    file.write(text.encode("utf-8", "backslashreplace"))
    file.flush()
    os.fsync(file.fileno())
