"""The CNN of the Keras distributed-training tutorial."""

import keras
from keras import layers

from manyfit.config import SmallCNNConfig
from manyfit.models.network import Network, class_scores


def build_small_cnn(
    config: SmallCNNConfig, image_shape: tuple[int, int, int], num_classes: int, rehearsal: bool = False
) -> Network:
    """Convolution, pooling, one dense layer, class scores."""
    inputs = keras.Input(image_shape, dtype="uint8", name="pixels")
    x = layers.Rescaling(1 / 255)(inputs)
    # A bias before batch norm has no effect and no true gradient: only rounding would move it.
    x = layers.Conv2D(config.filters, 3, use_bias=not config.batch_norm, name="convolution")(x)
    if config.batch_norm:
        x = layers.BatchNormalization(momentum=0.9, name="batch_norm")(x)
    x = layers.ReLU()(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Flatten()(x)
    x = layers.Dense(config.units, activation="relu", name="dense")(x)
    return Network(keras.Model(inputs, class_scores(num_classes)(x), name=config.name))
