"""A bar for work that takes a while: it moves on a terminal, and a line now and then says the same elsewhere."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from manyfit.console import Console

REFRESH_SECONDS = 0.1
LINE_SECONDS = 30.0
"""How long a screen that cannot draw is silent."""


def new_bar(console: Console, label: str) -> Progress:
    """A bar with a note at its end, in the manner of this project; not yet on the screen."""
    return Progress(
        SpinnerColumn("line"),
        TextColumn(label),
        BarColumn(bar_width=None),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[note]}"),
        console=console.rich,
        expand=True,
        transient=True,
        refresh_per_second=5,
    )


class Bar:
    """Shows how much is done: `with Bar(console, "features", "images") as bar: bar(done, total)`.

    Args:
        console: Where to show it.
        label: What is being done.
        unit: What is counted.
        clock: Seconds from any fixed moment.
    """

    def __init__(self, console: Console, label: str, unit: str, *, clock: Callable[[], float] = time.perf_counter):
        self._console = console
        self._label = label
        self._unit = unit
        self._clock = clock
        self._progress: Progress | None = None
        self._task = None
        self._started = self._shown_at = clock()

    def __enter__(self) -> Self:
        self._started = self._shown_at = self._clock()
        if self._console.live:
            self._progress = new_bar(self._console, self._label)
            self._task = self._progress.add_task("", total=None, note="")
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` are done."""
        now = self._clock()
        wait = REFRESH_SECONDS if self._progress is not None else LINE_SECONDS
        if now - self._shown_at < wait:
            return
        self._shown_at = now
        rate = done / (now - self._started)
        left = (total - done) / rate if rate else 0.0
        note = f"{rate:,.0f} {self._unit}/s, {left:,.0f} s left"
        if self._progress is None or self._task is None:
            self._console.print(f"{self._label}: {done:,} of {total:,} ({note})")
        else:
            self._progress.update(self._task, completed=done, total=total, note=note)
