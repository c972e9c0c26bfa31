"""Stochastic weight averaging: the plain mean of the weights after each of the last epochs.

Izmailov et al. 2018, "Averaging weights leads to wider optima and better generalization" (arXiv:1803.05407). The
mean's activations are distributed otherwise than those of any epoch, so that batch norm needs its statistics anew.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from manyfit.coupled_layers import moving_batch_norms, real_rows
from manyfit.data.pipeline import of_each_replica
from manyfit.replicated import ReplicatedModel

_PREFIX = "average/"


class WeightAverage(keras.callbacks.Callback):
    """Adds up the weights that train, after each of the last epochs.

    Args:
        epochs: How many of the last epochs count.

    Attributes:
        count: Epochs that are in it so far.
    """

    def __init__(self, epochs: int):
        super().__init__()
        self._epochs = epochs
        self._first: int | None = None
        self.count = 0
        self._means: list[np.ndarray] = []

    def begin(self, end: int | None) -> None:
        """Forget what was added up; the training ends after `end` epochs, or (None) not in the phase that begins."""
        self._first = None if end is None else end - self._epochs
        self.count, self._means = 0, []

    def get_state(self) -> dict[str, Any]:
        """How many epochs are in it; the means are arrays of their own."""
        return {"count": self.count}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.count = state["count"]

    def arrays(self) -> dict[str, np.ndarray]:
        """The means, for a checkpoint."""
        return {f"{_PREFIX}{index}": mean for index, mean in enumerate(self._means)}

    def restored(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Take the means out of what a checkpoint holds; the rest."""
        names = [name for name in arrays if name.startswith(_PREFIX)]
        self._means = [arrays[f"{_PREFIX}{index}"] for index in range(len(names))]
        return {name: array for name, array in arrays.items() if name not in names}

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Add the weights after this epoch, if it is one of the last."""
        if self._first is None or epoch < self._first:
            return
        weights = [variable.numpy().astype(np.float64) for variable in self._variables()]
        self.count += 1
        means = self._means or weights
        self._means = [mean + (own - mean) / self.count for mean, own in zip(means, weights, strict=True)]

    def put_in(self) -> None:
        """Give the network the mean."""
        for variable, mean in zip(self._variables(), self._means, strict=True):
            variable.assign(mean.astype(variable.dtype))

    def _variables(self) -> list[keras.Variable]:
        return self.model.network.trainable_variables


def recompute_statistics(model: ReplicatedModel, data: Any, *, steps: int) -> int:
    """Give batch norm the mean of its batches' statistics over one pass, with the weights as they are.

    A batch counts by its real rows. Layers whose statistics training does not move keep theirs.

    Args:
        model: Compiled; its rows are augmented and normalised as in training.
        data: Distributed training data.
        steps: Of the pass.

    Returns:
        How many layers have new statistics.
    """
    norms = moving_batch_norms(model.network)
    if not norms:
        return 0
    strategy, parts = model.distribute_strategy, model._gradient_accumulation
    momenta = [layer.momentum for layer in norms]
    variables = [variable for layer in norms for variable in (layer.moving_mean, layer.moving_variance)]
    totals, total = [np.zeros(variable.shape) for variable in variables], 0.0

    def forward(element, part):
        x, _, mask, *_ = model._augmented(element)
        rows = tf.shape(mask)[0] // parts
        x, mask = x[part * rows : (part + 1) * rows], tf.cast(mask[part * rows : (part + 1) * rows], tf.float32)
        with real_rows(mask):
            model.network(x, training=True)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(mask))

    @tf.function(autograph=False)
    def run(element, part):
        return model._first(strategy.run(forward, args=(of_each_replica(element, strategy), part)))

    try:
        for layer in norms:
            layer.momentum = 0.0  # the statistics are then those of the batch
        iterator = iter(data)
        for _ in range(steps):
            element = next(iterator)
            for part in range(parts):
                count = float(run(element, tf.constant(part)))
                total += count
                totals = [sums + count * own.numpy() for sums, own in zip(totals, variables, strict=True)]
    finally:
        for layer, momentum in zip(norms, momenta, strict=True):
            layer.momentum = momentum
    for variable, sums in zip(variables, totals, strict=True):
        variable.assign((sums / total).astype(variable.dtype))
    return len(norms)
