"""Which parts of a picture speak for the class that it was given: a heat map over the network's last feature map.

The map of class c is

    relu( sum over channels k of  dy_c/dA_k * A_k ),      A: the last feature map, y_c: the score (logit) of c

HiResCAM (Draelos and Carin 2020, "Use HiResCAM instead of Grad-CAM for faithful explanations of CNNs"). For a network
that averages A over its places, as backbones with a head do, every place has the same gradient and this is Grad-CAM
(Selvaraju et al. 2017) to a factor; where places are weighed apart (flatten and dense), Grad-CAM's averaged gradient
would point at places that the score does not use.
"""

import base64
import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from PIL import Image

from manyfit.prediction import fitted, read_image

METHOD = (
    "HiResCAM (Draelos and Carin, 2020): the gradient of the class's score times the last feature map, summed over its "
    "channels; of a network that averages this map it is Grad-CAM (Selvaraju et al., 2017)"
)
ROWS = 16
"""Pictures of one call."""
STRONGEST = 0.7
"""How much the hottest place covers of the picture below it."""
OVERLAY_SIDE = 72
"""Pixels: the browser enlarges it smoothly, and a page of 200 stays small."""


class Explainer:
    """Heat maps of a network.

    It watches the layers of the network as it runs, so that neither nested backbones nor models of one's own need to be
    taken apart.

    Args:
        network: Built, uint8 pixels [n, height, width, channels] to class scores [n, classes], or [n, 1] for two.
    """

    def __init__(self, network: keras.Model):
        self.network = network
        self._call = -1
        self.layer = ""
        self.shape: tuple[int, int] = (0, 0)
        self._find()

    def _find(self) -> None:
        """Note the last call of a layer that gives a map, after a layer that looked for something in the picture."""
        calls, has_looked = 0, False

        def note(layer: Any, output: Any) -> None:
            nonlocal calls, has_looked
            if is_map(output):
                has_looked = has_looked or any("kernel" in variable.name for variable in _weights(layer))
                if has_looked:
                    self._call, self.layer = calls, layer.name
                    self.shape = int(output.shape[1]), int(output.shape[2])
            calls += 1

        with _watched(self.network, note):
            self.network(np.zeros((1, *self.network.input_shape[1:]), np.uint8), training=False)

    @property
    def why_not(self) -> str | None:
        """In words, why there are no heat maps of this network; None where there are."""
        if self._call >= 0:
            return None
        kinds = dict.fromkeys(type(layer).__name__ for layer in self.network.layers if layer.weights)
        return (
            "the network has no feature map: none of its layers with weights "
            f"({', '.join(kinds) or 'it has none'}) keeps where in the picture something is"
        )

    def heat(self, pictures: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """The heat maps of some pictures for one class each, 1 at the hottest place; all 0 where nothing speaks for it.

        Args:
            pictures: uint8 [n, height, width, channels], as the network takes them.
            classes: int [n].

        Returns:
            float32 [n, *shape].
        """
        assert self._call >= 0, self.why_not
        parts = [
            self._heat(pictures[start : start + ROWS], classes[start : start + ROWS])
            for start in range(0, len(pictures), ROWS)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, *self.shape), np.float32)

    def _heat(self, pictures: np.ndarray, classes: np.ndarray) -> np.ndarray:
        calls, found = 0, None
        with tf.GradientTape(watch_accessed_variables=False) as tape:

            def note(layer: Any, output: Any) -> None:
                nonlocal calls, found
                if calls == self._call:
                    tape.watch(output)
                    found = output
                calls += 1

            with _watched(self.network, note):
                scores = self.network(pictures, training=False)
            total = tf.reduce_sum(score_of(scores, classes))
        assert found is not None
        slopes = tf.cast(tape.gradient(total, found, unconnected_gradients="zero"), tf.float32)
        heat = tf.nn.relu(tf.reduce_sum(slopes * tf.cast(found, tf.float32), axis=-1))
        hottest = tf.reduce_max(heat, axis=[1, 2], keepdims=True)
        return tf.math.divide_no_nan(heat, hottest).numpy()


def score_of(scores: tf.Tensor, classes: np.ndarray) -> tf.Tensor:
    """The score of each row's class, [n]; one score tells two classes apart and speaks for the second."""
    scores = tf.cast(scores, tf.float32)
    if scores.shape[-1] == 1:
        return scores[:, 0] * tf.where(tf.constant(classes) == 1, 1.0, -1.0)
    return tf.gather(scores, tf.constant(classes), axis=1, batch_dims=1)


def is_map(output: Any) -> bool:
    """Whether a layer's output has places: [n, height, width, channels] with more than one of them."""
    shape = getattr(output, "shape", None)
    return shape is not None and len(shape) == 4 and int(shape[1]) * int(shape[2]) > 1


def _weights(layer: Any) -> list[Any]:
    return getattr(layer, "weights", [])


@contextlib.contextmanager
def _watched(network: keras.Model, note: Callable[[Any, Any], None]) -> Iterator[None]:
    """Inside, `note` is told of every call of a layer or operation in `network`, inner ones first, and its output."""
    members: dict[int, Any] = {}
    for layer in network._flatten_layers(include_self=False):
        for member in (layer, *getattr(layer, "operations", ())):
            members[id(member)] = member
    for member in getattr(network, "operations", ()):
        members[id(member)] = member

    def watching(member: Any, call: Callable) -> Callable:
        def watched(*args: Any, **kwargs: Any) -> Any:
            output = call(*args, **kwargs)
            note(member, output)
            return output

        return watched

    # On the instance, over the method of its class; Keras' own __setattr__ would track it.
    before = {id(member): vars(member).get("call") for member in members.values()}
    try:
        for member in members.values():
            vars(member)["call"] = watching(member, member.call)
        yield
    finally:
        for member in members.values():
            vars(member).pop("call", None)
            if before[id(member)] is not None:
                vars(member)["call"] = before[id(member)]


# --- for a page -------------------------------------------------------------------------------------------------------


def overlays(explainer: Explainer, pictures: Sequence[tuple[str, int]]) -> Iterator[str | None]:
    """What to lay over each picture, as the data URI of a PNG of its proportions; None where there is nothing to see.

    Args:
        pictures: The path of each and the class that is explained.
    """
    shape = tuple(explainer.network.input_shape[1:])
    for start in range(0, len(pictures), ROWS):
        part = pictures[start : start + ROWS]
        images = [read_image(path) for path, _ in part]
        good = [index for index, image in enumerate(images) if not isinstance(image, str)]
        heats: dict[int, np.ndarray] = {}
        if good:
            stacked = np.stack([fitted(np.asarray(images[index]), shape) for index in good])
            found = explainer.heat(stacked, np.array([part[index][1] for index in good]))
            heats = dict(zip(good, found, strict=True))
        for index, image in enumerate(images):
            heat = heats.get(index)
            yield None if heat is None or isinstance(image, str) or not heat.any() else overlay(heat, image.shape)


def overlay(heat: np.ndarray, shape: Sequence[int], longest_side: int = OVERLAY_SIDE) -> str:
    """A heat map as the data URI of a PNG: no colour where it is 0, bright and nearly opaque where it is 1.

    Args:
        heat: float32 [height, width], 0 to 1.
        shape: Height and width of the picture, whose proportions the overlay has.
    """
    factor = longest_side / max(shape[0], shape[1])
    size = max(1, round(shape[1] * factor)), max(1, round(shape[0] * factor))
    enlarged = Image.fromarray(heat.astype(np.float32)).resize(size, Image.Resampling.BICUBIC)
    values = np.clip(np.asarray(enlarged), 0, 1)
    colours = np.stack([np.interp(values, _STOPS, channel) for channel in zip(*_COLOURS, strict=True)], axis=-1)
    alpha = 255 * STRONGEST * values[..., None]
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate([colours, alpha], axis=-1).round().astype(np.uint8)).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


_STOPS = (0.0, 0.25, 0.5, 0.75, 1.0)
_COLOURS = ((0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164))
"""The colour map inferno (Smith and van der Walt, 2015): its brightness rises evenly, for all kinds of sight."""
