"""What lies in an image folder: the folder of each split, the class folders, the files in each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from manyfit.errors import DataError

VALIDATION_NAMES = ("validation", "val", "valid")
LAYOUT = "ROOT/train/CLASS/* and ROOT/validation/CLASS/*, or ROOT/CLASS/*"
_SYSTEM_FILES = ("thumbs.db", "desktop.ini")
_NAMES_SHOWN = 5


@dataclass(frozen=True)
class FoundFile:
    """A file found in a class folder.

    Args:
        split: The split it belongs to.
        class_name: The name of its class folder.
        name: CLASS/FILE, the same wherever the data set lies.
        path: Absolute.
        size: Bytes.
        reason: Why it cannot be used; None where it can, as far as is known.
    """

    split: str
    class_name: str
    name: str
    path: str
    size: int
    reason: str | None = None


def existing_folder(root: str | Path) -> Path:
    """Make an image folder's path absolute; raise DataError where it is no folder."""
    root = Path(os.path.abspath(os.path.expanduser(root)))
    if root.is_dir():
        return root
    is_there = root.exists()
    raise DataError(
        f"The image folder {root} {'is a file' if is_there else 'does not exist'}.",
        f"Expected a folder that holds {LAYOUT}{' (unpack an archive first)' if is_there else ''}.",
    )


def split_folders(root: Path) -> dict[str, Path]:
    """Find the folder of each split; the root itself is `train` where it holds the classes."""
    here = class_folders(root)
    validation = [name for name in VALIDATION_NAMES if name in here]
    if len(validation) > 1:
        raise DataError(
            f"{root} has more than one validation folder: {enumerate_names(validation)}.",
            "Keep one, or rename the others.",
        )
    if "train" not in here:
        if validation:
            raise DataError(f"{root} has '{validation[0]}' but no folder 'train'.", f"Expected {LAYOUT}.")
        return {"train": root}
    folders = {"train": root / "train"}
    if validation:
        folders["validation"] = root / validation[0]
    if "test" in here:
        folders["test"] = root / "test"
    return folders


def class_folders(folder: Path) -> list[str]:
    """Name the folders in `folder`, sorted; hidden ones and those of archive tools are no classes."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir()]
    return sorted(name for name in names if not name.startswith((".", "__MACOSX")))


def same_classes(folders: dict[str, Path]) -> tuple[str, ...]:
    """Name the classes, sorted; raise DataError where there are fewer than two or the splits differ."""
    train = folders["train"]
    expected = class_folders(train)
    if len(expected) < 2:
        found = f"one class folder only, '{expected[0]}'" if expected else "no class folder"
        inside = class_folders(train / expected[0]) if expected else []
        hint = f" Did you mean {train / expected[0]}?" if len(inside) > 1 else ""
        raise DataError(
            f"{train} has {found}; at least two are needed.", f"Expected {LAYOUT}, where ROOT is data.root.{hint}"
        )
    for folder in folders.values():
        names = class_folders(folder)
        differences = [f"only {train.name} has {name}" for name in expected if name not in names]
        differences += [f"only {folder.name} has {name}" for name in names if name not in expected]
        if differences:
            raise DataError(
                f"The classes of {train} and {folder} differ: {enumerate_names(differences)}.",
                "Every split must have the same class folders.",
            )
    return tuple(expected)


def list_files(split: str, folder: Path, class_names: Iterable[str]) -> list[FoundFile]:
    """List every entry of the class folders in the order of their names, unusable ones with the reason."""
    files = []
    for class_name in class_names:
        with os.scandir(folder / class_name) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                try:
                    size = entry.stat().st_size
                except OSError:
                    size = 0  # a broken link; the check of the contents says so
                name = f"{class_name}/{entry.name}"
                files.append(FoundFile(split, class_name, name, entry.path, size, reason_by_name(entry.name)))
    return files


def reason_by_name(name: str) -> str | None:
    """Say why a file of this name is not used, whatever it holds; None for any other name."""
    if name.startswith("."):
        return "a hidden file"
    if name.lower() in _SYSTEM_FILES:
        return "a file of the operating system, not a picture"
    return None


def enumerate_names(names: Sequence[str]) -> str:
    """Join the first names with commas and count the rest.

    >>> enumerate_names(["a", "b", "c", "d", "e", "f", "g"])
    'a, b, c, d, e and 2 more'
    """
    shown = ", ".join(names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"
