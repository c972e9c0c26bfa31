"""Every variable of a training as arrays, and back: weights, optimizer, random state, counts of metrics."""

import base64
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from manyfit.data.pipeline import replicas_of_this_worker
from manyfit.errors import UserError

ON_READ = tf.VariableSynchronization.ON_READ


def snapshot(model: Any) -> dict[str, np.ndarray]:
    """The variables of a compiled `ReplicatedModel`, by name; every worker calls it at the same time.

    What differs between replicas (the counts of metrics) has the replicas of all workers as its first axis.
    """
    return {name: _read(variable) for name, variable in _trained(model)} | counts(model)


def counts(model: Any) -> dict[str, np.ndarray]:
    """The part of a snapshot that the metrics count, alone: a few scalars, without a copy of the model."""
    own = {name: _read(variable) for name, variable in _counted(model)}
    if model.peers.num_workers == 1:
        return own
    # As bytes: the area under a curve counts millions of numbers where there are many classes.
    texts = {name: base64.b64encode(array.tobytes()).decode("ascii") for name, array in own.items()}
    everywhere = model.peers.gather("counts", texts)

    def heard(sent: dict[str, str], name: str, like: np.ndarray) -> np.ndarray:
        return np.frombuffer(base64.b64decode(sent[name]), like.dtype).reshape(like.shape)

    return {name: np.concatenate([heard(sent, name, array) for sent in everywhere]) for name, array in own.items()}


def restore(model: Any, arrays: dict[str, np.ndarray]) -> None:
    """Give a compiled `ReplicatedModel` the variables of a snapshot, of the same number of replicas or another.

    Raises:
        UserError: they are those of another model or optimizer.
    """
    variables = list(_variables(model))
    unknown = {name for name, _ in variables} ^ arrays.keys()
    wrong = [name for name, variable in variables if name in arrays and not _fits(variable, arrays[name])]
    if unknown or wrong:
        names = ", ".join([*sorted(unknown), *wrong][:4])
        raise UserError(
            f"The checkpoint belongs to another model or optimizer: {names} do not fit.",
            "Resume with the configuration and the code that the run began with.",
        )
    strategy = model.distribute_strategy
    for name, variable in variables:
        _write(variable, arrays[name], strategy.num_replicas_in_sync, replicas_of_this_worker(strategy))


def _variables(model: Any) -> Iterator[tuple[str, Any]]:
    """Every variable as TensorFlow holds it, with a name that does not depend on the process."""
    yield from _trained(model)
    yield from _counted(model)


def _trained(model: Any) -> Iterator[tuple[str, Any]]:
    yield from _named({"network": model.network.variables, "optimizer": model.optimizer.variables})


def _counted(model: Any) -> Iterator[tuple[str, Any]]:
    yield from _named({f"metric/{metric.name}": metric.variables for metric in model.metrics})


def _named(groups: dict[str, list[Any]]) -> Iterator[tuple[str, Any]]:
    for group, members in groups.items():
        for index, variable in enumerate(members):
            yield f"{group}/{index}", variable.value if isinstance(variable, keras.Variable) else variable


def _parts(variable: Any) -> tuple[Any, ...]:
    """The copies of a variable on the replicas of this process."""
    return tuple(variable.values) if isinstance(variable, tf.distribute.DistributedValues) else (variable,)


def _is_counted_apart(variable: Any) -> bool:
    return getattr(variable, "synchronization", None) == ON_READ


def _read(variable: Any) -> np.ndarray:
    copies = [np.asarray(part.numpy()) for part in _parts(variable)]
    # Batch norm that is not synchronised leaves copies that differ.
    if _is_counted_apart(variable) or any(not np.array_equal(copies[0], copy) for copy in copies[1:]):
        return np.stack(copies)
    return copies[0]


def _fits(variable: Any, array: np.ndarray) -> bool:
    shape = tuple(variable.shape)
    shapes = (array.shape[1:],) if _is_counted_apart(variable) else (array.shape, array.shape[1:])
    return shape in shapes and array.dtype == variable.dtype.as_numpy_dtype


def _write(variable: Any, array: np.ndarray, num_replicas: int, own: slice) -> None:
    if array.ndim == len(variable.shape):
        variable.assign(array)
        return
    if len(array) != num_replicas:  # another number of replicas: counts are summed, of copies the first one counts
        counts = _is_counted_apart(variable)
        first = array.sum(axis=0, dtype=array.dtype) if counts else array[0]
        array = np.stack([first, *[np.zeros_like(first) if counts else first] * (num_replicas - 1)])
    for part, value in zip(_parts(variable), array[own], strict=True):
        part.assign(value)
