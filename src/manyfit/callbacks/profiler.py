"""TensorFlow's profiler around some steps of one epoch, and the summary of what it saw."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from rich.text import Text
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from manyfit.callbacks.throughput import EpochRows
from manyfit.console import Console
from manyfit.errors import ConfigError
from manyfit.record import RunRecord
from manyfit.report.profile import STEPS, summary
from manyfit.report.profile_text import TRACE_NAME, terminal
from manyfit.report.profile_trace import write_trace
from manyfit.schema.profile import ProfileConfig

FOLDER_NAME = "profile"
DEFAULT_STEPS = (10, 20)

OPTIONS = tf.profiler.experimental.ProfilerOptions(host_tracer_level=2, python_tracer_level=0, device_tracer_level=1)
"""Operations and GPU kernels; not Python's calls, of which there are too many."""


def steps_to_trace(config: ProfileConfig, steps_per_epoch: int, epochs: int) -> tuple[int, int] | None:
    """First and last step to trace, counted from 1; None where none was asked for.

    >>> steps_to_trace(ProfileConfig(True), 500, 3), steps_to_trace(ProfileConfig(True), 7, 3)
    ((10, 20), (2, 7))

    Raises:
        ConfigError: an epoch does not have the steps, or the run not the epoch.
    """
    if config.steps is None:
        return None
    if config.epoch > epochs:
        raise ConfigError(f"profile.epoch={config.epoch}, but epochs={epochs}.", f"Give one from 1 to {epochs}.")
    if steps_per_epoch < 2:
        raise ConfigError(
            "profile: an epoch has one step, which builds the training function.",
            "Give a smaller batch (batch.global_batch_size), or profile.steps=null.",
        )
    if config.steps is True:
        return DEFAULT_STEPS if steps_per_epoch >= DEFAULT_STEPS[1] else (2, steps_per_epoch)
    first, last = config.steps
    if last > steps_per_epoch:
        raise ConfigError(
            f"profile.steps=[{first},{last}] goes beyond an epoch, which has {steps_per_epoch} steps.",
            f"Give steps from 2 to {steps_per_epoch}.",
        )
    return first, last


class Profile(keras.callbacks.Callback):
    """Traces the steps of the first epoch, from one on, that reaches them with a training function built before.

    The calls of that epoch end where the steps begin and end, however many steps a call makes. A profiler that fails
    costs the profile and nothing else. It must stand after `rows`, which leave the epoch's speed out.

    Args:
        record: Gets the section `profile`; the trace lies in `profile/` of its folder.
        steps: First and last step, counted from 1.
        epoch: The first epoch that may be traced, counted from 1.
    """

    def __init__(
        self,
        record: RunRecord,
        steps: tuple[int, int],
        rows: EpochRows,
        console: Console,
        notify: Callable[[str], Any],
        *,
        epoch: int = 1,
    ):
        super().__init__()
        self.folder = record.folder / FOLDER_NAME
        self.first, self.last = steps
        self._record = record
        self._rows = rows
        self._console = console
        self._notify = notify
        self._epoch = 0
        self._first_epoch = epoch - 1
        self._is_warm = False
        self._is_over = False
        self._is_shown = False
        self._is_tracing = False
        self._call: Any = None

    def set_model(self, model: keras.Model) -> None:
        """Another model: its first call will build the training function."""
        super().set_model(model)
        self._is_warm = False

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Let calls end where the trace begins and ends."""
        self._epoch = epoch
        waits = not self._is_over and epoch >= self._first_epoch
        self.model.call_ends = (self.first - 1, self.last) if waits else ()

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Start at the first of the steps, and mark the call."""
        waits = not self._is_over and not self._is_tracing and self._epoch >= self._first_epoch
        if waits and self._is_warm and batch == self.first - 1:
            self._try(self._start)
        if self._is_tracing:
            self._call = tf.profiler.experimental.Trace(STEPS, step_num=batch, _r=1)
            self._call.__enter__()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Stop after the last of the steps."""
        self._is_warm = True
        self._end_call()
        if self._is_tracing and batch + 1 >= self.last:
            self._is_tracing = False
            self._try(tf.profiler.experimental.stop)
            self._try(self._read)

    def on_train_end(self, logs: dict | None = None) -> None:
        """Show the summary."""
        if not self._is_shown and (section := self._record.data.get("profile")):
            self._is_shown = True
            for part in terminal(section, self.folder):
                self._console.print(part, whole_lines=isinstance(part, Text))

    def close(self) -> None:
        """Stop a profiler that runs still, and say if nothing was profiled; also where the run ends in an exception."""
        self._end_call()
        if not self._is_over:
            self._notify(f"Nothing was profiled: no epoch went through steps {self.first} to {self.last} once warm.")
        if self._is_tracing:
            self._is_tracing = False
            self._try(lambda: tf.profiler.experimental.stop(save=False))

    def _start(self) -> None:
        tf.profiler.experimental.start(str(self.folder), OPTIONS)
        self._is_tracing = True
        self._rows.leave_out()
        self._notify(
            f"Epoch {self._epoch + 1} is profiled (steps {self.first} to {self.last}): tracing takes time, so that its "
            "speed is not comparable with that of other epochs and is left out."
        )

    def _end_call(self) -> None:
        if self._call is not None:
            self._call.__exit__(None, None, None)
            self._call = None

    def _read(self) -> None:
        self._is_over = True
        self.model.call_ends = ()
        space = read_trace(self.folder)
        section = summary(space, epoch=self._epoch + 1, first_step=self.first, last_step=self.last)
        write_trace(space, self.folder / TRACE_NAME)
        self._record.update("profile", **section, folder=FOLDER_NAME, trace=f"{FOLDER_NAME}/{TRACE_NAME}")

    def _try(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except Exception as error:  # whatever the profiler meets, the training is worth more
            self._is_over, self._is_tracing = True, False
            first = (str(error).splitlines() or [""])[0][:200]
            self._notify(f"There is no profile: {first or type(error).__name__}.")


def read_trace(folder: Path) -> xplane_pb2.XSpace:
    """The last trace that the profiler wrote below `folder`.

    Raises:
        FileNotFoundError: there is none.
    """
    written = sorted(folder.glob("plugins/profile/*/*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not written:
        raise FileNotFoundError(f"the profiler wrote nothing to {folder}")
    space = xplane_pb2.XSpace()
    space.ParseFromString(written[-1].read_bytes())
    return space
