"""W&B's own Keras metrics logger, with epochs counted from 1 as everywhere else in the run."""

from typing import Any

from wandb.integration.keras import WandbMetricsLogger


class WandbRows(WandbMetricsLogger):
    """Logs `epoch/loss`, `epoch/val_accuracy`, `epoch/learning_rate` ... once an epoch.

    Raises:
        wandb.Error: no run is open in this process.
    """

    def __init__(self) -> None:
        self._rate: float | None = None
        super().__init__(log_freq="epoch")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the epoch under the number that the record gives it."""
        self._rate = (logs or {}).get("learning_rate")
        super().on_epoch_end(epoch + 1, logs)

    def _get_lr(self) -> float | None:
        # The rate of the row, as in the record: the optimizer holds it rounded to float32.
        return super()._get_lr() if self._rate is None else self._rate
