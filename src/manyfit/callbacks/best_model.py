"""`model.keras` in the run folder: the whole model of the best epoch by validation, never half written."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from manyfit.callbacks.throughput import Record, finite
from manyfit.files import flush, remove_quietly, unwritable


class BestModel(keras.callbacks.Callback):
    """Saves the model whenever the validation accuracy improves; of equals, the one with the lower loss.

    An epoch with a metric that is not finite is never the best. Without validation, the last epoch counts.

    Args:
        record: Gets `best`: epoch (from 1), val_accuracy, val_loss.
        path: Where the model goes, ending in `.keras`.
        save: Writes the whole model to the path that it is given.
        notify: Told when the run ends and no epoch could count as best.
    """

    def __init__(
        self,
        record: Record,
        path: Path,
        save: Callable[[Path], Any],
        *,
        notify: Callable[[str], None] | None = None,
    ):
        super().__init__()
        self.record = record
        self.path = Path(path)
        self.best: dict[str, Any] = {}
        self._save = save
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
        logs = logs or {}
        self._epochs_seen += 1
        row = {"epoch": epoch + 1, **{name: finite(logs.get(name)) for name in ("val_accuracy", "val_loss")}}
        validated = "val_accuracy" in logs or "val_loss" in logs
        if not (_is_better(row, self.best) if validated else math.isfinite(logs.get("loss", 0.0))):
            return
        replace_file(self.path, self._save)
        self.best = row
        self.record.update("best", **row)

    def on_train_end(self, logs: dict | None = None) -> None:
        """Say so if there is no model to keep."""
        if self._epochs_seen and not self.best:
            self._notify(f"No epoch had finite metrics, so {self.path.name} was not written.")


def _is_better(row: dict[str, Any], best: dict[str, Any]) -> bool:
    if row["val_accuracy"] is None or row["val_loss"] is None:
        return False
    if best.get("val_accuracy") is None:
        return True
    rank = (row["val_accuracy"], -row["val_loss"])
    best_loss = best.get("val_loss")
    return rank > (best["val_accuracy"], -math.inf if best_loss is None else -best_loss)


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
