"""MNIST-like sets in memory: found under a root, turned upright, with the classes that the data show."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from manyfit.config import DataConfig, EmnistConfig
from manyfit.data.catalog import DataSet, data_set
from manyfit.data.examples import ImageData, Split
from manyfit.data.idx import as_images, as_labels, read_idx, read_npz
from manyfit.data.manifest import count_classes, fingerprint_arrays
from manyfit.errors import DataError

_IDX_NAME = re.compile(
    r"(?:emnist-(?P<variant>[a-z]+)-)?(?P<part>train|t10k|test)-(?P<what>images|labels)[-.]idx[13]-ubyte(?P<gz>\.gz)?"
)
_Part = tuple[np.ndarray, np.ndarray]  # pictures and raw labels


def load_arrays(config: DataConfig, root: str | Path) -> ImageData:
    """Load IDX files (plain or `.gz`) or an .npz file; `root` is their folder, or the .npz file itself.

    The t10k or test part is the validation split. Raw EMNIST, which lies on its side, is turned upright; an .npz is
    taken as it is.

    Raises:
        DataError: nothing usable under `root`, or damaged files.
    """
    root = Path(os.path.abspath(os.path.expanduser(root)))
    known = data_set(config)
    if not root.exists():
        raise DataError(f"data.root={root} does not exist.", f"Expected a folder that holds {known.files}.")
    names: dict[int, str] = {}
    if root.is_file():
        train, validation, names = _from_npz(root)
    elif files := _find_idx(config, root, known):
        train, validation = (_from_idx(files, part) for part in ("train", "test"))
        if isinstance(config, EmnistConfig):
            train, validation = upright(train), upright(validation)
    else:
        train, validation, names = _from_npz(_find_npz(config, root, known))
    if isinstance(config, EmnistConfig):
        names = names or read_mapping(root if root.is_dir() else root.parent, config.variant)
    return make_array_data(config.name, "arrays", train, validation, names or known.label_names)


def upright(part: _Part) -> _Part:
    """Turn raw EMNIST, stored with rows and columns swapped, upright."""
    return np.ascontiguousarray(part[0].swapaxes(1, 2)), part[1]


def make_array_data(name: str, source: str, train: _Part, validation: _Part, names: dict[int, str]) -> ImageData:
    """Make the data set of two parts; the classes are the label values that the training part holds, in order.

    Args:
        name: The data set.
        source: Where it came from.
        train: uint8 [N, height, width, channels] and int64 [N], values that may start anywhere and have gaps.
        validation: The same.
        names: Class name by label value; a value without one is called by its number.
    """
    values = np.unique(train[1])
    if len(values) < 2:
        raise DataError(f"The training part of data={name} holds {len(values)} class.", "At least two are needed.")
    unlearned = np.setdiff1d(validation[1], values)
    if len(unlearned):
        raise DataError(
            f"The test part of data={name} has labels that the training part lacks: {unlearned[:5].tolist()}.",
            "Both parts must be of the same set (and, for EMNIST, of the same variant).",
        )
    if train[0].shape[1:] != validation[0].shape[1:]:
        raise DataError(
            f"Training pictures are {train[0].shape[1:]}, test pictures {validation[0].shape[1:]}.",
            "Both parts must be of the same set.",
        )
    class_names = tuple(names.get(value, str(value)) for value in values.tolist())
    splits = [
        Split(split, np.searchsorted(values, labels).astype(np.int32), images=images)
        for split, (images, labels) in (("train", train), ("validation", validation))
    ]
    return ImageData(
        name=name,
        source=source,
        class_names=class_names,
        train=splits[0],
        validation=splits[1],
        found={split.name: count_classes(split, class_names) for split in splits},
        fingerprint=fingerprint_arrays(splits),
    )


def read_mapping(folder: Path, variant: str) -> dict[int, str]:
    """Read EMNIST's mapping file (a line a class: label, code point[, lower-case code point]); empty without one."""
    path = folder / f"emnist-{variant}-mapping.txt"
    if not path.is_file():
        others = sorted(folder.glob("emnist-*-mapping.txt"))
        if len(others) != 1:
            return {}
        path = others[0]
    try:
        rows = [line.split() for line in path.read_text(encoding="ascii").splitlines() if line.strip()]
        return {int(row[0]): chr(int(row[1])) for row in rows}
    except (OSError, ValueError, IndexError, OverflowError) as error:
        raise DataError(
            f"{path} is no mapping file: {error}.", "Expected a line a class: its label and its character's code."
        ) from error


def _find_idx(config: DataConfig, root: Path, known: DataSet) -> dict[tuple[str, str], Path]:
    """Find the four IDX files by (part, what); empty where there is none of this set."""
    wanted = config.variant if isinstance(config, EmnistConfig) else None
    files: dict[tuple[str, str], Path] = {}
    others = set()
    for path in sorted(root.iterdir(), reverse=True):  # reversed: the plain file wins over its .gz
        match = _IDX_NAME.fullmatch(path.name.lower())
        if match is None or not path.is_file():
            continue
        if match["variant"] == wanted:
            files["train" if match["part"] == "train" else "test", match["what"]] = path
        else:
            others.add(match["variant"] or "plain MNIST names")
    missing = {(part, what) for part in ("train", "test") for what in ("images", "labels")} - files.keys()
    if not missing or not (files or others):
        return files
    found = ", ".join(path.name for path in files.values()) or f"only those of {', '.join(sorted(others))}"
    raise DataError(f"{root} lacks IDX files of this set; found: {found}.", f"Expected {known.files}.")


def _from_idx(files: dict[tuple[str, str], Path], part: str) -> _Part:
    images = as_images(read_idx(files[part, "images"], 3), str(files[part, "images"]))
    labels = read_idx(files[part, "labels"], 1)
    return images, as_labels(labels, len(images), str(files[part, "labels"]))


def _find_npz(config: DataConfig, root: Path, known: DataSet) -> Path:
    paths = sorted(path for path in root.iterdir() if path.suffix.lower() == ".npz")
    if isinstance(config, EmnistConfig) and len(paths) > 1:
        paths = [path for path in paths if config.variant in path.name.lower()] or paths
    if not paths:
        raise DataError(f"{root} holds no files of data={config.name}.", f"Expected {known.files}.")
    if len(paths) > 1:
        raise DataError(
            f"{root} holds {len(paths)} .npz files: {', '.join(path.name for path in paths)}.",
            f"Name one: data.root={paths[0]}",
        )
    return paths[0]


def _from_npz(path: Path) -> tuple[_Part, _Part, dict[int, str]]:
    """Read both parts and, where the file has a `mapping` of code points by label, the class names."""
    arrays = read_npz(path)
    parts = []
    for part in ("train", "test"):
        images = as_images(arrays[f"x_{part}"], f"x_{part} of {path}")
        parts.append((images, as_labels(arrays[f"y_{part}"], len(images), f"y_{part} of {path}")))
    mapping = arrays.get("mapping", np.empty(0))
    names = dict(enumerate(map(chr, mapping.tolist()))) if mapping.ndim == 1 and mapping.dtype.kind in "iu" else {}
    return parts[0], parts[1], names
