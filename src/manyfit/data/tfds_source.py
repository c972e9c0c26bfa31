"""Copies of TensorFlow Datasets: found where they were prepared, else downloaded; turned into folders or arrays."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from manyfit.config import DataConfig
from manyfit.data import sniff
from manyfit.data.arrays import make_array_data, upright
from manyfit.data.catalog import DataSet, data_set, three_ways
from manyfit.data.examples import ImageData
from manyfit.data.folder import load_folder
from manyfit.errors import DataError

_DEFAULT_DIR = "~/tensorflow_datasets"
_REACH_SECONDS = 5.0
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_ROWS_PER_READ = 1024


class CannotBeHad(DataError):
    """Neither prepared nor downloadable.

    Args:
        why: One line.
    """

    def __init__(self, message: str, remedy: str, why: str):
        super().__init__(message, remedy)
        self.why = why


def load_tfds(config: DataConfig, cache_dir: Path) -> ImageData:
    """Load the TFDS copy of a data set from `data.root`, $TFDS_DATA_DIR or ~/tensorflow_datasets, else download it.

    Pictures in files are exported once into `cache_dir`. Starts TensorFlow's devices.

    Raises:
        CannotBeHad: neither prepared there nor downloadable.
        DataError: a prepared copy that cannot be read.
    """
    known = data_set(config)
    if known.tfds_name is None:
        why = f"data={config.name} is not in TensorFlow Datasets"
        raise CannotBeHad(f"{why}.", three_ways(config, known), why)
    prepared = _prepare(config, known, known.tfds_name)
    try:
        with _quiet():
            if known.is_array:
                return _load_arrays(config, known, prepared)
            folder = _export(known, prepared, Path(cache_dir) / "tfds")
    except DataError:
        raise
    except OSError as error:  # the disk's errors; TensorFlow has its own for what it reads
        raise DataError(
            f"The pictures of {prepared} cannot be exported into {cache_dir}: {error}.",
            "Set MANYFIT_CACHE to a folder that can be written and has room, or give data.root=PATH.",
        ) from error
    except Exception as error:  # TFDS and TensorFlow raise errors of many kinds for a damaged copy
        raise DataError(
            f"The TFDS copy {prepared} cannot be read: {_one_line(error)}.",
            "Delete that folder, so that it is prepared again, or give data.root=PATH.",
        ) from error
    return load_folder(
        folder,
        name=config.name,
        source="tfds",
        validation_fraction=config.validation_fraction,
        on_bad_image=config.on_bad_image,
        cache_dir=cache_dir,
    )


def _prepare(config: DataConfig, known: DataSet, tfds_name: str) -> Path:
    """Find the prepared copy, or download it."""
    place = config.root or os.environ.get("TFDS_DATA_DIR") or _DEFAULT_DIR
    data_dir = Path(os.path.abspath(os.path.expanduser(place)))
    if config.root is not None and not data_dir.is_dir():
        raise DataError(f"data.root={config.root} is no folder.", "With data.source=tfds it is TFDS's data folder.")
    prepared = find_prepared(data_dir, tfds_name)
    if prepared is None:
        why = download(tfds_name, known.url, data_dir) or "it left nothing"
        prepared = find_prepared(data_dir, tfds_name)
        if prepared is None:
            raise CannotBeHad(
                f"data={config.name} cannot be had: no prepared TFDS copy '{tfds_name}' in {data_dir}, and the "
                f"download failed: {why}.",
                three_ways(config, known),
                why,
            )
    return prepared


def find_prepared(data_dir: Path, tfds_name: str) -> Path | None:
    """Find the newest version of a prepared set, such as `data_dir/mnist/3.0.1`; None without one. Needs no TFDS."""
    folder = data_dir / tfds_name
    if not folder.is_dir():
        return None
    versions = [path for path in folder.iterdir() if _VERSION.fullmatch(path.name)]
    versions = [path for path in versions if (path / "dataset_info.json").is_file()]
    return max(versions, key=lambda path: tuple(map(int, path.name.split("."))), default=None)


def download(tfds_name: str, url: str, data_dir: Path) -> str | None:
    """Download and prepare a set into `data_dir`; return None, or in one line why it failed.

    Without a network the answer comes in at most a few seconds, and nothing is printed.
    """
    why = unreachable(url)
    if why is not None:
        return why
    try:
        with _quiet():
            import tensorflow_datasets as tfds

            if not sys.stderr.isatty():
                tfds.disable_progress_bar()
            tfds.builder(tfds_name, data_dir=data_dir).download_and_prepare()
    except Exception as error:  # network, disk, checksum, a missing optional package: TFDS has no common error
        return _one_line(error)
    return None


def unreachable(url: str) -> str | None:
    """Say in one line why the host of `url` cannot be reached; None where it answers, whatever it answers."""
    answer = [f"no answer from {url} within {_REACH_SECONDS:.0f} seconds"]

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_REACH_SECONDS).close()
            answer[:] = []
        except urllib.error.HTTPError:
            answer[:] = []
        except Exception as error:
            reason = getattr(error, "reason", None) or error
            answer[:] = [f"{url} cannot be reached ({reason})"]

    # A thread, as looking up a host's name obeys no timeout of Python's.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_REACH_SECONDS)
    return answer[0] if answer else None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep TFDS's log lines (through absl) off the screen."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _load_arrays(config: DataConfig, known: DataSet, prepared: Path) -> ImageData:
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(prepared)
    parts = [_read_split(builder, split) for split in ("train", "test")]
    if config.name == "emnist":
        parts = [upright(part) for part in parts]
    return make_array_data(config.name, "tfds", parts[0], parts[1], known.label_names)


def _read_split(builder: Any, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Read a split: uint8 [N, height, width, channels] and int64 [N]."""
    import tensorflow_datasets as tfds

    batches = list(tfds.as_numpy(builder.as_dataset(split=split, batch_size=_ROWS_PER_READ, shuffle_files=False)))
    images = np.concatenate([batch["image"] for batch in batches])
    return images, np.concatenate([batch["label"] for batch in batches]).astype(np.int64)


def _export(known: DataSet, prepared: Path, exports: Path) -> Path:
    """Write the pictures of a prepared set as an image folder, once; the folder appears whole or not at all."""
    import tensorflow_datasets as tfds

    builder: Any = tfds.builder_from_directory(prepared)
    splits = {split: info.num_examples for split, info in builder.info.splits.items()}
    total = sum(splits.values())
    folder = exports / f"{prepared.parent.name}-{prepared.name}-{total}"
    if folder.is_dir():
        return folder
    exports.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=exports))
    try:
        for split in splits:
            rows = builder.as_dataset(split=split, decoders={"image": tfds.decode.SkipDecoding()}, shuffle_files=False)
            labels: list[str] = builder.info.features["label"].names
            names = [known.folder_names.get(label, label) for label in labels]
            _write_pictures(tfds.as_numpy(rows), names, staging / split if len(splits) > 1 else staging)
        staging.chmod(0o755)  # mkdtemp's 0700 would hide a shared cache from other users
        try:
            os.rename(staging, folder)
        except OSError:
            if not folder.is_dir():  # else another process was first
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


def _write_pictures(rows: Iterable[Any], names: list[str], target: Path) -> None:
    """Write the pictures, named as in their source where that is known, else by their place in the set."""
    folders = [target / name.replace("/", "_") for name in names]
    for folder in folders:
        folder.mkdir(parents=True)
    for index, row in enumerate(rows):
        original = row.get("image/filename", b"").decode("utf-8", "replace").replace("\\", "/")
        path = folders[row["label"]] / os.path.basename(original)
        if not original or path.exists():
            path = folders[row["label"]] / f"{index:06d}{sniff.ending_of(row['image'])}"
        path.write_bytes(row["image"])
