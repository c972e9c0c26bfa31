"""Sets the learning rate of every epoch: what was planned before the run, and lower after a plateau."""

from collections.abc import Sequence
from typing import Any

import keras

from manyfit.callbacks.throughput import finite
from manyfit.schema.learning import PlateauConfig, ScheduleConfig
from manyfit.schema.metrics import falls


class EpochLearningRate(keras.callbacks.Callback):
    """Gives the optimizer the rate of the epoch, and its row the same number unrounded.

    With `schedule=plateau` the planned rate is multiplied by a factor that falls when the metric has not got better by
    more than `min_delta` for `patience` epochs. A value that is not finite is no better.

    Args:
        rates: Of each epoch.
        schedule: What they follow.
        first_epoch: The epoch, counted from 0, that `rates` begins at.
    """

    def __init__(self, rates: Sequence[float], schedule: ScheduleConfig | None = None, *, first_epoch: int = 0):
        super().__init__()
        self.begin(rates, schedule, first_epoch=first_epoch)

    def begin(self, rates: Sequence[float], schedule: ScheduleConfig | None = None, *, first_epoch: int = 0) -> None:
        """Follow other rates, and forget what was seen."""
        self.rates = rates
        self._first_epoch = first_epoch
        self._plateau = schedule if isinstance(schedule, PlateauConfig) else None
        self._factor = 1.0
        self._best: float | None = None
        self._waited = 0

    def get_state(self) -> dict[str, Any]:
        """What the metric did so far."""
        return {"factor": self._factor, "best": self._best, "waited": self._waited}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._factor, self._best, self._waited = state["factor"], state["best"], state["waited"]

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, if nothing happens before it."""
        return self.rates[epoch - self._first_epoch] * self._factor

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Set the rate of this epoch."""
        self.model.optimizer.learning_rate = self.rate(epoch)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Add the rate to the row of this epoch, and lower the next one's after a plateau."""
        if logs is not None:
            logs["learning_rate"] = self.rate(epoch)
        if self._plateau is not None:
            self._observe(self._plateau, finite((logs or {}).get(self._plateau.metric)))

    def _observe(self, plateau: PlateauConfig, value: float | None) -> None:
        low_is_good = falls(plateau.metric) if plateau.mode == "auto" else plateau.mode == "min"
        if value is not None:
            gain = None if self._best is None else (self._best - value if low_is_good else value - self._best)
            if gain is None or gain > plateau.min_delta:
                self._best, self._waited = value, 0
                return
        self._waited += 1
        if self._waited >= plateau.patience:
            self._factor, self._waited = max(self._factor * plateau.factor, plateau.min_factor), 0
