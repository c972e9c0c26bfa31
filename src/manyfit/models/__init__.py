"""What learns: a network from its configuration and from what the data says (classes, picture size)."""

from collections.abc import Sequence

import keras

from manyfit import metrics
from manyfit.config import LossConfig, ModelConfig
from manyfit.data.examples import ImageData
from manyfit.errors import ConfigError
from manyfit.models.backbones import build_application, build_mobilenet_v2
from manyfit.models.losses import ClassLoss
from manyfit.models.module import build_module
from manyfit.models.network import Network, num_outputs
from manyfit.models.small_cnn import build_small_cnn

__all__ = ["BUILDERS", "Network", "build", "input_shape", "loss_and_metrics", "penalize"]

BUILDERS = {
    "mobilenet_v2": build_mobilenet_v2,
    "application": build_application,
    "small_cnn": build_small_cnn,
    "module": build_module,
}
"""The function behind every `model.builder`: `(config, image_shape, num_classes, rehearsal) -> Network`."""


def input_shape(config: ModelConfig, data: ImageData) -> tuple[int, int, int]:
    """Height, width and channels of the pictures that the network takes.

    Raises:
        ConfigError: neither the configuration nor the data says how large they are.
    """
    shape = data.image_shape
    if config.image_size is None and shape is None:
        raise ConfigError(
            f"model={config.builder} takes the data's own picture size, but the pictures of data={data.name} differ.",
            "Give model.image_size=N, such as 96.",
        )
    height, width, channels = shape or (0, 0, 3)
    if config.image_size is not None:
        height = width = config.image_size
    return height, width, 3 if config.builder in ("mobilenet_v2", "application") else channels


def build(config: ModelConfig, data: ImageData) -> Network:
    """The network that `config` asks for, its variables made; call it inside the scope of the strategy.

    Raises:
        ConfigError: weights that cannot be had or do not fit, a backbone or factory that does not exist.
    """
    network = BUILDERS[config.builder](config, input_shape(config, data), len(data.class_names), data.rehearsal)
    penalize(network.model, config.l2)
    return network


def penalize(model: keras.Model, l2: float) -> None:
    """Add `l2` times the squares of the kernels that train to the loss; a saved model does not keep it."""
    if not l2:
        return
    for variable in model.trainable_variables:
        if variable.name == "kernel":
            variable.regularizer = keras.regularizers.L2(l2)


def loss_and_metrics(
    num_classes: int, outputs: int | None = None, settings: LossConfig | None = None, words: Sequence[str] = ()
) -> tuple[keras.losses.Loss, list[keras.metrics.Metric]]:
    """The loss and the metrics of class scores (logits): one for two classes, else one a class.

    Args:
        outputs: Scores that the network gives an example; None for the usual number.
        settings: Smoothing and focus of the loss; None for the plain cross-entropy.
        words: Metrics beside the accuracy.

    Raises:
        ConfigError: a network whose outputs do not fit the classes of the data, or a metric that does not.
    """
    outputs = num_outputs(num_classes) if outputs is None else outputs
    if outputs == 1 and num_classes == 2:
        loss = _adjusted(settings, outputs) or keras.losses.BinaryCrossentropy(from_logits=True)
        return loss, metrics.make(words, num_classes, outputs)
    if outputs != num_classes:
        raise ConfigError(
            f"The model gives {outputs} scores an example, but the data has {num_classes} classes.",
            f"End it in {num_outputs(num_classes)} logits (no softmax).",
        )
    loss = _adjusted(settings, outputs) or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return loss, metrics.make(words, num_classes, outputs)


def _adjusted(settings: LossConfig | None, outputs: int) -> keras.losses.Loss | None:
    if settings is None or not settings.is_adjusted:
        return None
    return ClassLoss(settings.label_smoothing, settings.focal_gamma, outputs)
