"""A run's model for others to use: written, loaded again, compared with the run's own, put in place with a card."""

import contextlib
import dataclasses
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import numpy as np

from manyfit.config import StrategyConfig
from manyfit.data.pipeline import fit_shape
from manyfit.errors import DataError, TrainingError, UserError
from manyfit.evaluation_data import examples_of
from manyfit.export_formats import FORMATS, Answer, import_onnx, in_float32
from manyfit.export_names import CARD_NAME, FILE_NAMES, LABELS_NAME, TOLERANCES
from manyfit.files import to_plain, unwritable, write_atomically
from manyfit.models.saved import load_network, probabilities
from manyfit.prediction import fitted, read_image
from manyfit.report.model_card import Agreement, Exported, model_card
from manyfit.strategy import make
from manyfit.trained_run import TrainedRun

NUM_PICTURES = 100
_TIMED = 20


def export_run(
    run: TrainedRun,
    format_name: str,
    out: Path,
    *,
    quantize: str | None = None,
    tolerance: float | None = None,
    data_root: str | None = None,
    notify: Callable[[str], None],
) -> Exported:
    """Write the model of a run in a format, and its card, into a new folder.

    The folder is made only once the model has been loaded again and agrees with the run's own.

    Args:
        run: The run.
        format_name: `keras`, `saved_model`, `tflite` or `onnx`.
        out: The new folder.
        quantize: `dynamic`, `float16` or None.
        tolerance: The largest difference of a probability that is accepted; None for `TOLERANCES`.
        data_root: Pictures to compare on; None for the validation split of the run.
        notify: Told what the user should know.

    Raises:
        UserError: a model that cannot be loaded, a package that is missing, a folder that cannot be written, or a model
            that does not agree.
    """
    if format_name == "onnx":
        import_onnx()
    make(StrategyConfig(name="default", device="cpu"))  # the agreement and the time are those of a CPU
    network = load_network(run.model_path, run.config.model, len(run.class_names))
    pictures, source = _pictures(run, data_root, notify, tuple(network.input_shape[1:]))
    staging = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        staging.mkdir(parents=True)
        _write(run, network, format_name, staging, quantize)
        agreement = _agreement(network, format_name, staging, pictures, source)
        limit = TOLERANCES[quantize] if tolerance is None else tolerance
        if not agreement.largest <= limit:
            raise TrainingError(
                f"The exported model does not agree with the run's: {agreement.sentence()}; at most {limit:g} is "
                "accepted. Nothing was kept.",
                f"Try another format{' or no --quantize' if quantize else ''}, or accept it with --tolerance.",
            )
        made = Exported(
            name=run.name,
            record=run.record,
            settings=to_plain(dataclasses.asdict(run.config)),
            format=format_name,
            quantize=quantize,
            input_shape=tuple(network.input_shape[1:]),
            class_names=run.class_names,
            num_bytes=_size(staging / FILE_NAMES[format_name]),
            agreement=agreement,
        )
        write_atomically(staging / CARD_NAME, model_card(made))
        os.replace(staging, out)
    except OSError as error:
        raise unwritable(out, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return made


def _write(run: TrainedRun, network: keras.Model, format_name: str, folder: Path, quantize: str | None) -> None:
    with _explained(format_name):
        FORMATS[format_name].write(in_float32(network), run.class_names, folder, quantize)
    write_atomically(folder / LABELS_NAME, "".join(f"{name}\n" for name in run.class_names))


@contextlib.contextmanager
def _explained(format_name: str) -> Iterator[None]:
    """A converter, or the runtime of a format, may fail in any way for a network: inside, that is one message."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise TrainingError(
            f"The model cannot be had as {format_name}: {type(error).__name__}: {reason}",
            "Try --format saved_model or keras, which take every layer.",
        ) from error


def _pictures(
    run: TrainedRun, data_root: str | None, notify: Callable[[str], None], image_shape: tuple[int, ...]
) -> tuple[list[np.ndarray], str]:
    """Up to `NUM_PICTURES` pictures as they are, uint8 [height, width, channels], and where they are from."""
    try:
        examples = examples_of(run, data_root)
    except DataError as error:
        if data_root is not None:
            raise
        notify(f"The run's validation split cannot be had; drawn pictures take its place. {error.message}")
        return drawn_pictures(image_shape), "drawn"
    split = examples.split
    chosen = np.unique(np.linspace(0, len(split) - 1, min(NUM_PICTURES, len(split))).astype(int))
    if split.images is not None:
        images = [np.asarray(split.images[index]) for index in chosen]
    else:
        assert split.paths is not None
        images = [image for index in chosen if not isinstance(image := read_image(split.paths[index]), str)]
    # A card may be published: it names the folder, not where that lies.
    source = examples.source if data_root is None else f"those of {Path(data_root).name}"
    return [_with_channels(image, image_shape[-1]) for image in images], source


def drawn_pictures(image_shape: tuple[int, ...], count: int = NUM_PICTURES) -> list[np.ndarray]:
    """Smooth random pictures of several sizes, from a fixed seed: uint8 [height, width, channels]."""
    rng = np.random.default_rng(0)
    height, width, channels = image_shape
    pictures = []
    for index in range(count):
        coarse = rng.integers(0, 256, (4 + index % 5, 4 + index % 7, channels)).astype(np.uint8)
        size = (height + 3 * (index % 8), width + 5 * (index % 4), channels)
        pictures.append(fitted(coarse, size))
    return pictures


def _with_channels(image: np.ndarray, channels: int) -> np.ndarray:
    return image if image.shape[-1] == channels else fit_shape(image, (*image.shape[:2], channels)).numpy()


def _agreement(
    network: keras.Model, format_name: str, folder: Path, pictures: list[np.ndarray], source: str
) -> Agreement:
    """Load what was written as its users would, and ask both models about the same pictures."""
    shape = tuple(network.input_shape[1:])
    fits = [fitted(picture, shape) for picture in pictures]
    expected = probabilities(network.predict(np.stack(fits), batch_size=32, verbose=0))
    with _explained(format_name):
        answer = FORMATS[format_name].read(folder)
        found = np.stack([answer(one) for one in (pictures if FORMATS[format_name].any_size else fits)])
    difference = np.abs(found - expected)
    return Agreement(
        num_pictures=len(pictures),
        source=source,
        largest=float(difference.max()) if np.isfinite(found).all() else float("inf"),
        mean=float(difference.mean()),
        same_labels=float((found.argmax(axis=-1) == expected.argmax(axis=-1)).mean()),
        milliseconds=_median_milliseconds(answer, fits[0]),
    )


def _median_milliseconds(answer: Answer, picture: np.ndarray) -> float:
    seconds = []
    for _ in range(_TIMED):
        started = time.perf_counter()
        answer(picture)
        seconds.append(time.perf_counter() - started)
    return 1000 * statistics.median(seconds)


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
