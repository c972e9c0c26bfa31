"""The embedded sample: cats and dogs (and the other kinds the rehearsal backbone learned) drawn from a seed."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from manyfit.data.drawn_animals import BUILDS, draw_animal
from manyfit.data.drawn_shapes import (
    COATS,
    Sketch,
    clutter,
    make_background,
    make_coats,
    photograph,
    pick,
    shaded,
)
from manyfit.data.drawn_things import THINGS

CLASSES: tuple[str, str] = ("cats", "dogs")
OTHER_KINDS: tuple[str, ...] = tuple(kind for kind in (*BUILDS, *THINGS) if kind not in CLASSES)
_SPLITS: tuple[str, str] = ("train", "validation")


def draw(kind: str, rng: np.random.Generator) -> Image.Image:
    """Draw one picture of `kind`: an RGB image of 200 to 500 pixels a side.

    Pose, size, place, rotation, coat, background, occlusion and exposure all come from `rng`, in the same way for
    every kind: only the shape tells kinds apart.

    Raises:
        ValueError: `kind` is not one of `CLASSES` or `OTHER_KINDS`.
    """
    if kind not in BUILDS and kind not in THINGS:
        raise ValueError(f"kind={kind!r} can't be drawn. Expected one of {', '.join((*CLASSES, *OTHER_KINDS))}.")
    width = int(rng.integers(200, 501))
    height = int(np.clip(width * rng.uniform(0.7, 1.4), 200, 500))
    image = make_background((width, height), rng)
    coats = make_coats((width, height), rng)
    line = shaded(pick(rng, COATS), 0.45) if rng.random() < 0.75 else None
    unit = min(width, height) * rng.uniform(0.21, 0.31)
    centre = np.array([width * rng.uniform(0.39, 0.61), height * rng.uniform(0.42, 0.58)])
    flip = -1 if rng.random() < 0.5 else 1
    sketch = Sketch(image, coats, line, np.diag([unit * flip * rng.uniform(0.85, 1.15), unit]), centre)
    sketch = sketch.moved(0, 0, 1.0, rng.normal(0, 0.18))
    if kind in THINGS:
        THINGS[kind](sketch, rng)
    else:
        draw_animal(sketch, kind, rng)
    for _ in range(int(rng.integers(0, 3))):
        spot = (centre + rng.normal(0, 1.1, 2) * unit) / (width, height)
        clutter(image, rng, spot.tolist(), rng.uniform(0.04, 0.13))
    return photograph(image, rng)


def draw_sample(folder: Path, seed: int = 0, num_train: int = 600, num_validation: int = 200) -> None:
    """Write the sample as `folder/{train,validation}/{cats,dogs}/NNNN.jpg`; counts are of both classes together.

    The same seed gives the same bytes (under one version of Pillow and numpy). The folder appears whole or not at
    all; a folder that already holds exactly this sample is left as it is, so two processes may ask for it at once.

    Raises:
        ValueError: a count is odd or below 2.
        FileExistsError: `folder` holds something else.
    """
    folder = Path(folder)
    for name, count in (("num_train", num_train), ("num_validation", num_validation)):
        if count < 2 or count % 2:
            raise ValueError(f"{name}={count} must be an even number of at least 2: half cats, half dogs.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        _check_same(folder, seed, num_train, num_validation)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target: a rename is atomic only within one file system.
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for split in _SPLITS:
            for kind in CLASSES:
                (staging / split / kind).mkdir(parents=True)
        _write_pictures(staging, seed, (num_train, num_validation))
        staging.chmod(0o755)  # mkdtemp's 0700 would hide a shared data folder from other users
        try:
            os.rename(staging, folder)
        except OSError:
            if not folder.is_dir():
                raise
            _check_same(folder, seed, num_train, num_validation)  # another process was first
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write_pictures(root: Path, seed: int, counts: tuple[int, int]) -> None:
    tasks = [
        (split, kind, index)
        for split, count in zip(_SPLITS, counts, strict=True)
        for kind in CLASSES
        for index in range(count // 2)
    ]

    def write(task: tuple[str, str, int]) -> None:
        split, kind, index = task
        (root / split / kind / f"{index:04d}.jpg").write_bytes(_jpeg(seed, split, kind, index))

    # Threads, not processes: Pillow frees the interpreter lock in its loops, and forking under TensorFlow can hang.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for _ in pool.map(write, tasks):
            pass


def _jpeg(seed: int, split: str, kind: str, index: int) -> bytes:
    """Draw and encode one picture, from a stream of its own: no picture depends on how many are drawn."""
    rng = np.random.default_rng([seed, _SPLITS.index(split), CLASSES.index(kind), index])
    image = draw(kind, rng)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=int(rng.integers(75, 96)))
    return buffer.getvalue()


def _check_same(folder: Path, seed: int, num_train: int, num_validation: int) -> None:
    """Raise unless `folder` holds the counts asked and the first picture of each class has the bytes of this seed."""
    for split, count in zip(_SPLITS, (num_train, num_validation), strict=True):
        for kind in CLASSES:
            found = sorted(path.name for path in (folder / split / kind).glob("*.jpg"))
            expected = [f"{index:04d}.jpg" for index in range(count // 2)]
            if found != expected or (folder / split / kind / "0000.jpg").read_bytes() != _jpeg(seed, split, kind, 0):
                raise FileExistsError(
                    f"{folder} already holds something other than the drawn sample of seed={seed}, "
                    f"num_train={num_train}, num_validation={num_validation} (looked at {split}/{kind}). "
                    "Name another folder, or delete this one."
                )
