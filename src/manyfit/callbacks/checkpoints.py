"""When the exact state of a training is written: after every epoch, and inside one where it is long."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np

from manyfit import checkpoint
from manyfit.checkpoint import START, Checkpoint, Position
from manyfit.model_state import counts, snapshot
from manyfit.peers import Peers, alone
from manyfit.schema.lasting import CheckpointConfig


class Stateful(Protocol):
    """A callback that has something to go on with."""

    def get_state(self) -> dict[str, Any]:
        """What it needs to go on, in the types of JSON."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        ...


class Checkpoints(keras.callbacks.Callback):
    """Writes checkpoints beside the training, in a thread: the training waits for the copy in memory alone.

    One that is due while the one before is still being written is left out, but for the last one. It must stand after
    the callbacks whose state it keeps.

    Args:
        folder: The run folder.
        config: When one is due, and how many are kept.
        members: The callbacks whose state belongs to it, by name.
        facts: More of the state, in the types of JSON.
        arrays: More of the state, as arrays.
        best_epoch: The best epoch so far, counted from 1, whose checkpoint is kept.
        start: Where the training begins.
        peers: The other workers, all of which take part in a copy; the chief decides when, and writes.
        clock: Seconds from any fixed moment.
    """

    def __init__(
        self,
        folder: Path,
        config: CheckpointConfig,
        *,
        members: dict[str, Stateful],
        facts: Callable[[], dict[str, Any]],
        best_epoch: Callable[[], int | None],
        arrays: Callable[[], dict[str, np.ndarray]] = dict,
        start: Position = START,
        peers: Peers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__()
        self.folder = folder / checkpoint.FOLDER_NAME
        self.position = start
        self._config = config
        self._members = members
        self._facts = facts
        self._best_epoch = best_epoch
        self._arrays = arrays
        self._peers = peers or alone()
        self._clock = clock
        self._written_at = clock()
        self._written_step = start.step
        self._counts: dict[str, np.ndarray] | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Note the epoch, unless the training goes on inside it."""
        if epoch != self.position.epoch:
            self.position = Position(epoch)
        self._written_step = self.position.step

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Write one if it is due."""
        self.position = Position(self.position.epoch, batch + 1)
        minutes, steps = self._config.every_minutes, self._config.every_steps
        is_due = minutes is not None and self._clock() - self._written_at >= 60 * minutes
        is_due |= steps is not None and self.position.step - self._written_step >= steps
        if self._peers.broadcast("checkpoint is due", is_due):
            self._write(wait=False)

    def on_test_begin(self, logs: dict | None = None) -> None:
        """Keep what the metrics counted in training, which the validation is about to begin anew."""
        self._counts = counts(self.model)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Write one, at the start of the next epoch."""
        self.position, self._counts = Position(epoch + 1), None
        self._write(wait=self.model.stop_training or epoch + 1 == (self.params or {}).get("epochs"))

    def save_now(self) -> Position:
        """Write one where the training stands, and wait for it; outside of `fit`.

        Raises:
            TrainingError: it, or the one before it, cannot be written.
        """
        self._write(wait=True)
        return self.position

    def close(self) -> None:
        """Wait for the one that is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(self, *, wait: bool) -> None:
        is_busy = self._thread is not None and self._thread.is_alive()
        if self._peers.broadcast("checkpoint waits", is_busy and not wait):
            return
        self.close()
        self._written_at, self._written_step = self._clock(), self.position.step
        state = {name: member.get_state() for name, member in self._members.items()}
        taken = Checkpoint(
            self.position,
            snapshot(self.model) | (self._counts or {}) | self._arrays(),
            {"callbacks": state} | self._facts(),
        )
        if not self._peers.is_chief:
            return
        best = self._best_epoch()
        self._thread = threading.Thread(target=self._save, args=(taken, best), name="checkpoint", daemon=True)
        self._thread.start()
        if wait:
            self.close()

    def _save(self, taken: Checkpoint, best_epoch: int | None) -> None:
        try:
            checkpoint.save(self.folder, taken)
            checkpoint.prune(self.folder, self._config.keep, [] if best_epoch is None else [best_epoch])
        except BaseException as error:  # raised where the training waits for it
            self._error = error
