"""What a trained model says of pictures: any number, on any number of replicas, never all of them in memory."""

import base64
import contextlib
import io
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf
from PIL import Image

from manyfit import strategy
from manyfit.data import sniff
from manyfit.data.decode import decode_image
from manyfit.data.pipeline import fit_shape
from manyfit.models.saved import load_network, probabilities
from manyfit.processes import num_cores
from manyfit.strategy import Place
from manyfit.trained_run import TrainedRun, strategy_config

ROWS_PER_REPLICA = 32
_BATCHES_AHEAD = 3
_THUMBNAIL_QUALITY = 75


@dataclass(frozen=True, eq=False)
class Prediction:
    """What the model says of one picture.

    Args:
        path: As it was asked for.
        probabilities: float64 [classes]; they sum to 1.
    """

    path: str
    probabilities: np.ndarray


@dataclass(frozen=True)
class Unreadable:
    """A file that is no picture, or a damaged one."""

    path: str
    reason: str


class Predictor:
    """The model of a run on its replicas.

    Must be made before TensorFlow starts its devices.

    Args:
        run: The run.
        replicas: Replicas to predict on: GPUs where there are any, else logical CPU devices; None for the default.
        device: `auto`, `gpu` or `cpu`.
        most_rows: Rows of a replica in one call, at most.

    Raises:
        UserError: devices that cannot be had, or a model that cannot be loaded.
    """

    def __init__(
        self,
        run: TrainedRun,
        *,
        replicas: int | None = None,
        device: str = "auto",
        most_rows: int = ROWS_PER_REPLICA,
    ):
        num_gpus = len(tf.config.list_physical_devices("GPU"))
        self.place: Place = strategy.make(strategy_config(replicas, device, num_gpus))
        self.most_rows = most_rows
        with self.place.strategy.scope():
            self.network: keras.Model = load_network(run.model_path, run.config.model, len(run.class_names))
        self.image_shape: tuple[int, ...] = tuple(self.network.input_shape[1:])
        scope = self.place.strategy
        self._step = tf.function(
            lambda pictures: scope.run(lambda part: self.network(part, training=False), args=(pictures,)),
            autograph=False,
            reduce_retracing=True,
        )

    def stream(self, paths: Sequence[str]) -> Iterator[Prediction | Unreadable]:
        """What comes of each file, in the order of `paths`; a few batches of pictures are held at a time."""
        replicas = self.place.num_replicas
        rows = min(self.most_rows, -(-len(paths) // replicas)) * replicas
        batch: list[tuple[str, np.ndarray | str]] = []
        num_pictures = 0
        for item in _read_ahead(paths, self._read, _BATCHES_AHEAD * rows):
            batch.append(item)
            num_pictures += not isinstance(item[1], str)
            if num_pictures == rows:
                yield from self._answers(batch, rows)
                batch, num_pictures = [], 0
        yield from self._answers(batch, rows)

    def _read(self, path: str) -> np.ndarray | str:
        """The picture of a file as the model takes it, or why there is none."""
        image = read_image(path)
        return image if isinstance(image, str) else fitted(image, self.image_shape)

    def _answers(self, batch: Sequence[tuple[str, np.ndarray | str]], rows: int) -> Iterator[Prediction | Unreadable]:
        pictures = [content for _, content in batch if not isinstance(content, str)]
        answers = iter(probabilities(self.scores(np.stack(pictures), rows)) if pictures else ())
        for path, content in batch:
            yield Unreadable(path, content) if isinstance(content, str) else Prediction(path, next(answers))

    def scores(self, pictures: np.ndarray, rows: int) -> np.ndarray:
        """Class scores of up to `rows` pictures, a multiple of the replicas; the rest is padding, left out again.

        Args:
            pictures: uint8 [n, height, width, channels].

        Returns:
            float32 [n, scores].
        """
        padding = np.zeros((rows - len(pictures), *pictures.shape[1:]), pictures.dtype)
        parts = np.split(np.concatenate([pictures, padding]), self.place.num_replicas)
        given = self.place.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group])
        )
        made = self.place.strategy.experimental_local_results(self._step(given))
        return np.concatenate([part.numpy() for part in made])[: len(pictures)].astype(np.float32)


def read_image(path: str) -> np.ndarray | str:
    """The picture in a file, uint8 [height, width, 3], decoded as in training; or in words why there is none."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return "not a regular file"  # a pipe would be waited for
        with open(path, "rb") as file:
            contents = file.read()
    except OSError as error:
        is_broken_link = isinstance(error, FileNotFoundError) and os.path.islink(path)
        return "a link to a file that does not exist" if is_broken_link else f"cannot be read: {error.strerror}"
    if not contents:
        return sniff.why_undecodable(contents)
    try:
        with tf.device("CPU:0"):
            image = decode_image(contents).numpy()
    except (tf.errors.OpError, ValueError):
        return sniff.why_undecodable(contents)
    return sniff.misread(contents) or (image if image.size else "a picture without pixels")


def fitted(image: np.ndarray, image_shape: tuple[int, ...]) -> np.ndarray:
    """A picture as the model takes it, exactly as in training: uint8 of `image_shape`."""
    with tf.device("CPU:0"):
        return fit_shape(tf.constant(image), image_shape).numpy()


def _read_ahead(
    paths: Iterable[str], read: Callable[[str], np.ndarray | str], ahead: int
) -> Iterator[tuple[str, np.ndarray | str]]:
    """What `read` makes of each path, in order, up to `ahead` of them before they are asked for."""
    waiting: deque[tuple[str, Future]] = deque()
    with contextlib.ExitStack() as stack:
        pool = ThreadPoolExecutor(num_cores(), thread_name_prefix="pictures")
        stack.callback(pool.shutdown, cancel_futures=True)
        for path in paths:
            waiting.append((path, pool.submit(read, path)))
            if len(waiting) > ahead:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()


def thumbnail(path: str, longest_side: int = 180) -> str | None:
    """A small JPEG of a picture as a data URI, its proportions kept; None where the file can't be read any more."""
    image = read_image(path)
    if isinstance(image, str):
        return None
    small = Image.fromarray(image)
    small.thumbnail((longest_side, longest_side))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=_THUMBNAIL_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
