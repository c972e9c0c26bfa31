"""The row of each epoch: its metrics, learning rate, seconds and images a second, for the record and the tracker.

And, over the whole run, how long a step takes. What a step waits for cannot be seen from here, since many steps run
inside one call: `manyfit.probe` measures it.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import keras

from manyfit.processes import process_seconds
from manyfit.schema.metrics import of_epochs

ROW_METRICS = ("loss", "accuracy", "val_loss", "val_accuracy")
MEASURED = ("train_seconds", "validation_seconds", "images_per_second", "elapsed_seconds")
MOST_CALLS = 100_000
"""Calls whose times are kept, the last ones: enough for any percentile, and no memory to speak of."""


class Record(Protocol):
    """The part of the run's record that the callbacks write."""

    data: dict[str, Any]

    def update(self, section: str, **values: Any) -> Any:
        """Merge values into a section."""
        ...

    def add_epoch(self, row: dict[str, Any]) -> Any:
        """Append the row of an epoch."""
        ...


class EpochRows(keras.callbacks.Callback):
    """Makes the row of each epoch, and adds what it measured to the `logs` that later callbacks get.

    It must stand before the tracker's callback, so that the record and the tracker get the same row. The speed
    counts real examples, not padding, over the seconds of training alone: validation and the first call of the run,
    which traces and compiles, are left out. An epoch that consists of that one call has no speed (None).

    Args:
        record: Gets each row, `timing.first_step_seconds` (from the start of `fit` to the end of its first call), and
            at the end of the training the section `throughput`.
        num_train: Real examples an epoch.
        steps_per_epoch: Steps an epoch; the last one may hold fewer real examples.
        global_batch_size: Examples a step, over all replicas and micro-batches.
        num_replicas: Replicas that share them.
        clock: Seconds from any fixed moment.
        elapsed: Seconds since the process began: `elapsed_seconds` of a row, at the end of its epoch.
        metrics: What the model counts beside loss and accuracy, by name.
    """

    def __init__(
        self,
        record: Record,
        *,
        num_train: int,
        steps_per_epoch: int,
        global_batch_size: int,
        num_replicas: int = 1,
        clock: Callable[[], float] = time.perf_counter,
        elapsed: Callable[[], float] = process_seconds,
        metrics: Iterable[str] = (),
    ):
        super().__init__()
        self.record = record
        self.num_train = num_train
        self.steps_per_epoch = steps_per_epoch
        self.global_batch_size = global_batch_size
        self.num_replicas = num_replicas
        self.rows: list[dict[str, Any]] = []
        self.more = [name for name in of_epochs(metrics) if name not in ROW_METRICS]
        self.marks: dict[str, Any] = {}
        self._traced = False
        self._calls: deque[tuple[int, float]] = deque(maxlen=MOST_CALLS)
        self._call_started = 0.0
        self._clock = clock
        self._elapsed = elapsed
        self._num_trained = 0
        self._warm = False
        self._started = clock()
        self._resumed_train_seconds = 0.0
        self._earlier_train_seconds = 0.0
        self._is_open = False
        self._is_left_out = False
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._epoch_started = self._speed_from = self._trained_until = self._clock()
        self._first_step: int | None = None
        self._timed_step = 0
        self._next_step = 0
        self._validation_started: float | None = None
        self._validation_seconds: float | None = None

    def begin_phase(self, number: int) -> None:
        """Another model trains from now on: its first call is no measure of its steps, nor are those of the one before.

        Args:
            number: The phase, counted from 1, which each row then has.
        """
        self.marks = {"phase": number}
        self._warm = False
        self._calls.clear()

    def get_state(self) -> dict[str, Any]:
        """The seconds that the training of the epoch that runs has taken so far."""
        seconds = self._trained_until - self._epoch_started + self._earlier_train_seconds
        return {"train_seconds": seconds if self._is_open else 0.0}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from there; the rows of earlier epochs are those of the record."""
        self._resumed_train_seconds = float(state["train_seconds"])
        self.rows = [{name: None for name in MEASURED} | row for row in self.record.data["epochs"]]

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Start the clock of the first call."""
        self._started = self._clock()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Start the clocks of an epoch."""
        self._begin_epoch()
        self._is_open, self._is_left_out = True, False
        self._earlier_train_seconds, self._resumed_train_seconds = self._resumed_train_seconds, 0.0

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Note the step at which the epoch begins: not 0 in a run that goes on in the middle of one."""
        if self._first_step is None:
            self._first_step = self._timed_step = self._next_step = batch
        self._call_started = self._clock()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Count the steps of a call, and leave the first call of the run out of the speed."""
        self._trained_until = self._clock()
        steps, self._next_step = batch + 1 - self._next_step, batch + 1
        if self._warm and self._is_left_out:
            pass
        elif self._warm:
            self._calls.append((steps, self._trained_until - self._call_started))
        else:
            self._warm = True
            self._speed_from, self._timed_step = self._trained_until, self._next_step
            if not self._traced:  # a later phase has a first step as well
                self._traced = True
                self.record.update("timing", first_step_seconds=self._trained_until - self._started)

    def on_test_begin(self, logs: dict | None = None) -> None:
        """Start the clock of a validation."""
        self._validation_started = self._clock()

    def on_test_end(self, logs: dict | None = None) -> None:
        """Stop the clock of a validation."""
        if self._validation_started is not None:
            elapsed = self._clock() - self._validation_started
            self._validation_seconds = (self._validation_seconds or 0.0) + elapsed
            self._validation_started = None

    def examples_between(self, first_step: int, next_step: int) -> int:
        """Real examples in the steps from `first_step` up to, not with, `next_step` of an epoch."""

        def before(step: int) -> int:
            if step >= self.steps_per_epoch:
                return self.num_train
            return min(self.num_train, step * self.global_batch_size)

        return max(0, before(next_step) - before(first_step))

    @property
    def num_trained(self) -> int:
        """Real examples trained on so far, in every epoch anew."""
        return self._num_trained + self.examples_between(self._first_step or 0, self._next_step)

    def leave_out(self) -> None:
        """Give this epoch no speed, and count no more of its calls: something slows it down, such as a profiler."""
        self._is_left_out = True

    def images_per_second(self) -> float | None:
        """Speed of the epoch so far; None before anything but the warm-up has run, and where it is left out."""
        if self._is_left_out:
            return None
        examples = self.examples_between(self._timed_step, self._next_step)
        elapsed = self._trained_until - self._speed_from
        return examples / elapsed if examples and elapsed > 0 else None

    def step_seconds(self, fraction: float = 0.5) -> float | None:
        """The time of a step that `fraction` of the steps don't exceed; a call counts as its steps' mean.

        None where no call but the first has been made.
        """
        return percentile(((elapsed / steps, steps) for steps, elapsed in self._calls if steps > 0), fraction)

    def steps_per_call(self) -> float | None:
        """Steps a call, as most steps met it: the median over steps, not over calls."""
        return percentile(((steps, steps) for steps, _ in self._calls if steps > 0), 0.5)

    def throughput(self) -> dict[str, float | int | None]:
        """Speed and step times of the run so far: what the record's section `throughput` holds."""
        rates = [row["images_per_second"] for row in self.rows]
        known = [rate for rate in (rates[1:] if any(rates[1:]) else rates) if rate]
        speed = len(known) / sum(1 / rate for rate in known) if known else None
        p50, p95 = self.step_seconds(0.5), self.step_seconds(0.95)
        return {
            "images_per_second": speed,
            "images_per_second_per_replica": None if speed is None else speed / self.num_replicas,
            "step_milliseconds_p50": None if p50 is None else 1e3 * p50,
            "step_milliseconds_p95": None if p95 is None else 1e3 * p95,
            "steps_per_call": self.steps_per_call(),
        }

    def on_train_end(self, logs: dict | None = None) -> None:
        """Give the record the speed of the run."""
        self.record.update("throughput", **self.throughput())

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Make the row, give it to the record, and add the measured values to `logs`."""
        logs = {} if logs is None else logs
        row = {
            "epoch": epoch + 1,
            **self.marks,
            **{name: finite(logs.get(name)) for name in (*ROW_METRICS, *self.more)},
            "learning_rate": finite(logs.get("learning_rate", learning_rate_of(self.model))),
            "train_seconds": self._trained_until - self._epoch_started + self._earlier_train_seconds,
            "validation_seconds": self._validation_seconds,
            "images_per_second": self.images_per_second(),
            "elapsed_seconds": self._elapsed(),
        }
        self._num_trained, self._first_step = self.num_trained, self._next_step
        self._is_open = False
        self.rows.append(row)
        self.record.add_epoch(row)
        logs.update(self.marks)
        logs.update({name: row[name] for name in MEASURED if row[name] is not None})


def percentile(weighted: Iterable[tuple[float, float]], fraction: float) -> float | None:
    """The smallest value that is not exceeded by `fraction` of the weight; None of nothing.

    >>> percentile([(2.0, 1), (1.0, 98), (9.0, 1)], 0.5), percentile([(2.0, 1), (1.0, 1)], 0.95)
    (1.0, 2.0)
    """
    ordered = sorted(weighted)
    left = fraction * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        left -= weight
        if left <= 0:
            return value
    return ordered[-1][0] if ordered else None


def learning_rate_of(model: Any) -> float | None:
    """The optimizer's learning rate at this step, whatever its schedule; None for a model without optimizer."""
    rate = getattr(getattr(model, "optimizer", None), "learning_rate", None)
    # `float(variable)` goes through NumPy's deprecated protocol, `.numpy()` does not.
    return None if rate is None else float(rate.numpy() if hasattr(rate, "numpy") else rate)


def finite(value: Any) -> float | None:
    """The value as a float; None where it is missing, infinite or not a number."""
    if value is None:
        return None
    number = float(value)
    return number if math.isfinite(number) else None
