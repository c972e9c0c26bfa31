"""Pictures made in memory from a seed, whose class can be learned."""

from __future__ import annotations

import numpy as np

from manyfit.config import SyntheticConfig
from manyfit.data.examples import ImageData, Split
from manyfit.data.manifest import count_classes, fingerprint_arrays

_SEED = 0
_COARSE = 7  # a class is a pattern of 7 x 7 levels: coarse enough to survive the noise, the pooling and a resize
_SIGNAL = 64  # of 256 grey levels; the rest is noise
_CHUNK_BYTES = 1 << 24


def make_synthetic(config: SyntheticConfig) -> ImageData:
    """Make the data set: a coarse pattern a class, under uniform noise; the same numbers for the same config.

    Images are uint8 [N, image_size, image_size, channels]; classes are equally frequent to one example.
    """
    patterns = _patterns(config)
    class_names = tuple(f"class_{index}" for index in range(config.num_classes))
    train = _make_split("train", config.num_train, patterns, np.random.default_rng([_SEED, 1]))
    validation = _make_split("validation", config.num_validation, patterns, np.random.default_rng([_SEED, 2]))
    return ImageData(
        name=config.name,
        source="synthetic",
        class_names=class_names,
        train=train,
        validation=validation,
        found={split.name: count_classes(split, class_names) for split in (train, validation)},
        fingerprint=fingerprint_arrays((train, validation)),
    )


def _patterns(config: SyntheticConfig) -> np.ndarray:
    """One pattern a class: uint8 [num_classes, image_size, image_size, channels], values below `_SIGNAL`."""
    rng = np.random.default_rng([_SEED, 0])
    coarse = rng.integers(0, 2, (config.num_classes, _COARSE, _COARSE, config.channels), dtype=np.uint8)
    places = np.arange(config.image_size) * _COARSE // config.image_size
    return coarse[:, places][:, :, places] * np.uint8(_SIGNAL - 1)


def _make_split(name: str, count: int, patterns: np.ndarray, rng: np.random.Generator) -> Split:
    labels = rng.permutation(np.arange(count, dtype=np.int32) % len(patterns))
    images = np.empty((count, *patterns.shape[1:]), dtype=np.uint8)
    chunk = max(1, _CHUNK_BYTES // patterns[0].size)
    for start in range(0, count, chunk):
        part = images[start : start + chunk]
        part[:] = rng.integers(0, 256 - _SIGNAL, part.shape, dtype=np.uint8)
        part += patterns[labels[start : start + chunk]]
    return Split(name, labels, images=images)
