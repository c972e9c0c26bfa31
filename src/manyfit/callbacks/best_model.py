"""`model.keras` in the run folder: the whole model of the best epoch by validation, never half written."""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras

from manyfit.callbacks.throughput import Record, finite
from manyfit.files import flush, remove_quietly, unwritable
from manyfit.schema.metrics import falls


class BestModel(keras.callbacks.Callback):
    """Saves the model whenever a metric of the validation improves; of equals, the one with the lower loss.

    An epoch with a metric that is not finite is never the best. Without validation, the last epoch counts.

    Args:
        record: Gets `best`: epoch (from 1), val_accuracy, val_loss, and what else the validation counts.
        path: Where the model goes, ending in `.keras`.
        save: Writes the whole model to the path that it is given; None where another process does.
        notify: Told when the run ends and no epoch could count as best.
        metric: By which the best epoch is chosen.
        more: Metrics of the validation beside loss and accuracy, by their names in the epochs.
    """

    def __init__(
        self,
        record: Record,
        path: Path,
        save: Callable[[Path], Any] | None,
        *,
        notify: Callable[[str], None] | None = None,
        metric: str = "val_accuracy",
        more: Sequence[str] = (),
    ):
        super().__init__()
        self.record = record
        self.path = Path(path)
        self.best: dict[str, Any] = {}
        self._save = save
        self._metric = metric
        self._names = tuple(dict.fromkeys(["val_accuracy", "val_loss", *more, metric]))
        self._notify = notify or (lambda text: None)
        self._epochs_seen = 0

    def get_state(self) -> dict[str, Any]:
        """The best so far."""
        return {"best": self.best}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.best = dict(state["best"])
        self.record.data["best"] = dict(self.best)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Save the model if this epoch is the best so far.

        Raises:
            TrainingError: the model cannot be written; the one saved before stays whole.
        """
        self._epochs_seen += 1
        self.consider(epoch, logs or {})

    def consider(self, epoch: int, logs: dict[str, Any], **more: Any) -> bool:
        """Save the model if it is the best so far; whether it is.

        Args:
            epoch: After which it was measured, counted from 0.
            more: What else the record says of it.

        Raises:
            TrainingError: the model cannot be written; the one saved before stays whole.
        """
        row = {"epoch": epoch + 1, **{name: finite(logs.get(name)) for name in self._names}}
        validated = any(name in logs for name in self._names)
        if not (_is_better(row, self.best, self._metric) if validated else math.isfinite(logs.get("loss", 0.0))):
            return False
        if self._save is not None:
            replace_file(self.path, self._save)
        self.best = row | more
        self.record.update("best", **self.best)
        return True

    def on_train_end(self, logs: dict | None = None) -> None:
        """Say so if there is no model to keep."""
        if self._epochs_seen and not self.best:
            self._notify(f"No epoch had finite metrics, so {self.path.name} was not written.")


def _is_better(row: dict[str, Any], best: dict[str, Any], metric: str) -> bool:
    if row[metric] is None or row["val_loss"] is None:
        return False
    if best.get(metric) is None:
        return True
    sign = -1 if falls(metric) else 1
    rank = (sign * row[metric], -row["val_loss"])
    best_loss = best.get("val_loss")
    return rank > (sign * best[metric], -math.inf if best_loss is None else -best_loss)


def replace_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file beside `path` and put it in its place in one move, after it has reached the disk.

    Raises:
        TrainingError: it cannot be written; what was at `path` before is untouched.
    """
    # Keras chooses the format by the ending, so the ending stays.
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        write(temporary)
        flush(temporary)
        os.replace(temporary, path)
        flush(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        remove_quietly(temporary)
