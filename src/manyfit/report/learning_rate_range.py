"""The arithmetic of a learning-rate range test: which rates are tried, when it ends, how losses are smoothed.

After Smith 2017, "Cyclical learning rates for training neural networks" (arXiv:1506.01186), section 3.3, with the
exponential growth, the smoothed loss and the end at four times the best one of fastai's `LRFinder`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from manyfit.config import RunConfig
from manyfit.errors import ConfigError

FEWEST_STEPS, MOST_STEPS = 20, 10_000
STOP_FACTOR = 4.0
MEMORY, WIDTH = 1 / 10, 1 / 25
"""Shares of a test's steps: what the running mean remembers, and the standard deviation of the weights of the curve.
Shares, so that more steps blur no more of the rates."""

DONE, DIVERGED, NOT_FINITE = "highest rate", "diverged", "not finite"


@dataclass(frozen=True)
class RangeSettings:
    """Which rates are tried.

    Args:
        lowest: Of the first step.
        highest: Of the last step.
        steps: Updates of the weights; the rate grows by the same factor from each to the next.

    Raises:
        ConfigError: too few steps, or rates that do not grow.
    """

    lowest: float = 1e-7
    highest: float = 10.0
    steps: int = 100

    def __post_init__(self) -> None:
        if not FEWEST_STEPS <= self.steps <= MOST_STEPS:
            few = self.steps < FEWEST_STEPS
            raise ConfigError(
                f"--steps {self.steps} is too {'few for a curve' if few else 'many'}.",
                f"Give {FEWEST_STEPS} or more; 100 is usual." if few else f"Give {MOST_STEPS:,} or fewer.",
            )
        if not (0 < self.lowest < self.highest < math.inf and self.highest >= 10 * self.lowest):
            raise ConfigError(
                f"--lowest {self.lowest:g} and --highest {self.highest:g} make no range.",
                "Give two numbers above 0, the second at least ten times the first: --lowest 1e-7 --highest 10.",
            )

    @property
    def rates(self) -> list[float]:
        """The learning rate of every step.

        >>> RangeSettings(0.001, 10.0, 41).rates[::10]
        [0.001, 0.01, 0.1, 1.0, 10.0]
        """
        low, high = math.log10(self.lowest), math.log10(self.highest)
        return [float(f"{10 ** (low + (high - low) * step / (self.steps - 1)):.12g}") for step in range(self.steps)]

    @property
    def smoothing(self) -> float:
        """The weight of a loss in the running mean, relative to that of the next one."""
        return 1 - 1 / (MEMORY * self.steps)

    @property
    def width(self) -> float:
        """The standard deviation of the curve's weights, in steps."""
        return WIDTH * self.steps


def check_asked(config: RunConfig) -> None:
    """Refuse what only a training can do.

    Raises:
        ConfigError: a run is to be resumed, or has phases.
    """
    if config.phases:
        raise ConfigError(
            "phases: a range test is about one of them, with a learning rate of its own.",
            "Give phases=[] and what that phase asks for, such as model.trainable=last:20 augment=light.",
        )
    if config.resume.folder is not None:
        raise ConfigError(
            f"resume={config.resume.folder}: a range test starts with the network as it is built.",
            "Leave resume out; it goes with src/train.py.",
        )


class Losses:
    """The losses of the steps so far, and whether the test is over.

    Attributes:
        losses: The mean loss of each step's examples, float.
        smoothed: Their exponential mean with Adam's correction of the start (Kingma and Ba 2015, section 3).
        ended: Why it is over; None while it is not.
    """

    def __init__(self, settings: RangeSettings):
        self.settings = settings
        self.losses: list[float] = []
        self.smoothed: list[float] = []
        self.ended: str | None = None
        self._mean = 0.0
        self._best = math.inf

    def add(self, loss: float) -> bool:
        """Take the loss of a step; whether it was the last one. A loss that is no finite number is not kept."""
        if not math.isfinite(loss):
            self.ended = NOT_FINITE
            return True
        weight = self.settings.smoothing
        self.losses.append(loss)
        self._mean = weight * self._mean + (1 - weight) * loss
        self.smoothed.append(self._mean / (1 - weight ** len(self.losses)))
        # Four times the best; a loss of the user's own may be negative.
        if self.smoothed[-1] > self._best + (STOP_FACTOR - 1) * abs(self._best):
            self.ended = DIVERGED
        elif len(self.losses) == self.settings.steps:
            self.ended = DONE
        self._best = min(self._best, self.smoothed[-1])
        return self.ended is not None


def curve(losses: Sequence[float], width: float) -> list[float]:
    """The losses smoothed from both sides, with Gaussian weights: no fall is moved to a higher rate.

    What lies above both the losses before the best one and four times that is cut off: one loss of a million would
    hide all that was before it.

    >>> [round(value, 3) for value in curve([4.0, 1.0, 1.0, 1.0], 1.0)]
    [2.711, 1.775, 1.173, 1.019]

    Args:
        width: The standard deviation of the weights, in steps.
    """
    values = np.asarray(losses, np.float64)
    if not len(values):
        return []
    best = int(values.argmin())
    ceiling = max(values[: best + 1].max(), values[best] + (STOP_FACTOR - 1) * abs(values[best]))
    values = np.minimum(values, ceiling)
    reach = math.ceil(4 * width)
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    sums, totals = (np.convolve(one, weights)[reach : reach + len(values)] for one in (values, np.ones_like(values)))
    return (sums / totals).tolist()
