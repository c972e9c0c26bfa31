"""W&B's own Keras metrics logger, with epochs counted from 1 as everywhere else in the run."""

from typing import Any

from wandb.integration.keras import WandbMetricsLogger


class WandbRows(WandbMetricsLogger):
    """Logs `epoch/loss`, `epoch/val_accuracy`, `epoch/learning_rate` ... once an epoch.

    Raises:
        wandb.Error: no run is open in this process.
    """

    def __init__(self) -> None:
        super().__init__(log_freq="epoch")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the epoch under the number that the record gives it."""
        super().on_epoch_end(epoch + 1, logs)
