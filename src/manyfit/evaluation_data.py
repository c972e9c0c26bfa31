"""The examples that a trained model is evaluated on: its run's own validation split, or other pictures."""

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from manyfit import data as data_sets
from manyfit.config import SCHEMAS, nearest
from manyfit.data.examples import Split
from manyfit.data.manifest import fingerprint_files
from manyfit.errors import ConfigError, DataError
from manyfit.trained_run import TrainedRun

_SPLIT_NAMES = {"train", "validation", "val", "valid", "test"}


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled examples.

    Args:
        split: The examples; labels are indices into the run's classes.
        source: Where they come from, in words.
        num_skipped: Files that could not be used.
        fingerprint: The same for the same examples in the same order, whatever run they are for.
    """

    split: Split
    source: str
    num_skipped: int
    fingerprint: str


def examples_of(run: TrainedRun, data_root: str | None = None, data_name: str | None = None) -> Examples:
    """The validation split that the run had, or that of other data with the same classes.

    Checking pictures starts TensorFlow's devices: choose the strategy first.

    Args:
        data_root: Other pictures: a data set's root (its validation split counts), or a flat `root/CLASS/*` (whole).
        data_name: Read the root as this data set.

    Raises:
        DataError: the data cannot be had, or have other classes than the model.
        ConfigError: there is no data set of that name.
    """
    asked = replace(run.config.data)
    if data_name is not None and data_name != asked.name:
        if data_name not in SCHEMAS["data"]:
            raise ConfigError(f"--data {data_name} is not a data set.", nearest(data_name, SCHEMAS["data"]))
        asked = SCHEMAS["data"][data_name](name=data_name)
    elif data_root is None and run.record["data"].get("source") == "sample":
        asked.source = "sample"  # what it was trained on, even where the photos can be had by now
    if data_root is not None:
        asked.root, asked.source = data_root, "auto"
        if _is_flat(Path(data_root)):
            return _whole_folder(run, data_root, asked.on_bad_image)
    data = data_sets.load(asked)
    if data.class_names != run.class_names:
        raise DataError(
            f"The data has the classes {', '.join(data.class_names)}; the model knows {', '.join(run.class_names)}.",
            "Evaluate on data with the same classes.",
        )
    source = f"{data.name} ({data.source}), validation split"
    return Examples(data.validation, source, len(data.skipped), f"{data.fingerprint}/validation")


def _whole_folder(run: TrainedRun, root: str, on_bad_image: str) -> Examples:
    split, _, skipped = data_sets.load_folder_whole(root, run.class_names, on_bad_image=on_bad_image)
    # The class is in the name: two models may number their classes differently.
    files = ((split.name, os.sep.join(path.split(os.sep)[-2:]), os.path.getsize(path), 0) for path in split.paths or ())
    return Examples(split, root, len(skipped), fingerprint_files(files))


def _is_flat(root: Path) -> bool:
    """Whether `root` is a folder of class folders, without splits."""
    with contextlib.suppress(OSError):
        names = {entry.name.lower() for entry in root.iterdir() if entry.is_dir()}
        return bool(names) and not names & _SPLIT_NAMES
    return False
