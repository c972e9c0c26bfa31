"""The epoch on the screen: a bar that moves on a terminal, and one line for each finished epoch everywhere."""

import time
from collections.abc import Callable, Sequence

import keras
from rich.progress import Progress, TaskID
from rich.text import Text

from manyfit.bar import new_bar
from manyfit.callbacks.best_model import BestModel
from manyfit.callbacks.throughput import ROW_METRICS, EpochRows
from manyfit.console import Console

METRIC_COLUMNS = {"loss": 8, "accuracy": 8, "val_loss": 8, "val_accuracy": 12}
TIME_COLUMNS = {"seconds": 11, "images/s": 8}
"""Name and width of each column after the epoch's; `seconds` are those of training + those of validation."""


class EpochProgress(keras.callbacks.Callback):
    """Shows where the training is.

    It must stand after `rows` and `best` in the list of callbacks. While the bar moves, what Python code prints
    appears above it. TensorFlow's C++ code writes past Python: where its log is wanted, use a `Console(live=False)`.

    Args:
        console: Where to show it.
        rows: Measures the speed.
        best: Decides which epoch is marked as the best so far; None for no marks.
        clock: Seconds from any fixed moment.
    """

    def __init__(
        self,
        console: Console,
        rows: EpochRows,
        best: BestModel | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ):
        super().__init__()
        self.console = console
        self.rows = rows
        self.best = best
        self._clock = clock
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._warm = False
        self._shown_at = 0.0
        self._more = [name for name in rows.more if name.startswith("val_")]
        self._columns = METRIC_COLUMNS | {name: max(8, len(name)) for name in self._more} | TIME_COLUMNS
        self._lines = 0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Draw an empty bar."""
        if not self.console.live:
            if not self._warm:
                # A first call can take minutes, and a silent screen looks like a hang.
                self.console.print(Text("building the training function, then the first epoch ..."))
            return
        self._progress = new_bar(self.console, f"epoch {self._count(epoch)}")
        note = "" if self._warm else "building the training function"
        self._task = self._progress.add_task("", total=self.rows.steps_per_epoch, note=note)
        self._progress.start()

    def _count(self, epoch: int) -> str:
        epochs = str((self.params or {}).get("epochs") or "?")
        return f"{epoch + 1:>{len(epochs)}}/{epochs}"

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Move the bar."""
        self._warm = True
        if self._progress is None:
            return
        now = self._clock()
        # Formatting the note for every step would cost more than a fast step itself.
        if now - self._shown_at < 0.1 and batch + 1 < self.rows.steps_per_epoch:
            return
        self._shown_at = now
        speed = self.rows.images_per_second()
        parts = [f"{name} {_number(logs[name])}" for name in ("loss", "accuracy") if logs and name in logs]
        parts += [f"{speed:,.0f} images/s"] if speed else []
        self._progress.update(self._task, completed=batch + 1, note="  ".join(parts))

    def on_test_begin(self, logs: dict | None = None) -> None:
        """Say that the epoch is being validated."""
        if self._progress is not None:
            self._progress.update(self._task, note="validating")

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Put one line in the place of the bar, under the names of its columns."""
        self.close()
        label = self._count(epoch)
        if not self._lines:
            self.console.print(Text(self._line(["epoch".rjust(len(label)), *self._columns])), whole_lines=True)
        row = self.rows.rows[-1] if self.rows.rows else {}
        times = [row[name] for name in ("train_seconds", "validation_seconds") if row.get(name) is not None]
        speed = row.get("images_per_second")
        cells = [
            *(_number((logs or {}).get(name)) for name in (*ROW_METRICS, *self._more)),
            "+".join(f"{time:.1f}" for time in times),
            f"{speed:,.0f}" if speed else "-",
        ]
        is_best = self.best is not None and self.best.best.get("epoch") == epoch + 1
        line = self._line([label.rjust(len("epoch")), *cells]) + ("  best" if is_best else "")
        self.console.print(Text(line), whole_lines=True)
        self._lines += 1

    def _line(self, cells: Sequence[str]) -> str:
        first, *others = cells
        widths = self._columns.values()
        return "  ".join([first, *(cell.rjust(width) for cell, width in zip(others, widths, strict=True))])

    def on_train_end(self, logs: dict | None = None) -> None:
        """Leave the screen clean."""
        self.close()

    def close(self) -> None:
        """Take the bar off the screen; also for a run that ends in an exception."""
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.stop()


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.3g}"
