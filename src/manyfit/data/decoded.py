"""Pictures decoded once: in chunks for a pass over them, or as one array that a run gathers its batches from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import tensorflow as tf

from manyfit.array_store import ArrayStore, Stored, aligned_array, key_of, num_bytes
from manyfit.data.examples import ImageData, Split
from manyfit.data.pipeline import as_tensor, fit_shape, read_picture
from manyfit.errors import ConfigError, UserError
from manyfit.files import write_atomically
from manyfit.processes import num_cores

PIXELS_VERSION = 1
"""Raise it when a file's pixels change: another way to decode or to resize."""

_ROWS = 16
_SHARE_OF_FREE_MEMORY = 0.5

Progress = Callable[[int, int], None]
"""Told the examples done and their total, now and then; what it raises ends the pass."""


@dataclass(frozen=True)
class Choice:
    """Where something is kept, and why.

    Args:
        use: `memory`, `disk`, or None for nowhere.
        why: One line for the user.
    """

    use: str | None
    why: str


def read_in_order(
    split: Split, image_shape: tuple[int, ...], rows: int = _ROWS, *, ahead_bytes: int = 0
) -> Iterator[np.ndarray]:
    """The pictures of a split, in its order, as uint8 [up to `rows`, height, width, channels]; decoded in parallel.

    The pixels are those that `Feed` trains on. Decoding begins when the first are asked for.

    Args:
        rows: Pictures of a chunk.
        ahead_bytes: What may be decoded ahead of who asks; a few chunks in any case.
    """
    threads = num_cores()
    ahead = max(2, ahead_bytes // num_bytes((rows, *image_shape), np.uint8))
    if split.paths is not None:
        pictures = tf.data.Dataset.from_tensor_slices(list(split.paths)).map(
            lambda path: read_picture(path, image_shape), num_parallel_calls=threads, deterministic=True
        )
        chunks = pictures.batch(rows)
    else:
        images = as_tensor(split.images)
        starts = tf.data.Dataset.range(0, len(split), rows)
        chunks = starts.map(lambda start: fit_shape(images[start : start + rows], image_shape), threads)
    options = tf.data.Options()
    # Threads of its own: TensorFlow's shared ones may be busy with the network that eats these pictures.
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    return chunks.prefetch(ahead).with_options(options).as_numpy_iterator()


def content_of(split: Split, memory: Path | None = None) -> str:
    """Hash what the pictures of a split are, byte by byte and in their order; labels and names don't count.

    The bytes of files are read again only when size, time or inode of one has changed since they were last read.

    Args:
        memory: Folder in which hashes of file lists are remembered; None remembers nothing.
    """
    if split.paths is None:
        assert split.images is not None
        images = np.ascontiguousarray(split.images)
        return hashlib.sha256(
            f"{images.dtype}{images.shape}".encode() + hashlib.sha256(images.data).digest()
        ).hexdigest()
    listing = hashlib.sha256()
    for path in split.paths:
        status = os.stat(path)
        # The time of the last change to the inode can't be set by hand: equal means untouched.
        stamp = (path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        listing.update(json.dumps(stamp).encode())
    known = None if memory is None else Path(memory) / listing.hexdigest()
    if known is not None and known.is_file():
        remembered = known.read_text(encoding="ascii")
        if len(remembered) == 64:
            return remembered
    content = _hash_files(split.paths)
    if known is not None:
        _remember(known, content)
    return content


def _hash_files(paths: tuple[str, ...]) -> str:
    def hash_of(path: str) -> bytes:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).digest()

    with ThreadPoolExecutor(2 * num_cores()) as pool:
        return hashlib.sha256(b"".join(pool.map(hash_of, paths))).hexdigest()


def _remember(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except (OSError, UserError):
        return  # reading the files again costs time, never the run


def decide(cache: str, data: ImageData, image_shape: tuple[int, ...], *, epochs: int, features: bool) -> Choice:
    """Where the decoded pictures of a run are kept.

    Args:
        cache: `data.cache`: `auto`, `off`, `memory` or `disk`.
        features: The run trains on cached features, so that each picture is decoded once anyway.

    Raises:
        ConfigError: `memory` is asked for and is not there.
    """
    if data.train.paths is None:
        return Choice(None, "the pictures are in memory already")
    if cache == "off":
        return Choice(None, "data.cache=off")
    if features:
        return Choice(None, "each picture is decoded once, for the feature cache")
    needed = sum(num_bytes((len(split), *image_shape), np.uint8) for split in (data.train, data.validation))
    free = psutil.virtual_memory().available
    estimate = f"{needed / 1e9:.3g} GB of decoded pictures, {free / 1e9:.3g} GB of memory free"
    fits = needed <= _SHARE_OF_FREE_MEMORY * free
    if cache == "disk":
        return Choice("disk", f"data.cache=disk: {estimate}")
    if cache == "memory" and not fits:
        raise ConfigError(
            f"data.cache=memory needs more than half of the memory that is free: {estimate}.",
            "Give data.cache=disk or data.cache=off.",
        )
    if cache == "memory":
        return Choice("memory", f"data.cache=memory: {estimate}")
    if epochs == 1:
        return Choice(None, "one epoch decodes each picture once")
    return Choice("memory", estimate) if fits else Choice(None, f"too large for the memory: {estimate}")


def decode(
    data: ImageData,
    image_shape: tuple[int, ...],
    *,
    use: str,
    store: ArrayStore,
    on_progress: Progress = lambda done, total: None,
) -> ImageData:
    """The data set with its pictures decoded to uint8 [N, height, width, channels]: those that training would see.

    Args:
        use: `memory` or `disk`.
        store: Where the arrays go on disk.
        on_progress: Called after each chunk.
    """
    total = len(data.train) + len(data.validation)

    def decoded(split: Split, before: int) -> Split:
        def fill(array: np.ndarray) -> None:
            first = 0
            for chunk in read_in_order(split, image_shape):
                array[first : first + len(chunk)] = chunk
                first += len(chunk)
                on_progress(before + first, total)

        shape = (len(split), *image_shape)
        if use == "memory":
            stored = Stored(aligned_array(shape, np.uint8), False, None)
            fill(stored.array)
        else:
            facts = pixel_facts(split, image_shape, store.folder / "contents")
            stored = store.get_or_make(key_of(facts), shape, np.uint8, fill, facts=facts)
        return Split(split.name, split.labels, images=stored.array)

    train = decoded(data.train, 0)
    return dataclasses.replace(data, train=train, validation=decoded(data.validation, len(train)))


def pixel_facts(split: Split, image_shape: tuple[int, ...], memory: Path | None) -> dict:
    """All that determines the pixels that come out of a split."""
    return {
        "pixels": PIXELS_VERSION,
        "tensorflow": tf.__version__,
        "content": content_of(split, memory),
        "image_shape": list(image_shape),
    }
