"""How many: every number that follows from the batch size, the replicas and the size of the data set."""

import math
from dataclasses import dataclass
from typing import Self

from manyfit.config import DEFAULT_PER_REPLICA_BATCH_SIZE, BatchConfig
from manyfit.errors import ConfigError


@dataclass(frozen=True)
class BatchPlan:
    """The batches of one run: sizes, steps and the examples they visit.

    A step feeds every replica the same number of rows. With `remainder='pad'` the rows that the last step of an epoch
    lacks are padding of weight 0, so that every example counts once; with `'drop'` the examples that do not fill a
    step are left out of that epoch. Evaluation always pads.

    >>> plan = BatchPlan.make(
    ...     BatchConfig(global_batch_size=64), num_train=2000, num_validation=400, num_replicas=4
    ... )
    >>> plan.per_replica_batch_size, plan.steps_per_epoch, plan.padding_rows, plan.validation_steps
    (16, 32, 48, 7)

    Args:
        num_replicas: Devices that each hold a copy of the model.
        per_replica_batch_size: Rows a replica gets in one micro-batch.
        global_batch_size: Rows of one micro-batch over all replicas.
        gradient_accumulation: Micro-batches whose gradients make one update of the weights.
        num_train: Training examples of an epoch.
        num_validation: Validation examples; 0 for none.
        remainder: `pad` or `drop`.
        size_was_reduced: Neither size was given, and the default was reduced to fit a small data set.
    """

    num_replicas: int
    per_replica_batch_size: int
    global_batch_size: int
    gradient_accumulation: int
    num_train: int
    num_validation: int
    remainder: str
    size_was_reduced: bool = False

    @classmethod
    def make(
        cls,
        batch: BatchConfig,
        *,
        num_train: int,
        num_validation: int,
        num_replicas: int,
        gradient_accumulation: int = 1,
    ) -> Self:
        """The plan for `num_train` examples on `num_replicas` replicas.

        Without a size, 32 examples a replica, or fewer where that is more than the data set holds:

        >>> BatchPlan.make(BatchConfig(), num_train=37, num_validation=8, num_replicas=4).per_replica_batch_size
        9

        Raises:
            ConfigError: a global size that the replicas cannot share evenly, or a step that is larger than the
                training split; the message names the nearest sizes that work.
        """
        if num_replicas < 1 or num_validation < 0:
            raise ValueError(f"{num_replicas} replicas and {num_validation} validation examples make no plan.")
        _check_room(num_train, num_replicas, gradient_accumulation)
        largest = num_train // (num_replicas * gradient_accumulation)
        reduced = False
        if batch.global_batch_size is not None:
            _check_global(batch.global_batch_size, num_replicas, largest)
            per_replica = batch.global_batch_size // num_replicas
        elif batch.per_replica_batch_size is not None:
            per_replica = batch.per_replica_batch_size
        else:
            per_replica = min(DEFAULT_PER_REPLICA_BATCH_SIZE, largest)
            reduced = per_replica < DEFAULT_PER_REPLICA_BATCH_SIZE
        plan = cls(
            num_replicas=num_replicas,
            per_replica_batch_size=per_replica,
            global_batch_size=per_replica * num_replicas,
            gradient_accumulation=gradient_accumulation,
            num_train=num_train,
            num_validation=num_validation,
            remainder=batch.remainder,
            size_was_reduced=reduced,
        )
        _check_step(plan, batch, largest)
        return plan

    @property
    def examples_per_step(self) -> int:
        """Rows that one update of the weights sees: all replicas, all micro-batches."""
        return self.global_batch_size * self.gradient_accumulation

    @property
    def rows_per_replica_per_step(self) -> int:
        """Rows that one replica gets for one update of the weights."""
        return self.per_replica_batch_size * self.gradient_accumulation

    @property
    def steps_per_epoch(self) -> int:
        """Updates of the weights in one epoch."""
        if self.remainder == "drop":
            return self.num_train // self.examples_per_step
        return math.ceil(self.num_train / self.examples_per_step)

    @property
    def validation_steps(self) -> int:
        """Batches of `global_batch_size` rows that hold the validation split; the last is padded, never dropped."""
        return math.ceil(self.num_validation / self.global_batch_size)

    @property
    def examples_per_epoch(self) -> int:
        """Training examples that count in one epoch, padding left out."""
        return min(self.num_train, self.steps_per_epoch * self.examples_per_step)

    @property
    def padding_rows(self) -> int:
        """Rows of weight 0 in the last training step of an epoch."""
        return self.steps_per_epoch * self.examples_per_step - self.examples_per_epoch

    @property
    def validation_padding_rows(self) -> int:
        """Rows of weight 0 in the last validation batch."""
        return self.validation_steps * self.global_batch_size - self.num_validation

    def learning_rate_scale(self, scale_with: str, reference_batch_size: int) -> float:
        """The factor by which a rate that suits `reference_batch_size` grows to suit a step of this plan.

        `linear` after Goyal et al. 2017 (arXiv:1706.02677), `sqrt` after Krizhevsky 2014 (arXiv:1404.5997).

        >>> plan = BatchPlan.make(
        ...     BatchConfig(per_replica_batch_size=32), num_train=2000, num_validation=400, num_replicas=4
        ... )
        >>> [plan.learning_rate_scale(rule, 32) for rule in ("none", "linear", "sqrt")]
        [1.0, 4.0, 2.0]
        """
        ratio = self.examples_per_step / reference_batch_size
        scales = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}
        if scale_with not in scales:
            raise ValueError(f"scale_with={scale_with!r} is not one of {', '.join(scales)}.")
        return scales[scale_with]


def _check_room(num_train: int, num_replicas: int, gradient_accumulation: int) -> None:
    """Refuse a data set that cannot give every replica one example for every micro-batch of a step."""
    rows = num_replicas * gradient_accumulation
    if num_train < 1:
        raise ConfigError("The training split has no examples.", "Check data.root and data.validation_fraction.")
    if num_train >= rows:
        return
    step = f"{num_replicas} replicas"
    remedies = [f"strategy.replicas={num_train // gradient_accumulation} or fewer"]
    if gradient_accumulation > 1:
        step += f" x gradient_accumulation={gradient_accumulation}"
        remedies.append(f"gradient_accumulation={num_train // num_replicas} or less")
    possible = " or ".join(remedy for remedy in remedies if "=0 " not in remedy)
    raise ConfigError(
        f"The training split has {num_train} examples, but {step} need at least {rows} for one step.",
        f"Give {possible}, or use more data." if possible else "Use more data, fewer replicas and less accumulation.",
    )


def _check_global(size: int, num_replicas: int, largest: int) -> None:
    """Refuse a global size that is no multiple of the replicas, naming the multiples next to it."""
    if size >= num_replicas and size % num_replicas == 0:
        return
    below = min(size // num_replicas, largest)
    above = size // num_replicas + 1
    nearest = [str(count * num_replicas) for count in (below, above) if 1 <= count <= largest]
    raise ConfigError(
        f"batch.global_batch_size={size} does not split evenly over {num_replicas} replicas.",
        f"Give batch.global_batch_size={' or '.join(nearest)}.",
    )


def _check_step(plan: BatchPlan, batch: BatchConfig, largest: int) -> None:
    """Refuse a step that holds no rows, or more than the training split has."""
    if 1 <= plan.per_replica_batch_size <= largest:
        return
    key, factor = "per_replica_batch_size", 1
    if batch.global_batch_size is not None:
        key, factor = "global_batch_size", plan.num_replicas
    received = f"batch.{key}={getattr(batch, key)}"
    if plan.per_replica_batch_size < 1:
        raise ConfigError(f"{received} makes no batch.", f"Give a size from {factor} to {largest * factor}.")
    made_of = [] if factor > 1 or plan.num_replicas == 1 else [f"{plan.num_replicas} replicas"]
    if plan.gradient_accumulation > 1:
        made_of.append(f"gradient_accumulation={plan.gradient_accumulation}")
    raise ConfigError(
        f"{received}{''.join(f' x {part}' for part in made_of)} makes steps of {plan.examples_per_step} examples, "
        f"but the training split has {plan.num_train}.",
        f"Give batch.{key}={largest * factor} or less.",
    )
