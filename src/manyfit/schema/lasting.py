"""The sections `checkpoint`, `resume` and `watchdog`: how a run outlives its process."""

from dataclasses import dataclass, field
from pathlib import Path

from manyfit.schema.checks import at_least

RESUME_AUTO = "auto"


@dataclass
class CheckpointConfig:
    """When the exact state of a training is written, besides at the end of every epoch.

    Args:
        every_minutes: Minutes of training after which one is due inside an epoch; None for none.
        every_steps: Steps after which one is due inside an epoch; None for none.
        keep: How many are kept; that of the best epoch stays as well.
    """

    every_minutes: float | None = 10.0
    every_steps: int | None = None
    keep: int = 2

    def __post_init__(self) -> None:
        at_least("checkpoint.every_minutes", self.every_minutes, 0, exclusive=True)
        at_least("checkpoint.every_steps", self.every_steps, 1)
        at_least("checkpoint.keep", self.keep, 1)


@dataclass
class ResumeConfig:
    """The run that goes on; `resume=FOLDER` on the command line is short for `resume.folder=FOLDER`.

    Args:
        folder: Its run folder; `auto` for the one of hydra.run.dir, or a new run where that is empty.
        allow: Keys that may have another value than before.
    """

    folder: str | None = None
    allow: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.folder is not None and self.folder != RESUME_AUTO:
            self.folder = str(Path(self.folder).expanduser().absolute())


@dataclass
class WatchdogConfig:
    """When a training that stands still is ended.

    Args:
        minutes: Minutes without a finished step (the first one may take three times as long); None for no watch.
    """

    minutes: float | None = 30.0

    def __post_init__(self) -> None:
        at_least("watchdog.minutes", self.minutes, 0, exclusive=True)
