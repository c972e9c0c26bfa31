"""Which learning rate a range test suggests, and which `optimizer.learning_rate` makes a training have it."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from manyfit import schedule
from manyfit.batch import BatchPlan
from manyfit.config import RunConfig
from manyfit.errors import UserError
from manyfit.report.learning_rate_range import DONE, NOT_FINITE, STOP_FACTOR, Losses, RangeSettings, curve

FEWEST_LOSSES = 10
"""With fewer a curve says nothing."""
STANDS_OUT = 6.0
"""Standard errors of the curve that a fall must have: of tests of 60 steps or more without any fall, drawn at random,
fewer than one in a hundred has one."""

RULE = (
    "the lower of two rates: where the smoothed loss falls fastest over the logarithm of the rate, and a tenth of the "
    "rate at which it is lowest"
)


@dataclass(frozen=True)
class Suggestion:
    """What a curve suggests.

    Args:
        steepest: The rate at which the loss falls fastest.
        minimum: The rate at which it is lowest.
        still_falling: It is lowest at the last rate tried, so that a higher one may be better.
    """

    steepest: float
    minimum: float
    still_falling: bool = False

    @property
    def tenth(self) -> float:
        """A tenth of the rate at which the loss is lowest."""
        return self.minimum / 10

    @property
    def rate(self) -> float:
        """The lower of both rules."""
        return min(self.steepest, self.tenth)

    @property
    def by(self) -> str:
        """The rule that decided."""
        return "steepest descent" if self.steepest <= self.tenth else "a tenth of the minimum"


def suggest(found: Losses) -> Suggestion:
    """The rate that the losses suggest.

    Raises:
        UserError: they allow no suggestion; it says why, and what to change.
    """
    _check_enough(found)
    losses, rates = np.array(found.losses), found.settings.rates
    smooth = np.array(curve(found.losses, found.settings.width))
    lowest = int(smooth.argmin())
    fall = smooth[0] - smooth[lowest]
    error = _standard_error(losses[: lowest + 1] - smooth[: lowest + 1], found.settings.width)
    needed = float(max(STANDS_OUT * error, 0.01 * abs(smooth[0])))
    if lowest < 2 or fall <= needed:
        raise _did_not_fall(found, float(smooth[0]), float(fall), needed)
    slope = np.gradient(smooth, np.log10(rates[: len(smooth)]))[: lowest + 1]
    is_last = found.ended == DONE and lowest == len(smooth) - 1
    return Suggestion(rates[int(slope.argmin())], rates[lowest], still_falling=is_last)


def _standard_error(residuals: np.ndarray, width: float) -> float:
    """Of a curve whose weights have the standard deviation `width`, from what it leaves of the losses."""
    own = 1 / (math.sqrt(2 * math.pi) * width)  # the weight of a loss in its own smoothed value
    squares = 1 / (2 * math.sqrt(math.pi) * width)  # the sum of the weights' squares
    variance = float(np.mean(residuals**2)) / (1 - 2 * own + squares)
    return math.sqrt(variance * squares)


def _check_enough(found: Losses) -> None:
    count, rates = len(found.losses), found.settings.rates
    if count >= FEWEST_LOSSES:
        return
    at = f"at step {count + (found.ended == NOT_FINITE)} of {found.settings.steps}"
    lower = f"--lowest {found.settings.lowest / 1000:.2g}"
    if found.ended == NOT_FINITE and count == 0:
        raise UserError(
            f"The loss or its gradient is not a finite number {at}, before any rate had its say.",
            "The rate is not the cause: look at the pixels and labels, at a loss of your own, and try "
            "precision=float32 and on one device.",
        )
    what = "is not a finite number" if found.ended == NOT_FINITE else f"is more than {STOP_FACTOR:g} times the best"
    raise UserError(
        f"The loss {what} {at} (learning rate {rates[max(0, count - 1)]:.2g}): too few steps for a curve.",
        f"Begin lower: {lower}; if that does not help, optimizer.global_clipnorm=1 or precision=float32.",
    )


def _did_not_fall(found: Losses, start: float, fall: float, needed: float) -> UserError:
    rates = found.settings.rates
    message = (
        f"No suggestion: over the rates {rates[0]:.2g} to {rates[len(found.losses) - 1]:.2g} the smoothed loss falls "
        f"by {fall:.2g} from {start:.4g}; a fall of {needed:.2g} would stand out from the scatter of the steps."
    )
    if found.ended == DONE:
        return UserError(
            message,
            f"{'Go higher (--highest 10), or look' if rates[-1] < 1 else 'Look'} at what is trained (model.weights, "
            "model.trainable) and at the labels; more --steps or a larger batch make a small fall stand out.",
        )
    return UserError(message, f"Begin lower (--lowest {rates[0] / 1000:.2g}), or give more --steps or a larger batch.")


@dataclass(frozen=True)
class RangeTest:
    """What a range test found.

    Args:
        factor: The highest learning rate of the training that is configured, over its `optimizer.learning_rate`.
        start_factor: Likewise that of its first epoch.
        scaling: Where the factor is from, in words.
        suggestion: None where the losses allow none.
        problem: Why there is none.
    """

    settings: RangeSettings
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    ended: str
    factor: float
    start_factor: float
    scaling: str
    suggestion: Suggestion | None = None
    problem: str | None = None

    @classmethod
    def of(cls, found: Losses, factor: float, start_factor: float, scaling: str) -> "RangeTest":
        """What came of the losses of a test that is over."""
        suggestion, problem = None, None
        try:
            suggestion = suggest(found)
        except UserError as error:
            problem = str(error)
        measured = (tuple(found.losses), tuple(found.smoothed), found.ended or DONE)
        return cls(found.settings, *measured, factor, start_factor, scaling, suggestion, problem)

    @property
    def curve(self) -> list[float]:
        """The losses smoothed from both sides."""
        return curve(self.losses, self.settings.width)

    @property
    def learning_rate(self) -> float | None:
        """The `optimizer.learning_rate` with which the highest rate of the training is the suggested one."""
        if self.suggestion is None or self.factor <= 0:
            return None
        return float(f"{self.suggestion.rate / self.factor:.2g}")

    @property
    def override(self) -> str | None:
        """The word for the command line of src/train.py."""
        return None if self.learning_rate is None else f"optimizer.learning_rate={self.learning_rate:g}"

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        rows = zip(self.settings.rates, self.losses, self.smoothed, self.curve, strict=False)
        names = ("step", "learning_rate", "loss", "smoothed", "curve")
        shape = {"smoothing": self.settings.smoothing, "width": self.settings.width, "stop_factor": STOP_FACTOR}
        suggestion = self.suggestion and {
            **asdict(self.suggestion),
            "tenth_of_minimum": self.suggestion.tenth,
            "rate": self.suggestion.rate,
            "by": self.suggestion.by,
            "optimizer.learning_rate": self.learning_rate,
            "override": self.override,
        }
        return {
            "suggestion": suggestion,
            "problem": self.problem,
            "rule": RULE,
            "ended": self.ended,
            "settings": {**asdict(self.settings), **shape},
            "learning_rate_factor": {"highest": self.factor, "first_epoch": self.start_factor, "why": self.scaling},
            "steps": [dict(zip(names, (step, *row), strict=True)) for step, row in enumerate(rows, start=1)],
        }


def factors(config: RunConfig, plan: BatchPlan) -> tuple[float, float, str]:
    """The training's highest and first rate over `optimizer.learning_rate`, and in words where they are from."""
    rates = schedule.learning_rates(config, plan)
    asked, how = config.optimizer.learning_rate, config.schedule
    words = f"schedule={how.name}"
    if how.scale_with != "none":
        scale = plan.learning_rate_scale(how.scale_with, how.reference_batch_size)
        words += (
            f", schedule.scale_with={how.scale_with}: {scale:.4g} for steps of {plan.examples_per_step} examples, "
            f"reference {how.reference_batch_size}"
        )
    return max(rates) / asked, rates[0] / asked, words
