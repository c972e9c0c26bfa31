"""Who is told: the interface of a tracker, and the one that tells nobody. W&B's is in `wandb_tracker`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    import keras

MAX_NAME, MAX_TAG = 128, 64
"""Longest name and tag that W&B takes."""

Notify = Callable[[str], None]


class Counts(Protocol):
    """How far a training is, for the rows that a tracker is told."""

    steps_per_epoch: int
    num_train: int

    def examples_between(self, first_step: int, next_step: int) -> int:
        """Real examples in the steps from `first_step` up to, not with, `next_step` of an epoch."""
        ...

    def images_per_second(self) -> float | None:
        """Speed of the epoch so far."""
        ...


class Tracker:
    """A tracker that tells nobody, and the interface of those that do; use it as a context manager.

    Args:
        mode: `none`, `disabled`, `offline` or `online`: what came of what was asked.
        tensorboard: Folder of TensorBoard logs; None for none.
        notify: Told once if the TensorBoard logs cannot be written.

    Attributes:
        run_id: The tracker's own name of the run, once it is known.
        path: `entity/project/id`, as far as it is known.
        url: Where the run can be seen; None offline.
        sync_command: The line that uploads what is only on disk; None if there is nothing to upload.
        segments: What the record says of the parts of the run that W&B was told, in the order of their start.
        config: The configuration as the tracker holds it, in which a sweep's values have won; empty where nobody is
            told, and for a run that goes on, which may be asked something else than before.
    """

    def __init__(self, mode: str = "none", *, tensorboard: Path | None = None, notify: Notify = lambda text: None):
        self.mode = mode
        self.run_id: str | None = None
        self.path: str | None = None
        self.url: str | None = None
        self.sync_command: str | None = None
        self.segments: list[dict[str, Any]] = []
        self.config: Mapping[str, Any] = {}
        self._tensorboard = tensorboard
        self._notify = notify

    def callbacks(self, counts: Counts) -> list["keras.callbacks.Callback"]:
        """The Keras callbacks that tell; they stand after the one that makes the rows, which is `counts`."""
        if self._tensorboard is None:
            return []
        from manyfit.callbacks.guarded import Guarded

        folder = self._tensorboard

        def make() -> "keras.callbacks.Callback":
            from manyfit.callbacks.tensorboard import TensorBoardRows

            return TensorBoardRows(folder)

        def give_up(error: Exception) -> None:
            self._notify(f"The TensorBoard logs cannot be written ({explain(error)}); the training goes on.")

        return [Guarded(make, give_up)]

    @property
    def wants_every_model(self) -> bool:
        """Whether the model of every epoch is to be told, and not the best one alone."""
        return False

    def log(self, row: Mapping[str, Any], step: int | None = None) -> None:
        """Tell a row of numbers of a training step; None for the next one."""

    def summary(self, values: Mapping[str, Any]) -> None:
        """Tell the numbers that sum up the run."""

    def write_log(self, text: str) -> None:
        """Tell lines of the log."""

    def note(self, text: str) -> None:
        """Tell something about the run that its reader should see first, such as why it failed."""

    def model(self, path: Path, aliases: Sequence[str], facts: Mapping[str, Any]) -> None:
        """Hand over a saved model under the names `aliases`; None of it where no model was asked for."""

    def code(self, files: Sequence[Path], facts: Mapping[str, Any]) -> None:
        """Hand over what tells the code that runs."""

    def mistakes(self, found: Any) -> None:
        """Tell the wrong predictions (`manyfit.mistakes.Mistakes`)."""

    def preempted(self) -> None:
        """Tell that the run was stopped from outside, and may go on."""

    def finish(self, exit_code: int = 0) -> None:
        """Close the tracker; what it was told is on disk afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish(exit_code_of(error))


class NullTracker(Tracker):
    """`tracker=none`, or W&B disabled."""


def exit_code_of(error: BaseException | None) -> int:
    """The exit code that a process ending in `error` will have."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt):
        return 130
    code = getattr(error, "exit_code", 1)
    return code if isinstance(code, int) else 1


def explain(error: Exception) -> str:
    """The kind of an exception and the first line of what it says."""
    first_line = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def short_tags(tags: Sequence[str]) -> list[str]:
    """Tags as W&B takes them: not empty, at most 64 characters, each once."""
    return list(dict.fromkeys(tag.strip()[:MAX_TAG] for tag in tags if tag.strip()))
