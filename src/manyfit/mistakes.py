"""Where the best model is wrong: the most confident wrong predictions with their pictures, and the confusion matrix."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from manyfit.data.examples import Split
from manyfit.files import to_json, unwritable, write_atomically
from manyfit.models.saved import probabilities

FILE_NAME = "mistakes.json"
PICTURES_NAME = "mistakes"
AUTO_COUNT = 16
AUTO_SHARE = 0.05
"""Share of a run's time that `auto` may cost."""
AUTO_FIXED_SECONDS = 5.0
"""To load the model and compile its prediction, besides one pass over the validation examples."""
SHOWN_PIXELS = 160


@dataclass(frozen=True)
class Mistake:
    """One wrong prediction.

    Args:
        index: Position in the validation split.
        example: The last two parts of its path; None for pictures in memory.
        truth: Index of its class.
        predicted: Index of the class that it was taken for.
        confidence: Probability that the model gives its prediction.
        confidence_in_truth: Probability that it gives the truth.
        picture: File in the run folder; None where it could not be drawn.
    """

    index: int
    example: str | None
    truth: int
    predicted: int
    confidence: float
    confidence_in_truth: float
    picture: str | None = None


@dataclass(frozen=True)
class Mistakes:
    """What the best model got wrong on the validation examples, each of which counts once.

    Args:
        folder: The run folder.
        class_names: One name a class.
        confusion_matrix: int64 [classes, classes], rows the truth, columns the prediction.
        mistakes: The most confident ones first.
        epoch: Of the model.
    """

    folder: Path
    class_names: tuple[str, ...]
    confusion_matrix: np.ndarray
    mistakes: tuple[Mistake, ...]
    epoch: int | None = None

    @property
    def num_examples(self) -> int:
        """Examples that were looked at."""
        return int(self.confusion_matrix.sum())

    @property
    def num_wrong(self) -> int:
        """How many of them were taken for another class."""
        return self.num_examples - int(np.trace(self.confusion_matrix))

    def facts(self) -> dict[str, Any]:
        """For the record."""
        return {"file": FILE_NAME, "num_examples": self.num_examples, "num_wrong": self.num_wrong, "epoch": self.epoch}

    def write(self) -> None:
        """Write `mistakes.json`.

        Raises:
            TrainingError: it cannot be written.
        """
        content = {
            **self.facts(),
            "class_names": list(self.class_names),
            "confusion_matrix": self.confusion_matrix.tolist(),
            "mistakes": [asdict(one) for one in self.mistakes],
        }
        write_atomically(self.folder / FILE_NAME, to_json(content) + "\n")


def how_many(asked: int | str, *, validation_seconds: float | None, elapsed_seconds: float) -> int:
    """How many to keep; `auto` keeps none where looking for them would be felt.

    >>> how_many("auto", validation_seconds=1.0, elapsed_seconds=600.0)
    16
    >>> how_many("auto", validation_seconds=40.0, elapsed_seconds=600.0)
    0
    """
    if isinstance(asked, int):
        return asked
    cost = AUTO_FIXED_SECONDS + (validation_seconds or 0.0)
    return AUTO_COUNT if cost <= AUTO_SHARE * elapsed_seconds else 0


def find(scores: np.ndarray, split: Split, class_names: Sequence[str], count: int, folder: Path) -> Mistakes:
    """The mistakes in the scores of a split's examples, with the pictures of the `count` most confident ones.

    Args:
        scores: float [N, classes], or [N, 1] for two classes, in the order of the split.
        split: The original pictures.
        folder: The run folder, which gets the pictures.

    Raises:
        TrainingError: the pictures cannot be written.
    """
    likely = probabilities(scores)
    truth, predicted = np.asarray(split.labels), likely.argmax(axis=-1)
    matrix = np.zeros((len(class_names), len(class_names)), np.int64)
    np.add.at(matrix, (truth, predicted), 1)
    confidence = likely[np.arange(len(truth)), predicted]
    wrong = np.flatnonzero(truth != predicted)
    chosen = wrong[np.argsort(-confidence[wrong], kind="stable")][:count]
    found = []
    for number, index in enumerate(chosen.tolist(), start=1):
        path = None if split.paths is None else Path(split.paths[index])
        found.append(
            Mistake(
                index,
                None if path is None else "/".join(path.parts[-2:]),
                int(truth[index]),
                int(predicted[index]),
                float(confidence[index]),
                float(likely[index, truth[index]]),
                _draw(split, index, folder, f"{PICTURES_NAME}/{number:02d}.png"),
            )
        )
    return Mistakes(folder, tuple(class_names), matrix, tuple(found))


def _draw(split: Split, index: int, folder: Path, name: str) -> str | None:
    """Write an example's picture, small enough for a table, large enough to see; its name, None if unreadable."""
    try:
        if split.paths is not None:
            with Image.open(split.paths[index]) as found:
                picture = found.convert("RGB")
        else:
            assert split.images is not None
            array = np.asarray(split.images[index])
            picture = Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array).convert("RGB")
    except Exception:  # Pillow raises what it likes for pictures that TensorFlow could read
        return None
    picture.thumbnail((SHOWN_PIXELS, SHOWN_PIXELS))
    factor = SHOWN_PIXELS // max(picture.size)
    if factor > 1:
        picture = picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    path = folder / name
    try:
        path.parent.mkdir(exist_ok=True)
        picture.save(path)
    except OSError as error:
        raise unwritable(path, error) from error
    return name


@contextlib.contextmanager
def weights_of(network: Any, saved: Any) -> Iterator[None]:
    """Inside, `network` has the weights of `saved`, which was saved from it."""
    variables = network.variables
    before = [variable.numpy() for variable in variables]
    try:
        for variable, other in zip(variables, saved.variables, strict=True):
            variable.assign(other.numpy())
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
