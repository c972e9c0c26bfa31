"""Stochastic depth: residual paths that are left out at random in training, the deeper the more often.

Huang et al. 2016, "Deep networks with stochastic depth" (arXiv:1603.09382), by examples, as in EfficientNet. A dropped
path is a dropout with one number an example: `coupled_layers` draws it for all replicas as for one, checkpoints hold
its state, and a saved model needs nothing of ours.
"""

import keras

from manyfit.errors import ConfigError

KERAS_RATE = 0.2
"""Of the last block of an EfficientNet, where nobody says otherwise; ConvNeXt's is 0."""


def with_rate(backbone: keras.Model, rate: float | None) -> keras.Model:
    """The backbone with this rate at its last block, and less towards its first, linearly; None for its own.

    Raises:
        ConfigError: it has no paths of this kind.
    """
    if rate is None:
        return backbone
    drops = [layer for layer in backbone.layers if isinstance(layer, keras.layers.Dropout) and _is_of_examples(layer)]
    if drops:
        for layer in drops:
            layer.rate *= rate / KERAS_RATE
        return backbone
    places = [layer.name for layer in backbone.layers if _is_left_open(layer)]
    if not places:
        raise ConfigError(
            f"model.stochastic_depth={rate}: {backbone.name} has no residual paths that Keras marks as droppable.",
            "Leave it out, or take an EfficientNet, EfficientNetV2 or ConvNeXt (model.name=EfficientNetV2B0).",
        )
    rates = {name: rate * index / max(1, len(places) - 1) for index, name in enumerate(places)}

    def copied(layer: keras.layers.Layer) -> keras.layers.Layer:
        if not rates.get(layer.name):
            return layer.__class__.from_config(layer.get_config())
        return keras.layers.Dropout(rates[layer.name], noise_shape=(None, 1, 1, 1), name=layer.name)

    copy = keras.models.clone_model(backbone, clone_function=copied)
    copy.set_weights(backbone.get_weights())
    return copy


def _is_of_examples(layer: keras.layers.Dropout) -> bool:
    return layer.noise_shape is not None and tuple(layer.noise_shape) == (None, 1, 1, 1)


def _is_left_open(layer: keras.layers.Layer) -> bool:
    """Whether it is ConvNeXt's place for a dropped path, which its public constructors leave empty."""
    return isinstance(layer, keras.layers.Activation) and layer.name.endswith("_identity")
