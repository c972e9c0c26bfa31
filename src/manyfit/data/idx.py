"""Pictures and labels in IDX files (MNIST's format) and .npz files, checked before anything believes them."""

from __future__ import annotations

import gzip
import math
import zipfile
import zlib
from pathlib import Path

import numpy as np

from manyfit.errors import DataError

_NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")
_FRESH_COPY = "Download it again, or copy it again and compare the size."


def read_idx(path: Path, num_dimensions: int) -> np.ndarray:
    """Read an IDX file of unsigned bytes, plain or `.gz`: uint8 with the shape that its header gives.

    Raises:
        DataError: not an IDX file of bytes with so many dimensions, or cut, or longer than its header says.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}.", _FRESH_COPY) from error
    magic = bytes([0, 0, 8, num_dimensions])
    header = 4 + 4 * num_dimensions
    if content[:4] != magic or len(content) < header:
        raise DataError(
            f"{path} is no IDX file of bytes with {num_dimensions} dimension{'s' if num_dimensions > 1 else ''}: "
            f"it starts with {content[:4].hex() or 'nothing'}, expected {magic.hex()}.",
            _FRESH_COPY,
        )
    shape = tuple(np.frombuffer(content, ">u4", num_dimensions, 4).tolist())
    if len(content) - header != math.prod(shape):
        raise DataError(
            f"{path} holds {len(content) - header:,} bytes after its header; its shape {shape} needs "
            f"{math.prod(shape):,}.",
            _FRESH_COPY,
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file; nothing in it is ever unpickled.

    Raises:
        DataError: damaged, an array of objects, or without one of x_train, y_train, x_test, y_test.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            missing = [key for key in _NPZ_KEYS if key not in archive.files]
            if missing:
                raise DataError(
                    f"{path} has no {', '.join(missing)}; it holds {', '.join(archive.files) or 'nothing'}.",
                    f"Expected the arrays {', '.join(_NPZ_KEYS)}, as in keras' mnist.npz.",
                )
            return {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, AttributeError) as error:
        raise DataError(f"{path} cannot be read as .npz: {str(error).splitlines()[0]}.", _FRESH_COPY) from error


def as_images(array: np.ndarray, where: str) -> np.ndarray:
    """Make uint8 [N, height, width, channels] of grey pictures without or any with a channel axis."""
    if array.ndim == 3:
        array = array[..., np.newaxis]
    if array.ndim != 4 or array.shape[-1] not in (1, 3) or 0 in array.shape:
        raise DataError(
            f"{where} has the shape {array.shape}.",
            "Expected pictures [N, height, width] or [N, height, width, 1 or 3].",
        )
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind not in "iu" or array.min() < 0 or array.max() > 255:
        raise DataError(f"{where} holds {array.dtype} values.", "Expected whole numbers from 0 to 255 (uint8).")
    return array.astype(np.uint8)


def as_labels(array: np.ndarray, num_images: int, where: str) -> np.ndarray:
    """Make int64 [N] of labels; raise DataError where they are no whole numbers or not one a picture."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (num_images,) or array.dtype.kind not in "iu":
        raise DataError(
            f"{where} holds {array.dtype} of the shape {array.shape} for {num_images:,} pictures.",
            "Expected one whole number a picture.",
        )
    return array.astype(np.int64)
