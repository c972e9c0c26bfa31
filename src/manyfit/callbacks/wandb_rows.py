"""The rows that W&B gets: one an epoch, and where asked for one every so many steps, under true step numbers."""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from manyfit.callbacks.throughput import finite, learning_rate_of
from manyfit.tracker import Counts


class WandbRows(keras.callbacks.Callback):
    """Logs `epoch/loss`, `epoch/learning_rate` ... once an epoch, and `batch/loss` ... on request.

    The step of every row is the training's own: steps since the start of the run, whatever W&B counts. Each row has
    `examples_seen`, by which runs of other batch sizes and replica counts lie over each other.

    W&B's own logger counts calls, not steps, so that with several steps a call its axis is wrong.

    Args:
        define: `define_metric` of the run.
        log: Called with each row and its step.
        counts: How far the training is.
        every_steps: A row after the call that passes a multiple of this many steps; None for none. What happens inside
            a call is not seen.
    """

    def __init__(
        self,
        define: Callable[..., Any],
        log: Callable[[Mapping[str, Any], int], Any],
        counts: Counts,
        *,
        every_steps: int | None = None,
    ):
        super().__init__()
        self._log = log
        self._counts = counts
        self._every_steps = every_steps
        self._epoch = 0
        self._last_step: int | None = None
        self._held: dict[str, Any] = {}
        define("epoch/epoch")
        define("epoch/*", step_metric="epoch/epoch")
        if every_steps is not None:
            define("examples_seen")
            define("batch/*", step_metric="examples_seen")

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note the epoch; it may begin in its middle."""
        self._epoch, self._last_step, self._held = epoch, None, {}

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Note where the first call of the epoch begins."""
        if self._last_step is None:
            self._last_step = self._step(batch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the training so far, if this call passed a multiple of the steps asked for."""
        every, before = self._every_steps, self._last_step or 0
        self._last_step = step = self._step(batch + 1)
        if every is None or step // every == before // every:
            return
        row = {f"batch/{name}": finite(value) for name, value in (logs or {}).items()}
        row |= {
            "batch/learning_rate": finite(learning_rate_of(self.model)),
            "batch/images_per_second": self._counts.images_per_second(),
            "batch/step": step,
            "examples_seen": self._examples(batch + 1),
        }
        row = {name: value for name, value in row.items() if value is not None}
        if batch + 1 < self._counts.steps_per_epoch:
            self._log(row, step)
        else:
            self._held = row  # W&B takes one row a step, and the epoch's has the same one

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the epoch under the number that the record gives it."""
        logs = logs or {}
        done = self._counts.steps_per_epoch
        row = self._held | {f"epoch/{name}": value for name, value in logs.items()}
        # The rate of the row, as in the record: the optimizer holds it rounded to float32.
        row["epoch/learning_rate"] = logs.get("learning_rate", learning_rate_of(self.model))
        self._log(row | {"epoch/epoch": epoch + 1, "examples_seen": self._examples(done)}, self._step(done))

    def _step(self, steps: int) -> int:
        return self._epoch * self._counts.steps_per_epoch + steps

    def _examples(self, steps: int) -> int:
        return self._epoch * self._counts.num_train + self._counts.examples_between(0, steps)
