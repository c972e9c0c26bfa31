"""Heat maps: networks with known weights, whose evidence lies in a place that is known."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from manyfit import models
from manyfit.config import SmallCNNConfig
from manyfit.data.examples import ImageData, Split
from manyfit.explain import Explainer

SIZE = 16
CORNERS = {"top left": (0, 0), "top right": (0, 1), "bottom left": (1, 0), "bottom right": (1, 1)}


def picture(corner, colour=0, seed=0):
    """Grey noise with a patch of one colour in one quarter."""
    image = np.random.default_rng(seed).integers(100, 140, (SIZE, SIZE, 3)).astype(np.uint8)
    row, column = (SIZE // 2 * part for part in CORNERS[corner])
    image[row + 2 : row + 6, column + 2 : column + 6] = 0
    image[row + 2 : row + 6, column + 2 : column + 6, colour] = 255
    return image


def share_in(heat, corner):
    """How much of a heat map lies in that quarter."""
    height, width = heat.shape
    row, column = CORNERS[corner]
    quarter = heat[row * height // 2 : (row + 1) * height // 2, column * width // 2 : (column + 1) * width // 2]
    return quarter.sum() / heat.sum()


def detector(outputs=2, *, flat=False, nested=False):
    """A network whose channel k fires where colour k is strong and the others weak, and whose score k is its mean."""
    pixels = keras.Input((SIZE, SIZE, 3), dtype="uint8")
    inner = keras.Input((SIZE, SIZE, 3))
    x = keras.layers.Conv2D(3, 3, padding="same", activation="relu", name="colours")(inner)
    x = keras.layers.MaxPooling2D(2, name="smaller")(x)
    scaled = keras.layers.Rescaling(1 / 255)(pixels)
    if nested:
        backbone = keras.Model(inner, x, name="backbone")
        features = backbone(scaled)
        colours = backbone.get_layer("colours")
    else:
        whole = keras.Model(inner, x)
        colours = whole.get_layer("colours")
        features = whole.get_layer("smaller")(colours(scaled))
    features = keras.layers.Flatten()(features) if flat else keras.layers.GlobalAveragePooling2D()(features)
    dense = keras.layers.Dense(outputs, use_bias=False)
    model = keras.Model(pixels, dense(features))
    kernel = np.zeros((3, 3, 3, 3), np.float32)
    kernel[1, 1] = 3 * np.eye(3) - 2 * (1 - np.eye(3))
    colours.set_weights([kernel, np.full(3, -0.5, np.float32)])
    one = np.array([[-1.0], [1.0], [0.0]]) if outputs == 1 else np.eye(3)[:, :outputs]
    dense.set_weights([np.tile(one, (dense.kernel.shape[0] // 3, 1)).astype(np.float32)])
    return model


@pytest.mark.parametrize(
    ("corner", "flat", "nested"),
    list(zip(CORNERS, (False, True, False, True), (False, False, True, True), strict=True)),
)
def test_the_heat_lies_where_the_class_is(corner, flat, nested):
    network = detector(flat=flat, nested=nested)
    explainer = Explainer(network)
    assert explainer.why_not is None and explainer.shape == (8, 8)
    assert explainer.layer == ("backbone" if nested else "smaller")
    pictures = np.stack([picture(corner, colour) for colour in (0, 1)])
    before = network(pictures).numpy()
    heat = explainer.heat(pictures, before.argmax(axis=1))
    assert heat.shape == (2, 8, 8) and heat.max() == 1.0 and heat.min() == 0.0
    assert [share_in(one, corner) for one in heat] == [pytest.approx(1.0, abs=1e-6)] * 2
    np.testing.assert_array_equal(network(pictures), before)  # nothing is left in the network
    assert not any("call" in vars(layer) for layer in network._flatten_layers())


def test_one_score_speaks_for_either_of_two_classes():
    explainer = Explainer(detector(outputs=1))
    pictures = np.stack([picture("top left", 0), picture("bottom right", 1)])
    heat = explainer.heat(pictures, np.array([0, 1]))
    assert share_in(heat[0], "top left") > 0.99 and share_in(heat[1], "bottom right") > 0.99
    assert explainer.heat(pictures, np.array([1, 0])).sum() == 0  # nothing in them speaks for the other class


def test_a_picture_with_both_classes_has_the_heat_of_the_one_that_is_asked_for():
    both = np.where(np.indices((SIZE, SIZE))[0][..., None] < SIZE // 2, picture("top left"), picture("bottom right", 1))
    heat = Explainer(detector()).heat(np.stack([both, both]).astype(np.uint8), np.array([0, 1]))
    assert share_in(heat[0], "top left") > 0.99 and share_in(heat[1], "bottom right") > 0.99


def test_for_an_averaged_map_it_is_grad_cam():
    """Selvaraju et al. 2017, equations 1 and 2, with the layers taken apart by hand."""
    keras.utils.set_random_seed(3)
    network = detector(nested=True)
    network.layers[-1].set_weights([np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)])
    pictures = np.stack([picture("top right", 0), picture("top left", 2), picture("bottom left", 1)])
    classes = np.array([0, 1, 1])
    *first, pool, dense = network.layers
    maps = tf.convert_to_tensor(first[-1](pictures.astype(np.float32) / 255))
    with tf.GradientTape() as tape:
        tape.watch(maps)
        score = tf.gather(dense(pool(maps)), classes, axis=1, batch_dims=1)
    weights = tf.reduce_mean(tape.gradient(score, maps), axis=[1, 2], keepdims=True)
    expected = tf.nn.relu(tf.reduce_sum(weights * maps, axis=-1)).numpy()
    hottest = expected.max(axis=(1, 2), keepdims=True)
    expected = np.divide(expected, hottest, out=np.zeros_like(expected), where=hottest > 0)
    np.testing.assert_allclose(Explainer(network).heat(pictures, classes), expected, atol=1e-5)


def test_more_pictures_than_a_call_takes_are_explained_in_order():
    explainer = Explainer(detector())
    corners = list(CORNERS) * 9
    heat = explainer.heat(np.stack([picture(corner) for corner in corners]), np.zeros(36, int))
    assert all(share_in(one, corner) > 0.99 for one, corner in zip(heat, corners, strict=True))
    assert explainer.heat(np.zeros((0, SIZE, SIZE, 3), np.uint8), np.zeros(0, int)).shape == (0, 8, 8)


class Own(keras.Model):
    """A subclassed model, which cannot be taken apart."""

    def __init__(self):
        super().__init__()
        self.convolution = keras.layers.Conv2D(4, 3, padding="same", name="inside")
        self.dense = keras.layers.Dense(3)

    def call(self, pixels):
        maps = self.convolution(keras.ops.cast(pixels, "float32") / 255)
        return self.dense(keras.ops.mean(maps, axis=(1, 2)))


def test_a_subclassed_model_is_watched_as_well():
    own = Own()
    pixels = keras.Input((SIZE, SIZE, 3), dtype="uint8")
    explainer = Explainer(keras.Model(pixels, own(pixels)))
    assert (explainer.layer, explainer.shape) == ("inside", (SIZE, SIZE))
    assert explainer.heat(picture("top left")[None], np.array([0])).shape == (1, SIZE, SIZE)


@pytest.mark.parametrize("scale", [True, False])
def test_a_dense_network_says_that_it_has_no_map(scale):
    pixels = keras.Input((SIZE, SIZE, 3), dtype="uint8")
    x = keras.layers.Rescaling(1 / 255)(pixels) if scale else pixels
    x = keras.layers.Normalization()(x)  # has weights, but looks for nothing
    x = keras.layers.Dense(4, activation="relu")(keras.layers.Flatten()(x))
    why_not = Explainer(keras.Model(pixels, keras.layers.Dense(2)(x))).why_not
    assert why_not and "has no feature map" in why_not and "Dense" in why_not


def data(num_classes, shape):
    labels = np.arange(num_classes, dtype=np.int32)
    split = Split("train", labels, images=np.zeros((num_classes, *shape), np.uint8))
    names = tuple(f"class_{index}" for index in range(num_classes))
    return ImageData(name="made", source="synthetic", class_names=names, train=split, validation=split, fingerprint="0")


def test_the_small_cnn_has_a_map():
    """Those of backbones are looked for in `test_backbones.py`."""
    cnn = models.build(SmallCNNConfig(filters=2, units=4), data(3, (12, 12, 1))).model
    assert Explainer(cnn).shape == (5, 5)
