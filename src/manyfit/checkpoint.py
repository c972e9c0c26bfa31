"""The exact state of a training on disk: whole or not there, checked when read, and never code.

A checkpoint is one `.npz` file of plain arrays, which NumPy alone can open. Its name says how far the training was and
begins the SHA-256 of its bytes, so that a file that is cut off or damaged is known for one.
"""

import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from manyfit.errors import TrainingError, UserError
from manyfit.files import flush, remove_quietly, to_json, unwritable

FOLDER_NAME = "checkpoints"
FORMAT = 1
_NAME = re.compile(r"epoch-(\d+)-step-(\d+)\.([0-9a-f]{16})\.npz")
_STATE = "state"


class DamagedError(UserError):
    """A checkpoint that is not what was written."""


@dataclass(frozen=True, order=True)
class Position:
    """How far a training is: whole epochs, and steps in the one that runs."""

    epoch: int = 0
    step: int = 0

    def __str__(self) -> str:
        return f"epoch {self.epoch + 1}, step {self.step}"


START = Position()


@dataclass(frozen=True)
class Checkpoint:
    """What a training needs to go on.

    Args:
        position: Where it goes on.
        arrays: Every variable, by name.
        state: Everything else, in the types of JSON.
    """

    position: Position
    arrays: dict[str, np.ndarray]
    state: dict[str, Any] = field(default_factory=dict)


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint into `folder`; it is on the disk, whole, when this returns.

    Raises:
        TrainingError: it cannot be written; those that are there are untouched.
    """
    position = checkpoint.position
    names = list(checkpoint.arrays)
    facts = {"format": FORMAT, "epoch": position.epoch, "step": position.step, "names": names}
    state = np.frombuffer(to_json(facts | {"state": checkpoint.state}).encode(), np.uint8)
    stem = f"epoch-{position.epoch:05d}-step-{position.step:09d}"
    temporary = folder / f".{stem}.{os.getpid()}.tmp"
    size = sum(array.nbytes for array in checkpoint.arrays.values())
    try:
        folder.mkdir(exist_ok=True)
        with temporary.open("wb+") as file:
            arrays = {f"array_{index}": checkpoint.arrays[name] for index, name in enumerate(names)}
            np.savez(file, **{_STATE: state}, **arrays)
            file.flush()
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
            os.fsync(file.fileno())
        path = folder / f"{stem}.{digest}.npz"
        os.replace(temporary, path)
        flush(folder)
    except OSError as error:
        remove_quietly(temporary)
        problem = unwritable(folder / f"{stem}.npz", error)
        raise TrainingError(problem.message, f"It needs {size / 1e6:,.1f} MB. {problem.remedy}") from error
    return path


def load(path: Path) -> Checkpoint:
    """The checkpoint in a file.

    Raises:
        DamagedError: it is cut off, altered or no checkpoint.
    """
    named = _NAME.fullmatch(path.name)
    if named is None:
        raise DamagedError(f"{path} is not named like a checkpoint.", "Give back the name it was written under.")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror or error}.", "Check its permissions.") from error
    if hashlib.sha256(content).hexdigest()[:16] != named[3]:
        raise DamagedError(f"{path} is damaged: its bytes are not those that were written.", "Use the one before it.")
    return _decoded(path, content)


def _decoded(path: Path, content: bytes) -> Checkpoint:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            # Stored members only: a small file cannot unpack into all the memory there is.
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise ValueError("it is compressed")
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            facts = json.loads(file[_STATE].tobytes())
            if facts["format"] != FORMAT:
                raise ValueError(f"it has format {facts['format']}, expected {FORMAT}")
            arrays = {str(name): file[f"array_{index}"] for index, name in enumerate(facts["names"])}
            position = Position(int(facts["epoch"]), int(facts["step"]))
            if not isinstance(facts["state"], dict) or min(position.epoch, position.step) < 0:
                raise ValueError("it holds no state")
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, RecursionError) as error:
        raise DamagedError(f"{path} is no checkpoint: {error}.", "Use the one before it.") from error
    return Checkpoint(position, arrays, facts["state"])


def paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the furthest first."""
    found = [(path, _NAME.fullmatch(path.name)) for path in folder.glob("epoch-*.npz")]
    ranked = sorted(((int(name[1]), int(name[2]), path) for path, name in found if name), reverse=True)
    return [path for _, _, path in ranked]


def position_of(path: Path) -> Position:
    """What the name of a checkpoint says."""
    named = _NAME.fullmatch(path.name)
    assert named is not None
    return Position(int(named[1]), int(named[2]))


def newest(folder: Path, notify: Callable[[str], None]) -> Checkpoint | None:
    """The furthest checkpoint that is whole; a damaged one is named and passed over. None where there is none."""
    for path in paths(folder):
        try:
            return load(path)
        except DamagedError as error:
            notify(f"{error.message} The checkpoint before it is used.")
    return None


def prune(folder: Path, keep: int, epochs: Iterable[int] = ()) -> None:
    """Remove all but the furthest `keep` checkpoints and those at the start of `epochs` (counted from 0)."""
    wanted = {Position(epoch) for epoch in epochs}
    for path in paths(folder)[keep:]:
        if position_of(path) not in wanted:
            path.unlink(missing_ok=True)


def discard_after(folder: Path, position: Position) -> None:
    """Remove what lies beyond `position`, where a training goes on from: damaged, or of another future."""
    for path in paths(folder):
        if position_of(path) > position:
            path.unlink(missing_ok=True)
    for path in folder.glob(".epoch-*.tmp"):
        path.unlink(missing_ok=True)
