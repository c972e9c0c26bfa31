"""The groups `optimizer`, `schedule`, `precision`, the sections `ema`, `swa`, `loss`, `early_stopping`."""

from dataclasses import dataclass, field

from manyfit.errors import ConfigError
from manyfit.schema.checks import at_least, between, one_of


@dataclass
class OptimizerConfig:
    """Any optimizer.

    Args:
        learning_rate: At the reference batch size, before `schedule` has its say.
        weight_decay: Decoupled decay of the trained variables; None for the optimizer's own default.
        global_clipnorm: Clip the gradient of the whole batch to this global norm; None for no clipping.
        layer_decay: The rate of each block of the backbone is this times that of the block above it, the head's being
            the whole rate; None for one rate everywhere. Howard and Ruder 2018 (arXiv:1801.06146, section 3.2) divide
            by 2.6 a layer; Bao et al. 2021 (BEiT, arXiv:2106.08254) multiply by a factor below 1 a block.
    """

    name: str = "adam"
    learning_rate: float = 0.001
    weight_decay: float | None = None
    global_clipnorm: float | None = None
    layer_decay: float | None = None

    def __post_init__(self) -> None:
        at_least("optimizer.learning_rate", self.learning_rate, 0, exclusive=True)
        at_least("optimizer.weight_decay", self.weight_decay, 0)
        at_least("optimizer.global_clipnorm", self.global_clipnorm, 0, exclusive=True)
        at_least("optimizer.layer_decay", self.layer_decay, 0, exclusive=True)
        if self.layer_decay is not None and self.layer_decay > 1:
            raise ConfigError(
                f"optimizer.layer_decay={self.layer_decay} is out of range.", "Give a number of at most 1, such as 0.8."
            )


@dataclass
class SGDConfig(OptimizerConfig):
    """Stochastic gradient descent with momentum."""

    name: str = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        between("optimizer.momentum", self.momentum, 0, 1)


@dataclass
class AdamConfig(OptimizerConfig):
    """Adam."""

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        super().__post_init__()
        between("optimizer.beta_1", self.beta_1, 0, 1)
        between("optimizer.beta_2", self.beta_2, 0, 1)
        at_least("optimizer.epsilon", self.epsilon, 0, exclusive=True)


@dataclass
class AdamWConfig(AdamConfig):
    """Adam with decoupled weight decay."""

    name: str = "adamw"
    weight_decay: float | None = 0.004


@dataclass
class ScheduleConfig:
    """How the learning rate moves from epoch to epoch.

    Args:
        scale_with: Scale the rate by global batch size / `reference_batch_size` (`linear`), its square root
            (`sqrt`), or not at all (`none`).
    """

    name: str = "constant"
    scale_with: str = "none"
    reference_batch_size: int = 32

    def __post_init__(self) -> None:
        if self.scale_with is None:
            self.scale_with = "none"
        one_of("schedule.scale_with", self.scale_with, ("none", "linear", "sqrt"))
        at_least("schedule.reference_batch_size", self.reference_batch_size, 1)


@dataclass
class RampConfig(ScheduleConfig):
    """Start low, ramp up, sustain, decay: the rates are factors of optimizer.learning_rate."""

    name: str = "ramp"
    start_factor: float = 0.01
    max_factor: float = 1.0
    min_factor: float = 0.01
    ramp_up_epochs: int = 5
    sustain_epochs: int = 0
    decay: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("start_factor", "max_factor", "min_factor"):
            at_least(f"schedule.{key}", getattr(self, key), 0)
        at_least("schedule.ramp_up_epochs", self.ramp_up_epochs, 0)
        at_least("schedule.sustain_epochs", self.sustain_epochs, 0)
        between("schedule.decay", self.decay, 0, 1)


@dataclass
class StepConfig(ScheduleConfig):
    """The rate times `factors[i]` from epoch `boundaries[i]` on (epochs counted from 0)."""

    name: str = "step"
    boundaries: list[int] = field(default_factory=lambda: [3, 7])
    factors: list[float] = field(default_factory=lambda: [0.1, 0.01])

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.boundaries) != len(self.factors) or list(self.boundaries) != sorted(set(self.boundaries)):
            raise ConfigError(
                f"schedule.boundaries={self.boundaries} and schedule.factors={self.factors} do not fit together.",
                "Give rising epochs and one factor for each.",
            )
        if any(factor < 0 for factor in self.factors):
            raise ConfigError(f"schedule.factors={self.factors} is out of range.", "Give factors >= 0.")


@dataclass
class CosineConfig(ScheduleConfig):
    """A linear warm-up, then half a cosine down to `min_factor`."""

    name: str = "cosine"
    warmup_epochs: int = 0
    min_factor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("schedule.warmup_epochs", self.warmup_epochs, 0)
        between("schedule.min_factor", self.min_factor, 0, 1)


@dataclass
class PlateauConfig(ScheduleConfig):
    """The rate falls when a metric of the epochs has not got better for a while.

    Args:
        metric: Such as `val_loss`.
        factor: What the rate is multiplied by.
        patience: Epochs without a better value after which it is, counted anew each time.
        min_delta: By how much a value must be better.
        min_factor: The lowest rate, as a factor of `optimizer.learning_rate`.
        mode: `min` or `max`: whether low or high values are good; `auto` goes by the name.
    """

    name: str = "plateau"
    metric: str = "val_loss"
    factor: float = 0.5
    patience: int = 2
    min_delta: float = 0.0
    min_factor: float = 0.001
    mode: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.factor < 1:
            raise ConfigError(f"schedule.factor={self.factor} is out of range.", "Give a number between 0 and 1: 0.5.")
        at_least("schedule.patience", self.patience, 1)
        at_least("schedule.min_delta", self.min_delta, 0)
        between("schedule.min_factor", self.min_factor, 0, 1)
        one_of("schedule.mode", self.mode, ("auto", "min", "max"))


SCHEDULES: dict[str, type[ScheduleConfig]] = {
    "constant": ScheduleConfig,
    "ramp": RampConfig,
    "step": StepConfig,
    "cosine": CosineConfig,
    "plateau": PlateauConfig,
}
"""The choices of the group."""


@dataclass
class PrecisionConfig:
    """The Keras dtype policy; the head's output stays float32 under each of them."""

    name: str = "float32"

    def __post_init__(self) -> None:
        one_of("precision.name", self.name, ("float32", "mixed_float16", "mixed_bfloat16"))


@dataclass
class EMAConfig:
    """An exponential moving average of the weights, used for evaluation and the saved model; None for none."""

    decay: float | None = None

    def __post_init__(self) -> None:
        if self.decay is not None and not 0 < self.decay < 1:
            raise ConfigError(f"ema.decay={self.decay} is out of range.", "Give a number between 0 and 1: 0.999.")


@dataclass
class SWAConfig:
    """Stochastic weight averaging: the plain mean of the weights after each of the last epochs (Izmailov et al. 2018,
    arXiv:1803.05407). The mean is validated, and it is the saved model where it is the best.

    Args:
        epochs: How many of the last epochs count; None for none.
    """

    epochs: int | None = None

    def __post_init__(self) -> None:
        at_least("swa.epochs", self.epochs, 2)


@dataclass
class EarlyStoppingConfig:
    """When a training that no longer gets better ends.

    Args:
        metric: A metric of the epochs, such as `val_loss`; None for never.
        patience: Epochs without a better value after which it ends.
        min_delta: By how much a value must be better.
        mode: `min` or `max`: whether low or high values are good; `auto` goes by the name.
    """

    metric: str | None = None
    patience: int = 5
    min_delta: float = 0.0
    mode: str = "auto"

    def __post_init__(self) -> None:
        at_least("early_stopping.patience", self.patience, 1)
        at_least("early_stopping.min_delta", self.min_delta, 0)
        one_of("early_stopping.mode", self.mode, ("auto", "min", "max"))


@dataclass
class LossConfig:
    """What the cross-entropy of the training and of the validation is changed by.

    Args:
        label_smoothing: Share of the target that is spread over all classes.
        focal_gamma: How much less an example counts that is classified well; 0 for not at all.
    """

    label_smoothing: float = 0.0
    focal_gamma: float = 0.0

    def __post_init__(self) -> None:
        between("loss.label_smoothing", self.label_smoothing, 0, 0.99)
        at_least("loss.focal_gamma", self.focal_gamma, 0)

    @property
    def is_adjusted(self) -> bool:
        """Whether it is not the plain cross-entropy."""
        return bool(self.label_smoothing or self.focal_gamma)

    def words(self) -> str:
        """What it is changed by, as it is asked for.

        >>> LossConfig(focal_gamma=2.0).words()
        'loss.focal_gamma=2'
        """
        changes = {"label_smoothing": self.label_smoothing, "focal_gamma": self.focal_gamma}
        return " ".join(f"loss.{name}={value:g}" for name, value in changes.items() if value)
