"""Backbones of keras.applications, each all the way: preprocessing, features, training, saving, loading."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from manyfit import explain, models
from manyfit.config import ApplicationConfig, HeadConfig
from manyfit.data.examples import ImageData, Split
from manyfit.data.pipeline import Feed
from manyfit.models import feature_cache, inference
from manyfit.replicated import ReplicatedModel

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras' own saving, NumPy 2
    pytest.mark.filterwarnings("ignore:Even though the `tf.config.experimental_run_functions_eagerly`:UserWarning"),
]

SIZE, ROWS = 64, 4
BY_127 = (-1.0, 1.0)
BY_IMAGENET = ((0 - 0.485) / 0.229, (1 - 0.485) / 0.229)
"""What a red channel of 0 and of 255 is when it reaches the first convolution."""

BACKBONES = {
    "MobileNetV2": BY_127,
    "MobileNetV3Small": BY_127,
    "MobileNetV3Large": BY_127,
    "EfficientNetV2B0": BY_IMAGENET,
    "ResNet50V2": BY_127,
    "ConvNeXtTiny": BY_IMAGENET,
    "DenseNet121": BY_IMAGENET,
}
QUICK = ("MobileNetV3Small",)
LONG_TO_CONVERT = ("EfficientNetV2B0", "ResNet50V2", "DenseNet121")
"""Their features come from Keras itself here; LiteRT takes as long to convert one as the rest of its test."""


def pictures() -> ImageData:
    labels = np.arange(ROWS, dtype=np.int32) % 3
    images = np.random.default_rng(0).integers(0, 256, (ROWS, SIZE, SIZE, 3)).astype(np.uint8)
    split = Split("train", labels, images=images)
    names = ("a", "b", "c")
    return ImageData(name="made", source="synthetic", class_names=names, train=split, validation=split, fingerprint="0")


def build(name):
    keras.utils.set_random_seed(1)
    head = HeadConfig(units=4, dropout=0.0)
    return models.build(ApplicationConfig(name=name, weights="none", image_size=SIZE, head=head), pictures())


def at_the_first_convolution(network, level):
    """A pixel in the middle of a picture of one grey level, as the first convolution gets it."""
    before = []

    def note(layer, output):
        if any("kernel" in variable.name for variable in getattr(layer, "weights", ())):
            raise StopIteration
        before.append(output)

    with pytest.raises(StopIteration), explain._watched(network.backbone, note):
        network.backbone(np.full((1, SIZE, SIZE, 3), level, np.uint8))
    values = before[-1].numpy()
    return float(values[0, values.shape[1] // 2, values.shape[2] // 2, 0])


def train(network, split, shape, steps):
    """A few steps of plain gradient descent; the losses. Without a graph: to trace a deep backbone takes far longer."""
    model = ReplicatedModel(network.model)
    loss, metrics = models.loss_and_metrics(3)
    model.compile(keras.optimizers.SGD(0.01), loss, metrics)
    feed = Feed(split, ROWS, 1, shape).distribute(tf.distribute.get_strategy())
    tf.config.run_functions_eagerly(True)
    try:
        history = model.fit(feed, epochs=steps, steps_per_epoch=1)
    finally:
        tf.config.run_functions_eagerly(False)
    return history.history["loss"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in BACKBONES]
)
def test_a_backbone_all_the_way(name, tmp_path, monkeypatch):
    network = build(name)
    found = [at_the_first_convolution(network, level) for level in (0, 255)]
    assert found == pytest.approx(BACKBONES[name], abs=1e-4)

    # Frozen: its features can be kept, and the head learns from them.
    data, strategy = pictures(), tf.distribute.get_strategy()
    assert feature_cache.decide("auto", network).use == "disk"
    assert not network.backbone.trainable_variables and network.head.trainable_variables
    if name in LONG_TO_CONVERT:
        monkeypatch.setattr(inference, "_suitable", lambda backbone, on_gpu, num_pictures: ("keras",))
    told = []
    kept = feature_cache.compute_split(network, data.train, strategy=strategy, on_gpu=False, notify=told.append)
    assert told == []
    expected = inference.keras_features(network.backbone, data.train.images)
    assert inference.disagreement(np.asarray(kept.images), expected) <= inference.TOLERANCES["float32"]
    assert float(np.std(expected)) > 0
    losses = train(feature_cache.head_alone(network), kept, kept.images.shape[1:], steps=3)
    assert np.isfinite(losses).all() and losses[-1] < losses[0]

    # Saved and loaded, it says the same, and its last map is found.
    network.model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    np.testing.assert_allclose(
        loaded(data.train.images).numpy(), network.model(data.train.images).numpy(), rtol=1e-4, atol=1e-5
    )
    explainer = explain.Explainer(loaded)
    assert explainer.shape == (2, 2)
    assert explainer.heat(data.train.images[:2], np.array([0, 1])).shape == (2, 2, 2)

    # Thawed: every layer has a gradient, also the first.
    base = next(layer for layer in network.backbone.layers if isinstance(layer, keras.Model))
    base.trainable = True
    first, before = network.backbone.trainable_variables[0], network.backbone.trainable_variables[0].numpy()
    assert np.isfinite(train(network, data.train, (SIZE, SIZE, 3), steps=1)).all()
    assert not np.array_equal(first.numpy(), before)
