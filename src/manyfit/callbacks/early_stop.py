"""Stops a training when it no longer gets better."""

from collections.abc import Callable
from typing import Any

import keras

from manyfit.callbacks.throughput import finite
from manyfit.config import EarlyStoppingConfig
from manyfit.errors import ConfigError


class EarlyStopping(keras.callbacks.Callback):
    """Ends the training after `patience` epochs in which the metric did not get better by more than `min_delta`.

    Args:
        config: Which metric, and how patient.
        notify: Told why it stops.
    """

    def __init__(self, config: EarlyStoppingConfig, notify: Callable[[str], None]):
        super().__init__()
        self._config = config
        self._notify = notify
        self._best: float | None = None
        self._best_epoch = 0

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
        falls = self._config.mode == "min" or (self._config.mode == "auto" and "loss" in self._config.metric)
        if value is not None:
            gain = None if self._best is None else (self._best - value if falls else value - self._best)
            if gain is None or gain > self._config.min_delta:
                self._best, self._best_epoch = value, epoch
        if epoch - self._best_epoch >= self._config.patience:
            self.model.stop_training = True
            self._notify(
                f"Stopped after epoch {epoch + 1}: {self._config.metric} has not got better since epoch "
                f"{self._best_epoch + 1} (early_stopping.patience={self._config.patience})."
            )
