"""Image folders as examples: every file checked, divided into splits, and accounted for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from manyfit.data.examples import ImageData, Skipped, Split
from manyfit.data.file_check import check_files
from manyfit.data.listing import (
    VALIDATION_NAMES,
    FoundFile,
    class_folders,
    enumerate_names,
    existing_folder,
    list_files,
    reason_by_name,
    same_classes,
    split_folders,
)
from manyfit.data.manifest import fingerprint_files
from manyfit.errors import DataError

_FILES_SHOWN = 5


def in_validation(name: str, fraction: float) -> bool:
    """Tell whether a file is held out, by its name relative to the root: the same answer on every machine, for ever.

    >>> [in_validation(f"cats/{index}.jpg", 0.2) for index in range(6)]
    [False, False, False, False, True, False]
    """
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64


def load_folder(
    root: str | Path,
    *,
    name: str,
    validation_fraction: float,
    on_bad_image: str,
    cache_dir: Path | None = None,
    source: str = "folder",
    rehearsal: bool = False,
    notices: Sequence[str] = (),
) -> ImageData:
    """Load `root/{train,validation[,test]}/CLASS/*` or `root/CLASS/*`, every file checked by the training's decoder.

    Without a validation folder, the files for which `in_validation` holds are held out.

    Raises:
        DataError: no usable folder; fewer than two classes; a class without a usable picture; classes that differ
            between splits; a file that cannot be used where `on_bad_image` is `error`.
    """
    folders = split_folders(existing_folder(root))
    class_names = same_classes(folders)
    files = [file for split, folder in folders.items() for file in list_files(split, folder, class_names)]
    files = _checked(files, cache_dir)
    if on_bad_image == "error":
        _refuse_bad_files(files)
    _refuse_useless_classes(files, folders, class_names)
    if "validation" not in folders:
        files = [_divided(file, validation_fraction) for file in files]
    splits = {split: _make_split(split, files, class_names) for split in ("train", "validation", "test")}
    notes = list(notices)
    if "validation" not in folders:
        notes += _check_division(splits["train"], splits["validation"], class_names, validation_fraction)
    skipped = _list_skipped(files)
    if skipped:
        notes.append(f"{len(skipped)} of {len(files)} files cannot be used and are skipped (first: {skipped[0].path}).")
    return ImageData(
        name=name,
        source=source,
        class_names=class_names,
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"] if "test" in folders else None,
        found=_count_found(files, class_names),
        skipped=skipped,
        fingerprint=_fingerprint(files, class_names),
        rehearsal=rehearsal,
        notices=tuple(notes),
    )


def load_folder_whole(
    root: str | Path, class_names: Sequence[str], on_bad_image: str = "skip", *, cache_dir: Path | None = None
) -> tuple[Split, dict[str, dict[str, int]], tuple[Skipped, ...]]:
    """Load a flat `root/CLASS/*` as one split `test`, labelled by a trained model's class names.

    A class that the folder lacks is left out. Returns the split, the files found a class and the skipped files.

    Raises:
        DataError: a class folder that the model does not know; no usable picture; a file that cannot be used where
            `on_bad_image` is `error`.
    """
    root = existing_folder(root)
    here = class_folders(root)
    unknown = [name for name in here if name not in class_names]
    if unknown:
        splits = [name for name in unknown if name in ("train", "test", *VALIDATION_NAMES)]
        raise DataError(
            f"{root} has class folders that the model does not know: {enumerate_names(unknown)}. "
            f"The model's classes are {enumerate_names(class_names)}.",
            f"Give one split of it, such as {root / splits[-1]}."
            if splits
            else "Rename or move them, or evaluate with a model trained on these classes.",
        )
    files = _checked(list_files("test", root, here), cache_dir)
    if on_bad_image == "error":
        _refuse_bad_files(files)
    split = _make_split("test", files, class_names)
    if not len(split):
        raise DataError(
            f"{root} holds no picture that can be used{_first_reason(files)}.",
            f"Expected {root}/CLASS/* with at least one of the classes {enumerate_names(class_names)}.",
        )
    return split, _count_found(files, class_names), _list_skipped(files)


def _checked(files: list[FoundFile], cache_dir: Path | None) -> list[FoundFile]:
    reasons = iter(check_files([file.path for file in files if file.reason is None], cache_dir=cache_dir))
    return [file if file.reason is not None else replace(file, reason=next(reasons)) for file in files]


def _divided(file: FoundFile, validation_fraction: float) -> FoundFile:
    if file.split != "train" or not in_validation(file.name, validation_fraction):
        return file
    return replace(file, split="validation")


def _make_split(split: str, files: list[FoundFile], class_names: Sequence[str]) -> Split:
    label_of = {name: label for label, name in enumerate(class_names)}
    kept = [file for file in files if file.split == split and file.reason is None]
    labels = np.array([label_of[file.class_name] for file in kept], dtype=np.int32)
    return Split(split, labels, paths=tuple(file.path for file in kept))


def _fingerprint(files: list[FoundFile], class_names: Sequence[str]) -> str:
    label_of = {name: label for label, name in enumerate(class_names)}
    kept = [file for file in files if file.reason is None]
    return fingerprint_files((file.split, file.name, file.size, label_of[file.class_name]) for file in kept)


def _count_found(files: list[FoundFile], class_names: Sequence[str]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for file in files:
        found.setdefault(file.split, dict.fromkeys(class_names, 0))[file.class_name] += 1
    return found


def _list_skipped(files: list[FoundFile]) -> tuple[Skipped, ...]:
    return tuple(Skipped(file.path, file.split, file.class_name, file.reason) for file in files if file.reason)


def _refuse_bad_files(files: list[FoundFile]) -> None:
    """Raise where a file cannot be used; hidden and system files were never meant as pictures and don't count."""
    bad = [file for file in files if file.reason and reason_by_name(os.path.basename(file.name)) is None]
    if bad:
        shown = "".join(f"\n  {file.path}: {file.reason}" for file in bad[:_FILES_SHOWN])
        more = f"\n  and {len(bad) - _FILES_SHOWN} more" if len(bad) > _FILES_SHOWN else ""
        raise DataError(
            f"{len(bad)} of {len(files)} files cannot be used, and data.on_bad_image=error:{shown}{more}",
            "Repair or remove them, or use data.on_bad_image=skip.",
        )


def _refuse_useless_classes(files: list[FoundFile], folders: dict[str, Path], class_names: Sequence[str]) -> None:
    """Raise where a class folder holds nothing usable, before a hash divides the files."""
    held: dict[tuple[str, str], list[FoundFile]] = {}
    for file in files:
        held.setdefault((file.split, file.class_name), []).append(file)
    for split, folder in folders.items():
        for class_name in class_names:
            here = held.get((split, class_name), [])
            if all(file.reason for file in here):
                what = f"holds no picture that can be used{_first_reason(here)}" if here else "is empty"
                raise DataError(
                    f"The class folder {folder / class_name} {what}.",
                    "Put JPEG, PNG, GIF, BMP or WebP pictures in, or remove the class from every split.",
                )


def _check_division(
    train: Split, validation: Split, class_names: Sequence[str], validation_fraction: float
) -> list[str]:
    """Raise where a division leaves nothing to learn or to validate; return what the user should know of a good one."""
    learned, validated = set(train.labels.tolist()), set(validation.labels.tolist())
    unlearned = [name for label, name in enumerate(class_names) if label not in learned]
    total = len(train) + len(validation)
    if unlearned or not validated:
        what = f"training picture of {enumerate_names(unlearned)}" if unlearned else "validation picture"
        raise DataError(
            f"Dividing {total} pictures with data.validation_fraction={validation_fraction} leaves no {what}.",
            "Give more pictures, another data.validation_fraction, or the folders train and validation.",
        )
    notes = [
        f"No validation folder: {len(validation)} of {total} pictures are held out by a hash of their names "
        f"(data.validation_fraction={validation_fraction})."
    ]
    unseen = [name for label, name in enumerate(class_names) if label not in validated]
    if unseen:
        notes.append(f"None of the pictures held out is of {enumerate_names(unseen)}: nothing validates that.")
    return notes


def _first_reason(files: list[FoundFile]) -> str:
    bad = next((file for file in files if file.reason), None)
    return "" if bad is None else f" ({len(files)} found; {os.path.basename(bad.path)} is {bad.reason})"
