"""The `model` group: which network, and which part of it trains."""

from dataclasses import dataclass, field
from typing import Any

from manyfit.errors import ConfigError
from manyfit.schema.checks import AUTO, absolute, at_least, check_trainable, one_of


@dataclass
class HeadConfig:
    """The layers between the backbone and the class scores."""

    units: int = 512
    dropout: float = 0.5

    def __post_init__(self) -> None:
        at_least("model.head.units", self.units, 1)
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
        feature_cache: Where the features of a frozen backbone are kept, so that it runs once: `disk`, `memory`, `off`,
            or `auto` (on disk where that gives the same numbers).
    """

    builder: str = "mobilenet_v2"
    name: str = "mobilenet_v2"
    image_size: int | None = None
    sync_batch_norm: bool = True
    l2: float = 0.0
    feature_cache: str = AUTO

    def __post_init__(self) -> None:
        one_of("model.feature_cache", self.feature_cache, (AUTO, "off", "memory", "disk"))
        at_least("model.image_size", self.image_size, 8)
        at_least("model.l2", self.l2, 0)


@dataclass
class BackboneConfig(ModelConfig):
    """A pretrained backbone with a head on top.

    Args:
        weights: `imagenet`, `none`, or the path of a weights file.
        trainable: `none` (frozen), `all`, `last:N` (or N), its last N layers, or patterns of layer names.
    """

    image_size: int | None = 224
    weights: str = "imagenet"
    trainable: Any = "none"
    head: HeadConfig = field(default_factory=HeadConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights not in ("imagenet", "none"):
            self.weights = absolute(self.weights)
        if self.trainable is None:
            self.trainable = "none"
        check_trainable("model.trainable", self.trainable)


@dataclass
class MobileNetV2Config(BackboneConfig):
    """MobileNetV2 with width multiplier `alpha`."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("model.alpha", self.alpha, 0, exclusive=True)


@dataclass
class ApplicationConfig(BackboneConfig):
    """Any backbone of keras.applications, by its name there, with its own preprocessing.

    Args:
        stochastic_depth: How often the last residual path is left out in training, the others less; None for the
            backbone's own rate (EfficientNet 0.2, ConvNeXt 0).
    """

    builder: str = "application"
    name: str = "EfficientNetV2B0"
    stochastic_depth: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stochastic_depth is not None and not 0 <= self.stochastic_depth < 1:
            raise ConfigError(
                f"model.stochastic_depth={self.stochastic_depth} is out of range.", "Give a share in [0, 1): 0.2."
            )


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
        at_least("model.filters", self.filters, 1)
        at_least("model.units", self.units, 1)


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
