"""What TensorFlow raises in the middle of a training, in the words of the user."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from manyfit.batch import BatchPlan
from manyfit.data.decode import why_unusable
from manyfit.data.examples import ImageData
from manyfit.errors import TrainingError
from manyfit.peers import Peers

_MOST_NAMED = 3
_NEWS_SECONDS = 3.0
"""How long after TensorFlow's error the news of a lost worker may come."""


@contextlib.contextmanager
def explained(plan: BatchPlan, data: ImageData, folder: Path | None = None) -> Iterator[None]:
    """Inside, what a user can mend raises a `TrainingError` that says how.

    Args:
        plan: The batches of the run.
        data: Its examples.
        folder: The run folder, from which it can go on; None for what can only be started again.

    Raises:
        TrainingError: memory ran out, or a file of the data set is gone or can no longer be read.
    """
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise _out_of_memory(plan, error) from error
    except (
        tf.errors.NotFoundError,
        tf.errors.PermissionDeniedError,
        tf.errors.InvalidArgumentError,
        tf.errors.DataLossError,
        tf.errors.UnknownError,
    ) as error:
        # TensorFlow names no file where a picture cannot be decoded: look for those that cannot be used any more.
        bad = _unusable(data)
        if not bad:
            raise
        raise TrainingError(
            f"Files of the data set have changed during the run: {'; '.join(bad)}.",
            f"Put them back as they were. Then {'start again.' if folder is None else f'go on: resume={folder}'}",
        ) from error


@contextlib.contextmanager
def of_workers(peers: Peers) -> Iterator[None]:
    """Inside, what TensorFlow raises because another worker is gone says which one.

    Raises:
        UserError: names the rank and its host; the run may go on later.
    """
    try:
        yield
    except tf.errors.OpError as error:
        loss = peers.lost(_NEWS_SECONDS)
        if loss is None:
            raise
        raise loss from error


def _out_of_memory(plan: BatchPlan, error: tf.errors.OpError) -> TrainingError:
    lines = str(error.message or error).strip().splitlines() or [""]
    size = plan.per_replica_batch_size
    smaller = max(1, size // 2)
    return TrainingError(
        f"Memory ran out with {size} examples a replica and step ({lines[0][:200].rstrip('.')}).",
        f"Give batch.per_replica_batch_size={smaller}, with gradient_accumulation=2 for the same step; batch=auto "
        "finds the largest size that fits.",
    )


def _unusable(data: ImageData) -> list[str]:
    """The first few files that cannot be read now, each with the reason."""
    bad: list[str] = []
    for split in (data.train, data.validation):
        for path in split.paths or ():
            try:
                why = why_unusable(Path(path).read_bytes())
            except OSError as error:
                why = error.strerror or str(error)
            if why is not None:
                bad.append(f"{path} ({why})")
            if len(bad) == _MOST_NAMED:
                return bad
    return bad
