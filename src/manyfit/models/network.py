"""What every model builder returns, and the layer that turns features into class scores."""

from dataclasses import dataclass
from typing import Any

import keras


@dataclass(frozen=True, eq=False)
class Network:
    """A built network, and its two parts where it has them.

    Args:
        model: uint8 or float pixels in [0, 255] to class scores (logits).
        backbone: Pixels to features, or None for a network without this division.
        head: Features to class scores, or None.
        weights: What the variables started from: `imagenet`, `rehearsal`, `none` or a path.
        notices: What the user should know of how it was built.
        loss: The Keras loss that its factory compiled it with; None for that of the configuration.
    """

    model: keras.Model
    backbone: keras.Model | None = None
    head: keras.Model | None = None
    weights: str = "none"
    notices: tuple[str, ...] = ()
    loss: Any = None


def num_outputs(num_classes: int) -> int:
    """Class scores of a network: one logit tells two classes apart."""
    return 1 if num_classes == 2 else num_classes


def class_scores(num_classes: int) -> keras.layers.Layer:
    """The last layer: logits, in float32 under every precision policy."""
    return keras.layers.Dense(num_outputs(num_classes), dtype="float32", name="class_scores")
