"""The examples of a run: which source a configuration means, and what to do where it cannot be had."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from pathlib import Path

from manyfit.config import DataConfig, SyntheticConfig
from manyfit.data.catalog import data_set, three_ways
from manyfit.data.examples import ImageData
from manyfit.data.folder import load_folder, load_folder_whole
from manyfit.data.manifest import manifest
from manyfit.errors import DataError

__all__ = ["default_cache_dir", "load", "load_folder_whole", "manifest"]

_SAMPLE_SEED = 0


def load(config: DataConfig, *, cache_dir: Path | None = None) -> ImageData:
    """Load the data set that a configuration asks for.

    `data.source=auto` takes the local copy under `data.root` if one is given, else a prepared TFDS copy, else a TFDS
    download, else, for cats_dogs only, the embedded sample. Nothing else falls back, and a given root never does.

    Checking pictures starts TensorFlow's devices: choose the strategy first.

    Args:
        config: The `data` group.
        cache_dir: Where exports, the sample and the verdicts on files are kept; None for `default_cache_dir()`.

    Raises:
        DataError: the set cannot be had, or cannot be trained on as it is.
    """
    cache_dir = default_cache_dir() if cache_dir is None else Path(cache_dir)
    if isinstance(config, SyntheticConfig):
        return _load_synthetic(config)
    if config.source == "sample":
        return _load_sample(config, cache_dir, "data.source=sample asks for it")
    if config.source != "tfds" and config.root is not None:
        return _load_local(config, config.root, cache_dir)
    known = data_set(config)
    if known.tfds_name is None:
        raise DataError(f"data={config.name} with data.source={config.source} has no root.", three_ways(config, known))
    from manyfit.data.tfds_source import CannotBeHad, load_tfds

    try:
        return load_tfds(config, cache_dir)
    except CannotBeHad as error:
        if config.source == "tfds" or config.name != "cats_dogs":
            raise
        return _load_sample(config, cache_dir, f"the photos could not be had ({error.why})")


def default_cache_dir() -> Path:
    """Name the project's cache: $MANYFIT_CACHE, else $XDG_CACHE_HOME/manyfit, else ~/.cache/manyfit."""
    if os.environ.get("MANYFIT_CACHE"):
        return Path(os.environ["MANYFIT_CACHE"]).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "manyfit"


def _load_local(config: DataConfig, root: str, cache_dir: Path) -> ImageData:
    if data_set(config).is_array:
        from manyfit.data.arrays import load_arrays

        return load_arrays(config, root)
    return load_folder(
        root,
        name=config.name,
        validation_fraction=config.validation_fraction,
        on_bad_image=config.on_bad_image,
        cache_dir=cache_dir,
    )


def _load_synthetic(config: SyntheticConfig) -> ImageData:
    if config.root is not None or config.source != "auto":
        raise DataError(
            f"data=synthetic is made in memory, but data.root={config.root} and data.source={config.source}.",
            "Leave data.root and data.source out.",
        )
    from manyfit.data.synthetic import make_synthetic

    return make_synthetic(config)


def _load_sample(config: DataConfig, cache_dir: Path, why: str) -> ImageData:
    if config.root is not None:
        raise DataError(
            f"data.source=sample draws its pictures, but data.root={config.root}.", "Leave one of the two out."
        )
    from manyfit.data import drawn

    folder = cache_dir / "sample" / f"cats_dogs-{_drawing_version()}"
    try:
        drawn.draw_sample(folder, seed=_SAMPLE_SEED)
    except OSError as error:
        raise DataError(
            f"The sample of drawn pictures cannot be kept in {folder}: {error}.",
            "Set MANYFIT_CACHE to a folder that can be written, or give data.root=PATH of real photos.",
        ) from error
    return load_folder(
        folder,
        name=config.name,
        source="sample",
        validation_fraction=config.validation_fraction,
        on_bad_image=config.on_bad_image,
        cache_dir=cache_dir,
        rehearsal=True,
        notices=[f"The pictures are drawn by code, a rehearsal: {why}."],
    )


def _drawing_version() -> str:
    """Name what the drawn bytes depend on: the code that draws, Pillow and numpy; 12 hex digits."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("drawn*.py")):
        digest.update(path.read_bytes())
    for package in ("pillow", "numpy"):
        digest.update(importlib.metadata.version(package).encode())
    return digest.hexdigest()[:12]
