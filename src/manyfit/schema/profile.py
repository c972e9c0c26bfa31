"""What is asked of the profiler."""

from dataclasses import dataclass
from typing import Any

from manyfit.errors import ConfigError
from manyfit.schema.checks import at_least, is_count


@dataclass
class ProfileConfig:
    """Which steps are traced; `profile=true` on the command line is short for `profile.steps=true`.

    Args:
        steps: First and last step of an epoch to trace, `[10,20]`, counted from 1; true for steps 10 to 20, or what the
            epoch has of them; null for none.
        epoch: The epoch, counted from 1; the next one where this one does not reach the steps with a training function
            that was built before. A run with phases is traced in a later phase by it.
    """

    steps: Any = None
    epoch: int = 1

    def __post_init__(self) -> None:
        at_least("profile.epoch", self.epoch, 1)
        if self.steps is None or self.steps is False:
            self.steps = None
            return
        if self.steps is True:
            return
        if not isinstance(self.steps, list) or len(self.steps) != 2 or not all(map(is_count, self.steps)):
            raise ConfigError(
                f"profile.steps={self.steps} is no pair of steps.",
                "Give the first and the last, profile.steps=[10,20], or profile=true.",
            )
        first, last = self.steps
        if first < 2:
            raise ConfigError(
                f"profile.steps=[{first},{last}] begins with the step that builds the training function.",
                f"Begin with step 2 or later: profile.steps=[2,{max(last, 2)}].",
            )
        if last < first:
            raise ConfigError(f"profile.steps=[{first},{last}] ends before it begins.", "Give the first step first.")
