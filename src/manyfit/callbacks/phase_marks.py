"""The phases in the record: when each began, what trained in it, and what came of it so far."""

from typing import Any

import keras

from manyfit import phases
from manyfit.record import RunRecord


class PhaseMarks(keras.callbacks.Callback):
    """Keeps the record's list `phases`; it must stand after the callback that makes the rows.

    Args:
        record: Its rows have `phase`.
        metric: By which the best epoch is chosen.
    """

    def __init__(self, record: RunRecord, metric: str):
        super().__init__()
        self._record = record
        self._metric = metric

    def begin(self, entry: dict[str, Any]) -> None:
        """A phase begins, or goes on in another process; what the record says of later ones is dropped.

        Args:
            entry: `phase`, counted from 1, and what is known of it.
        """
        before = [known for known in self._record.data.get("phases", []) if known["phase"] < entry["phase"]]
        self._record.data["phases"] = [*before, dict(entry)]
        self._measure()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Bring the phase that runs up to date."""
        self._measure()

    def _measure(self) -> None:
        entry = self._record.data["phases"][-1]
        entry.update(phases.outcome(self._record.data["epochs"], entry["phase"], self._metric))
        self._record.write()
