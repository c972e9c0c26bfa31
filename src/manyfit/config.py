"""What was asked: the schema of every configuration group, and the checks that need no TensorFlow.

Each group's YAML choice has one dataclass here, so that a key which a choice does not have is refused, and a value
is checked where it is declared. `check` turns a composed Hydra config into a `RunConfig`.
"""

import dataclasses
import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from manyfit.errors import ConfigError

AUTO = "auto"


def nearest(received: object, choices: Iterable[object]) -> str:
    """The remedy for an unknown name: the nearest choice if one is near, then all of them."""
    names = [str(choice) for choice in choices]
    near = difflib.get_close_matches(str(received), names, n=1, cutoff=0.5)
    return (f"Did you mean '{near[0]}'? " if near else "") + f"Choices: {', '.join(names)}."


def _one_of(key: str, value: object, choices: Iterable[str]) -> None:
    choices = tuple(choices)
    if value not in choices:
        raise ConfigError(f"{key}={value} is not one of its choices.", nearest(value, choices))


def _at_least(key: str, value: float | None, minimum: float, *, exclusive: bool = False) -> None:
    if value is None:
        return
    if not math.isfinite(value) or not (value > minimum if exclusive else value >= minimum):
        raise ConfigError(f"{key}={value} is out of range.", f"Give a number {'>' if exclusive else '>='} {minimum}.")


def _between(key: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{key}={value} is out of range.", f"Give a number from {low} to {high}.")


def _check_class_weight(value: object) -> None:
    numbers = isinstance(value, list) and all(type(one) in (int, float) and one >= 0 for one in value)
    if value not in (None, "balanced") and not (numbers and any(value)):  # pyright: ignore[reportArgumentType]
        raise ConfigError(
            f"class_weight={value} is not possible.", "Give null, balanced, or one number >= 0 a class: [1.0,2.5]."
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _auto_or_count(key: str, value: object) -> None:
    if value != AUTO and not _is_count(value):
        raise ConfigError(f"{key}={value} is not a count.", "Give 'auto' or a whole number >= 1.")


# --- data -----------------------------------------------------------------------------------------------------------


@dataclass
class DataConfig:
    """Any data set: where its examples come from.

    Args:
        name: The data set; also the choice of the group.
        root: A local copy; None means that `source` decides.
        source: `folder` (under `root`), `tfds`, `sample` (drawn pictures, cats_dogs only) or `auto` (the first that
            can be had).
        validation_fraction: Share of the examples held out where the set brings no validation split.
        on_bad_image: `skip` a file that cannot be read (and list it), or `error`.
    """

    name: str = "cats_dogs"
    root: str | None = None
    source: str = AUTO
    validation_fraction: float = 0.2
    on_bad_image: str = "skip"

    def __post_init__(self) -> None:
        _one_of("data.source", self.source, (AUTO, "folder", "tfds", "sample"))
        _one_of("data.on_bad_image", self.on_bad_image, ("skip", "error"))
        if not 0 < self.validation_fraction < 1:
            raise ConfigError(
                f"data.validation_fraction={self.validation_fraction} is out of range.",
                "Give a share between 0 and 1, such as 0.2.",
            )
        if self.source == "sample" and self.name != "cats_dogs":
            raise ConfigError(
                f"data.source=sample does not exist for data={self.name}.",
                "Only data=cats_dogs has an embedded sample; give data.root=PATH or data.source=tfds.",
            )
        if self.source == "folder" and self.root is None:
            raise ConfigError("data.source=folder needs a folder.", "Give data.root=PATH.")


@dataclass
class EmnistConfig(DataConfig):
    """EMNIST in one of its variants (balanced, byclass, bymerge, digits, letters, mnist)."""

    name: str = "emnist"
    variant: str = "balanced"

    def __post_init__(self) -> None:
        super().__post_init__()
        _one_of("data.variant", self.variant, ("balanced", "byclass", "bymerge", "digits", "letters", "mnist"))


@dataclass
class SyntheticConfig(DataConfig):
    """Seeded pictures made in memory, whose class can be learned: for self-checks and measurements."""

    name: str = "synthetic"
    num_train: int = 512
    num_validation: int = 128
    num_classes: int = 4
    image_size: int = 28
    channels: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("num_train", "num_validation", "image_size"):
            _at_least(f"data.{key}", getattr(self, key), 1)
        _at_least("data.num_classes", self.num_classes, 2)
        if self.channels not in (1, 3):
            raise ConfigError(f"data.channels={self.channels} is not possible.", "Give 1 (grey) or 3 (colour).")


# --- model ----------------------------------------------------------------------------------------------------------


@dataclass
class HeadConfig:
    """The layers between the backbone and the class scores."""

    units: int = 512
    dropout: float = 0.5

    def __post_init__(self) -> None:
        _at_least("model.head.units", self.units, 1)
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"model.head.dropout={self.dropout} is out of range.", "Give a share in [0, 1).")


@dataclass
class ModelConfig:
    """Any model.

    Args:
        builder: The function in `manyfit.models` that builds it; also the choice of the group.
        name: The name of the network in records.
        image_size: Side of the square picture the model takes, in pixels; None takes the data's own size.
        sync_batch_norm: Batch-norm statistics over all replicas, not each replica's own.
        l2: L2 regularisation of the kernels that train; 0 for none.
    """

    builder: str = "mobilenet_v2"
    name: str = "mobilenet_v2"
    image_size: int | None = None
    sync_batch_norm: bool = True
    l2: float = 0.0

    def __post_init__(self) -> None:
        _at_least("model.image_size", self.image_size, 8)
        _at_least("model.l2", self.l2, 0)


@dataclass
class BackboneConfig(ModelConfig):
    """A pretrained backbone with a head on top.

    Args:
        weights: `imagenet`, `none`, or the path of a weights file.
        trainable: `none` (frozen), `all`, or N, the last N layers of the backbone.
    """

    image_size: int | None = 224
    weights: str = "imagenet"
    trainable: Any = "none"
    head: HeadConfig = field(default_factory=HeadConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trainable is None:
            self.trainable = "none"
        if self.trainable not in ("none", "all") and not _is_count(self.trainable):
            raise ConfigError(
                f"model.trainable={self.trainable} is not possible.",
                "Give 'none', 'all', or a whole number N >= 1 for the last N layers.",
            )


@dataclass
class MobileNetV2Config(BackboneConfig):
    """MobileNetV2 with width multiplier `alpha`."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least("model.alpha", self.alpha, 0, exclusive=True)


@dataclass
class ApplicationConfig(BackboneConfig):
    """Any backbone of keras.applications, by its name there, with its own preprocessing."""

    builder: str = "application"
    name: str = "EfficientNetV2B0"


@dataclass
class SmallCNNConfig(ModelConfig):
    """The tutorial's CNN: convolution, pooling, one dense layer."""

    builder: str = "small_cnn"
    name: str = "small_cnn"
    filters: int = 32
    units: int = 64
    batch_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least("model.filters", self.filters, 1)
        _at_least("model.units", self.units, 1)


@dataclass
class ModuleConfig(ModelConfig):
    """A model of the user's own: `factory` is `package.module:function`, called inside the strategy's scope."""

    builder: str = "module"
    name: str = "module"
    factory: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        module, _, function = self.factory.partition(":")
        if not module or not function:
            raise ConfigError(
                f"model.factory={self.factory or 'null'} does not name a function.",
                "Give model.factory=my_package.my_module:build, importable from the launch directory.",
            )


# --- strategy and batch ---------------------------------------------------------------------------------------------


@dataclass
class StrategyConfig:
    """Where the replicas run.

    Args:
        replicas: `auto` (every GPU, or one CPU) or a number.
        device: `gpu`, `cpu` (logical devices where `replicas` > 1) or `auto`.
        devices: Indices of the GPUs to use; None for the first `replicas`.
        cross_device_ops: How gradients are summed over the replicas.
    """

    name: str = "mirrored"
    replicas: Any = AUTO
    device: str = AUTO
    devices: list[int] | None = None
    cross_device_ops: str = AUTO

    def __post_init__(self) -> None:
        _auto_or_count("strategy.replicas", self.replicas)
        _one_of("strategy.device", self.device, (AUTO, "gpu", "cpu"))
        _one_of("strategy.cross_device_ops", self.cross_device_ops, (AUTO, "nccl", "hierarchical", "one_device"))
        self._check_devices()
        if self.name != "mirrored":
            count = len(self.devices) if self.devices is not None else self.replicas
            if count not in (AUTO, 1):
                raise ConfigError(
                    f"strategy={self.name} has one replica, but {count} are asked for.",
                    "Use strategy=mirrored, or leave strategy.replicas out.",
                )
            if self.cross_device_ops != AUTO:
                raise ConfigError(
                    f"strategy={self.name} has one replica and reduces nothing across devices.",
                    "Leave strategy.cross_device_ops out, or use strategy=mirrored.",
                )

    def _check_devices(self) -> None:
        if self.devices is None:
            return
        if not self.devices or len(set(self.devices)) != len(self.devices) or min(self.devices) < 0:
            raise ConfigError(
                f"strategy.devices={self.devices} is not a list of different device indices.",
                "Give for example strategy.devices=[0,2].",
            )
        if self.replicas != AUTO and self.replicas != len(self.devices):
            raise ConfigError(
                f"strategy.devices={self.devices} are {len(self.devices)} devices, strategy.replicas={self.replicas}.",
                "Leave one of the two out, or make them agree.",
            )


DEFAULT_PER_REPLICA_BATCH_SIZE = 32


@dataclass
class BatchConfig:
    """How many examples make a step: at most one of the two sizes; neither means 32 a replica.

    Args:
        remainder: `pad` the last batch of an epoch with rows of weight 0, or `drop` it.
    """

    name: str = "default"
    per_replica_batch_size: int | None = None
    global_batch_size: int | None = None
    remainder: str = "pad"

    def __post_init__(self) -> None:
        _one_of("batch.remainder", self.remainder, ("pad", "drop"))
        if self.per_replica_batch_size is not None and self.global_batch_size is not None:
            raise ConfigError(
                f"batch.per_replica_batch_size={self.per_replica_batch_size} and "
                f"batch.global_batch_size={self.global_batch_size} are both given.",
                "Give exactly one: global = per replica x replicas.",
            )
        _at_least("batch.per_replica_batch_size", self.per_replica_batch_size, 1)
        _at_least("batch.global_batch_size", self.global_batch_size, 1)


# --- how it learns --------------------------------------------------------------------------------------------------


@dataclass
class OptimizerConfig:
    """Any optimizer.

    Args:
        learning_rate: At the reference batch size, before `schedule` has its say.
        weight_decay: Decoupled decay of the trained variables; None for the optimizer's own default.
        global_clipnorm: Clip the gradient of the whole batch to this global norm; None for no clipping.
    """

    name: str = "adam"
    learning_rate: float = 0.001
    weight_decay: float | None = None
    global_clipnorm: float | None = None

    def __post_init__(self) -> None:
        _at_least("optimizer.learning_rate", self.learning_rate, 0, exclusive=True)
        _at_least("optimizer.weight_decay", self.weight_decay, 0)
        _at_least("optimizer.global_clipnorm", self.global_clipnorm, 0, exclusive=True)


@dataclass
class SGDConfig(OptimizerConfig):
    """Stochastic gradient descent with momentum."""

    name: str = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _between("optimizer.momentum", self.momentum, 0, 1)


@dataclass
class AdamConfig(OptimizerConfig):
    """Adam."""

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        super().__post_init__()
        _between("optimizer.beta_1", self.beta_1, 0, 1)
        _between("optimizer.beta_2", self.beta_2, 0, 1)
        _at_least("optimizer.epsilon", self.epsilon, 0, exclusive=True)


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
        _one_of("schedule.scale_with", self.scale_with, ("none", "linear", "sqrt"))
        _at_least("schedule.reference_batch_size", self.reference_batch_size, 1)


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
            _at_least(f"schedule.{key}", getattr(self, key), 0)
        _at_least("schedule.ramp_up_epochs", self.ramp_up_epochs, 0)
        _at_least("schedule.sustain_epochs", self.sustain_epochs, 0)
        _between("schedule.decay", self.decay, 0, 1)


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
        _at_least("schedule.warmup_epochs", self.warmup_epochs, 0)
        _between("schedule.min_factor", self.min_factor, 0, 1)


@dataclass
class PrecisionConfig:
    """The Keras dtype policy; the head's output stays float32 under each of them."""

    name: str = "float32"

    def __post_init__(self) -> None:
        _one_of("precision.name", self.name, ("float32", "mixed_float16", "mixed_bfloat16"))


@dataclass
class EMAConfig:
    """An exponential moving average of the weights, used for evaluation and the saved model; None for none."""

    decay: float | None = None

    def __post_init__(self) -> None:
        if self.decay is not None and not 0 < self.decay < 1:
            raise ConfigError(f"ema.decay={self.decay} is out of range.", "Give a number between 0 and 1: 0.999.")


# --- who is told ----------------------------------------------------------------------------------------------------


@dataclass
class TrackerConfig:
    """The tracker that gets the record's numbers as well; `none` tells nobody."""

    name: str = "none"
    tensorboard: bool = False


@dataclass
class WandbConfig(TrackerConfig):
    """Weights & Biases.

    Args:
        mode: `auto` takes WANDB_MODE if set, else online where there is a key, else offline.
        system_metrics_seconds: Interval of the system metrics (GPU, CPU, memory).
    """

    name: str = "wandb"
    mode: str = AUTO
    project: str = "manyfit"
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    notes: str | None = None
    system_metrics_seconds: float = 2.0

    def __post_init__(self) -> None:
        _one_of("tracker.mode", self.mode, (AUTO, "online", "offline", "disabled"))
        _at_least("tracker.system_metrics_seconds", self.system_metrics_seconds, 0.1)


# --- the run --------------------------------------------------------------------------------------------------------


@dataclass
class RunConfig:
    """Everything asked of one run.

    Args:
        steps_per_execution: Steps a call of the compiled training function; `auto` keeps a call near 0.5 s.
        gradient_accumulation: Micro-batches a step; the step's batch is this many times `batch`'s size.
        jit_compile: Compile the step with XLA (one replica only).
        on_non_finite: `stop` at a loss or gradient that is not finite, or `skip` that step and count it.
        class_weight: Factor of each class in the training loss: None, `balanced` (inverse to how often it occurs), or
            a list in the order of the classes.
        verbose: Show TensorFlow's own log lines as well.
    """

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=MobileNetV2Config)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=AdamConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    tracker: TrackerConfig = field(default_factory=WandbConfig)
    ema: EMAConfig = field(default_factory=EMAConfig)
    epochs: int = 5
    seed: int = 0
    steps_per_execution: Any = AUTO
    gradient_accumulation: int = 1
    jit_compile: bool = False
    on_non_finite: str = "stop"
    class_weight: Any = None
    verbose: bool = False

    def __post_init__(self) -> None:
        _at_least("epochs", self.epochs, 1)
        _between("seed", self.seed, 0, 2**31 - 1)
        _auto_or_count("steps_per_execution", self.steps_per_execution)
        _at_least("gradient_accumulation", self.gradient_accumulation, 1)
        _one_of("on_non_finite", self.on_non_finite, ("stop", "skip"))
        _check_class_weight(self.class_weight)
        if self.jit_compile and self.strategy.replicas != AUTO and self.strategy.replicas > 1:
            raise ConfigError(
                f"jit_compile=true does not work with strategy.replicas={self.strategy.replicas}: "
                "TensorFlow cannot compile a step whose variables live on several devices.",
                "Set jit_compile=false, or strategy.replicas=1.",
            )


SCHEMAS: dict[str, dict[str, type]] = {
    "data": {
        **dict.fromkeys(("cats_dogs", "mnist", "fashion_mnist", "flowers", "image_folder"), DataConfig),
        "emnist": EmnistConfig,
        "synthetic": SyntheticConfig,
    },
    "model": {
        "mobilenet_v2": MobileNetV2Config,
        "small_cnn": SmallCNNConfig,
        "application": ApplicationConfig,
        "module": ModuleConfig,
    },
    "strategy": dict.fromkeys(("default", "one_device", "mirrored"), StrategyConfig),
    "batch": {"default": BatchConfig},
    "optimizer": {"sgd": SGDConfig, "adam": AdamConfig, "adamw": AdamWConfig},
    "schedule": {"constant": ScheduleConfig, "ramp": RampConfig, "step": StepConfig, "cosine": CosineConfig},
    "precision": dict.fromkeys(("float32", "mixed_float16", "mixed_bfloat16"), PrecisionConfig),
    "tracker": {"wandb": WandbConfig, "none": TrackerConfig},
}
"""The dataclass of every choice of every group; `conf/GROUP/CHOICE.yaml` holds the same keys (a test compares)."""

CHOICE_KEY = {group: "builder" if group == "model" else "name" for group in SCHEMAS}


_EXPECTED = {
    "converted to Integer": "Give a whole number.",
    "converted to Float": "Give a number.",
    "not a valid bool": "Give true or false.",
    "not a ListConfig": "Give a list: [FIRST,SECOND].",
    "Incompatible value 'None'": "It cannot be null; leave it out for the default.",
}
"""What to say about a value of the wrong type, by what OmegaConf says about it."""


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """The error for a key that the configuration lacks, with the key that was probably meant.

    Args:
        key: Dotted, from the root.
        known: The dotted keys beside it.
    """
    group, _, name = key.rpartition(".")
    owners = [choice for choice, schema in SCHEMAS.get(group, {}).items() if name in _fields(schema)]
    if owners:
        return ConfigError(f"Unknown key: {key}.", f"It belongs to {group}={' and '.join(owners)}.")
    everywhere = sorted(_all_keys(), key=lambda other: other.partition(".")[0] != key.partition(".")[0])
    similar = [other for other in everywhere if other.rpartition(".")[2] == name]
    similar += [other for other in everywhere if other.endswith(f"_{name}")]
    similar += [other for other in known if "".join(word[0] for word in other.rpartition(".")[2].split("_")) == name]
    if similar:
        meant = " or ".join(f"'{other}'" for other in list(dict.fromkeys(similar))[:2])
        return ConfigError(f"Unknown key: {key}.", f"Did you mean {meant}?")
    leaves = {other.rpartition(".")[2]: other for other in known}
    near = difflib.get_close_matches(name, leaves, n=1, cutoff=0.5)
    hint = f"Did you mean '{leaves[near[0]]}'? " if near else ""
    return ConfigError(f"Unknown key: {key}.", f"{hint}Choices: {', '.join(leaves)}.")


def _fields(schema: type) -> list[str]:
    return [f.name for f in dataclasses.fields(schema)]


def _keys(schema: type, prefix: str = "") -> list[str]:
    """The dotted keys of every value below `schema`."""
    keys = []
    for f in dataclasses.fields(schema):
        if isinstance(f.type, type) and dataclasses.is_dataclass(f.type):
            keys += _keys(f.type, f"{prefix}{f.name}.")
        else:
            keys.append(f"{prefix}{f.name}")
    return keys


def _all_keys() -> list[str]:
    """The dotted keys of the root and of every choice of every group."""
    keys = [key for key in _keys(RunConfig) if key.partition(".")[0] not in SCHEMAS]
    for group, choices in SCHEMAS.items():
        keys += [key for schema in choices.values() for key in _keys(schema, f"{group}.")]
    return list(dict.fromkeys(keys))


def _explain(error: OmegaConfBaseException, prefix: str, schema: type, section: DictConfig) -> ConfigError:
    """A ConfigError in the user's words for what OmegaConf found wrong below `prefix`."""
    inner = str(error.full_key or error.key or "")
    key = ".".join(part for part in (prefix, inner) if part)
    if isinstance(error, ConfigKeyError):
        parent = error.object_type if dataclasses.is_dataclass(error.object_type) else schema
        owner = key.rpartition(".")[0]
        return unknown_key(key, [f"{owner}.{name}" if owner else name for name in _fields(parent)])
    if isinstance(error, MissingMandatoryValue):
        return ConfigError(f"{key} has no value.", f"Give {key}=VALUE.")
    reason = str(error.msg or error).splitlines()[0].rstrip(".")
    for said, remedy in _EXPECTED.items():
        if said in reason:
            value = OmegaConf.select(section, inner)
            return ConfigError(f"{key}={'null' if value is None else value} has the wrong type.", remedy)
    return ConfigError(f"{key}: {reason}.", "Give a value of the right type; see conf/ for the defaults.")


def _to_dataclass(schema: type, section: Any, prefix: str) -> Any:
    if not isinstance(section, DictConfig):
        keys = ", ".join(f"{prefix}.{name}" for name in _fields(schema))
        raise ConfigError(f"{prefix}={section} has the wrong type.", f"It is a group of keys: {keys}.")
    for f in dataclasses.fields(schema):
        if isinstance(f.type, type) and dataclasses.is_dataclass(f.type) and f.name in section:
            _to_dataclass(f.type, section[f.name], f"{prefix}.{f.name}")
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), section))
    except OmegaConfBaseException as error:
        raise _explain(error, prefix, schema, section) from error


def _resolved(composed: DictConfig) -> DictConfig:
    """A copy of the composed config without Hydra's own part and with every `${...}` replaced by its value."""
    keys = [str(key) for key in composed if key != "hydra"]
    plain = OmegaConf.masked_copy(composed, keys)
    try:
        OmegaConf.resolve(plain)
    except OmegaConfBaseException as error:
        reason = str(error.msg or error).splitlines()[0].rstrip(".")
        raise ConfigError(f"{reason}.", "Name a key that exists, such as ${epochs}.") from error
    return plain


def check(composed: DictConfig) -> RunConfig:
    """The composed config as dataclasses, every value checked.

    Raises:
        ConfigError: an unknown key, a value of the wrong type or out of range, two keys that contradict each other.
    """
    composed = _resolved(composed)
    groups = {}
    for group, choices in SCHEMAS.items():
        section = composed.get(group)
        if not isinstance(section, DictConfig):
            raise ConfigError(f"{group}={section} is not one of its choices.", f"Choices: {', '.join(choices)}.")
        choice = section.get(CHOICE_KEY[group])
        if choice not in choices:
            raise ConfigError(f"{group}.{CHOICE_KEY[group]}={choice} is unknown.", nearest(choice, choices))
        groups[group] = _to_dataclass(choices[choice], section, group)
    for section_name, schema in {"ema": EMAConfig}.items():
        groups[section_name] = _to_dataclass(schema, composed.get(section_name), section_name)
    rest = OmegaConf.create({key: value for key, value in composed.items() if key not in groups})
    known = {f.name: f for f in dataclasses.fields(RunConfig)}
    for key in rest:
        if key not in known:
            raise unknown_key(str(key), known)
    root_schema = dataclasses.make_dataclass(
        "Root", [(name, f.type, f) for name, f in known.items() if name not in groups], namespace={}
    )
    root = _to_dataclass(root_schema, rest, "")
    return RunConfig(**groups, **{f.name: getattr(root, f.name) for f in dataclasses.fields(root_schema)})


def to_yaml(config: RunConfig) -> str:
    """The checked config as plain YAML: what `config.yaml` in a run folder holds."""
    return OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(config)))


def from_yaml(text: str) -> RunConfig:
    """The config that `to_yaml` wrote, checked again."""
    composed = OmegaConf.create(text)
    if not isinstance(composed, DictConfig):
        raise ConfigError("The configuration is not a mapping of keys to values.", "Expected what a run wrote.")
    return check(composed)
