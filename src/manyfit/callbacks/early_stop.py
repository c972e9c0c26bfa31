"""Stops a training when it no longer gets better."""

from collections.abc import Callable
from typing import Any

import keras

from manyfit.callbacks.throughput import finite
from manyfit.config import EarlyStoppingConfig
from manyfit.errors import ConfigError
from manyfit.schema import metrics as metric_words


class EarlyStopping(keras.callbacks.Callback):
    """Ends the training, or the phase that runs, after some epochs without a better value.

    These are `patience` epochs in which the metric did not get better by more than `min_delta`.

    Args:
        config: Which metric, and how patient.
        notify: Told why it stops.
    """

    def __init__(self, config: EarlyStoppingConfig, notify: Callable[[str], None]):
        super().__init__()
        self._config = config
        self._notify = notify
        self.begin()

    def begin(self, first_epoch: int = 0, phase: int | None = None) -> None:
        """Forget what was seen: a training, or the phase of this number, begins in `first_epoch`, counted from 0."""
        self._best: float | None = None
        self._best_epoch = first_epoch
        self._ends = "Stopped" if phase is None else f"Phase {phase} ends"

    def check(self, names: list[str]) -> None:
        """Refuse a metric that no epoch will have; `names` are those of the model's own.

        Raises:
            ConfigError: there is no such metric.
        """
        known = [*names, *(f"val_{name}" for name in names)]
        if self._config.metric not in known:
            raise ConfigError(
                f"early_stopping.metric={self._config.metric} is not a metric of this run.",
                f"Choices: {', '.join(known)}.",
            )

    def get_state(self) -> dict[str, Any]:
        """The best value so far, and its epoch."""
        return {"best": self._best, "best_epoch": self._best_epoch}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._best, self._best_epoch = state["best"], state["best_epoch"]

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Compare, and stop after too many epochs that were no better."""
        value = finite((logs or {}).get(self._config.metric))
        metric, mode = str(self._config.metric), self._config.mode
        falls = metric_words.falls(metric) if mode == "auto" else mode == "min"
        if value is not None:
            gain = None if self._best is None else (self._best - value if falls else value - self._best)
            if gain is None or gain > self._config.min_delta:
                self._best, self._best_epoch = value, epoch
        if epoch - self._best_epoch >= self._config.patience:
            self.model.stop_training = True
            self._notify(
                f"{self._ends} after epoch {epoch + 1}: {self._config.metric} has not got better since epoch "
                f"{self._best_epoch + 1} (early_stopping.patience={self._config.patience})."
            )
