"""A model whose steps are all overhead: `model=module model.factory=benchmarks.tiny_model:build`."""

import keras


def build(input_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    """One small dense layer on the pixels."""
    pixels = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(pixels))
    x = keras.layers.Dense(8, activation="relu")(x)
    return keras.Model(pixels, keras.layers.Dense(num_classes)(x))
