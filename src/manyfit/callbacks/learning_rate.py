"""Sets the learning rate of every epoch to what was planned before the run."""

from collections.abc import Sequence

import keras


class EpochLearningRate(keras.callbacks.Callback):
    """Gives the optimizer `rates[epoch]`, and the row of the epoch the same number unrounded."""

    def __init__(self, rates: Sequence[float]):
        super().__init__()
        self.rates = rates

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Set the rate of this epoch."""
        self.model.optimizer.learning_rate = self.rates[epoch]

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Add the rate to the row of this epoch."""
        if logs is not None:
            logs["learning_rate"] = self.rates[epoch]
