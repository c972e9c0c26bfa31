"""The model of every epoch, handed to the tracker where that was asked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from manyfit.callbacks.best_model import BestModel

Hand = Callable[[Path, list[str]], Any]


class ModelVersions(keras.callbacks.Callback):
    """Saves the model after each epoch, hands it over as `epoch-N`, `latest` and, where it is, `best`, and removes it.

    It must stand after the callback that knows the best epoch.

    Args:
        folder: Where it may be for a moment; made if it is not there.
        save: Writes the whole model to the path that it is given.
        best: Knows the best epoch so far.
        hand: Takes the file, of which it makes a copy, and its aliases.
    """

    def __init__(self, folder: Path, save: Callable[[Path], Any], best: BestModel, hand: Hand):
        super().__init__()
        self._folder = folder
        self._save = save
        self._best = best
        self._hand = hand

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Save and hand over the model of this epoch."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"epoch-{epoch + 1}.keras"
        is_best = self._best.best.get("epoch") == epoch + 1
        try:
            self._save(path)
            self._hand(path, [f"epoch-{epoch + 1}", "latest", *(["best"] if is_best else [])])
        finally:
            path.unlink(missing_ok=True)
