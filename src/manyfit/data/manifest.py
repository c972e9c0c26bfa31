"""What the examples of a run are: their fingerprint, and the list of files found, kept and skipped."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable

import numpy as np

from manyfit.data.examples import ImageData, Split


def fingerprint_files(files: Iterable[tuple[str, str, int, int]]) -> str:
    """Hash files by what names them: (split, relative name, size in bytes, label) each; hex, 64 digits.

    The order of the files does not matter, nor where the folder lies.
    """
    digest = hashlib.sha256()
    for split, name, size, label in sorted(files):
        digest.update(f"{split}\0{name}\0{size}\0{label}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def fingerprint_arrays(splits: Iterable[Split]) -> str:
    """Hash every picture and label of in-memory splits; hex, 64 digits."""
    digest = hashlib.sha256()
    for split in splits:
        assert split.images is not None
        for array in (split.images, split.labels):
            digest.update(f"{split.name}\0{array.dtype}\0{array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def splits_of(data: ImageData) -> tuple[Split, ...]:
    """The splits that the data set has: train, validation and perhaps test."""
    return tuple(split for split in (data.train, data.validation, data.test) if split is not None)


def count_classes(split: Split, class_names: tuple[str, ...]) -> dict[str, int]:
    """Count the examples of each class."""
    counts = np.bincount(split.labels, minlength=len(class_names))
    return dict(zip(class_names, counts.tolist(), strict=True))


def manifest(data: ImageData) -> dict:
    """Make the JSON-able account of the examples that a run keeps as `manifest.json`.

    For each split and class `kept + skipped = found`; every skipped file is listed with its reason.
    """
    splits: dict[str, dict[str, dict[str, int]]] = {}
    for split in splits_of(data):
        kept = count_classes(split, data.class_names)
        found = data.found.get(split.name, kept)
        splits[split.name] = {
            name: {"found": found.get(name, 0), "kept": kept[name], "skipped": found.get(name, 0) - kept[name]}
            for name in data.class_names
        }
    return {
        "schema": 1,
        "name": data.name,
        "source": data.source,
        "rehearsal": data.rehearsal,
        "class_names": list(data.class_names),
        "fingerprint": data.fingerprint,
        "splits": splits,
        "skipped": [dataclasses.asdict(skipped) for skipped in data.skipped],
    }
