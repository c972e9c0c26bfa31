"""How the learning rate moves: pure functions from the epoch to a factor of the optimizer's rate."""

import math

from manyfit.batch import BatchPlan
from manyfit.config import CosineConfig, RampConfig, RunConfig, ScheduleConfig, StepConfig


def learning_rate_factor(schedule: ScheduleConfig, epoch: int, epochs: int) -> float:
    """The factor of the learning rate in `epoch` (counted from 0) of `epochs`.

    >>> def factors(schedule, epochs):
    ...     return [round(learning_rate_factor(schedule, epoch, epochs), 3) for epoch in range(epochs)]
    >>> factors(ScheduleConfig(), 3)
    [1.0, 1.0, 1.0]
    >>> factors(RampConfig(start_factor=0.2, min_factor=0.1, ramp_up_epochs=4, sustain_epochs=1), 8)
    [0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 0.82, 0.676]
    >>> factors(StepConfig(boundaries=[3, 5], factors=[0.1, 0.01]), 6)
    [1.0, 1.0, 1.0, 0.1, 0.1, 0.01]
    >>> factors(CosineConfig(warmup_epochs=1), 6)
    [0.5, 1.0, 0.905, 0.655, 0.345, 0.095]
    """
    if isinstance(schedule, RampConfig):
        return _ramp(schedule, epoch)
    if isinstance(schedule, StepConfig):
        return _step(schedule, epoch)
    if isinstance(schedule, CosineConfig):
        return _cosine(schedule, epoch, epochs)
    return 1.0


def learning_rates(config: RunConfig, plan: BatchPlan) -> list[float]:
    """The learning rate of every epoch: optimizer.learning_rate x the batch's scale x the schedule's factor.

    >>> config = RunConfig(schedule=StepConfig(scale_with="linear", boundaries=[2], factors=[0.1]), epochs=3)
    >>> plan = BatchPlan.make(config.batch, num_train=2000, num_validation=400, num_replicas=4)
    >>> [round(rate, 6) for rate in learning_rates(config, plan)]
    [0.004, 0.004, 0.0004]
    """
    schedule = config.schedule
    scale = plan.learning_rate_scale(schedule.scale_with, schedule.reference_batch_size)
    peak = config.optimizer.learning_rate * scale
    return [peak * learning_rate_factor(schedule, epoch, config.epochs) for epoch in range(config.epochs)]


def _ramp(schedule: RampConfig, epoch: int) -> float:
    """Linear from start to max, then max, then an exponential decay towards min."""
    low, high = schedule.start_factor, schedule.max_factor
    if epoch < schedule.ramp_up_epochs:
        return low + (high - low) * epoch / schedule.ramp_up_epochs
    decaying = epoch - schedule.ramp_up_epochs - schedule.sustain_epochs
    if decaying < 0:
        return high
    return (high - schedule.min_factor) * schedule.decay**decaying + schedule.min_factor


def _step(schedule: StepConfig, epoch: int) -> float:
    """The factor of the last boundary that `epoch` has reached; 1 before the first."""
    factor = 1.0
    for boundary, value in zip(schedule.boundaries, schedule.factors, strict=True):
        if epoch >= boundary:
            factor = value
    return factor


def _cosine(schedule: CosineConfig, epoch: int, epochs: int) -> float:
    """Linear up to 1 in epoch `warmup_epochs`, then half a cosine that would reach the minimum in epoch `epochs`.

    Neither end wastes an epoch: the first has a rate above 0, and the last stays above the minimum.
    """
    if epoch < schedule.warmup_epochs:
        return (epoch + 1) / (schedule.warmup_epochs + 1)
    progress = (epoch - schedule.warmup_epochs) / (epochs - schedule.warmup_epochs)
    return schedule.min_factor + (1 - schedule.min_factor) * (1 + math.cos(math.pi * progress)) / 2
