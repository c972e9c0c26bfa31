"""Engines: all give Keras' features, one that does not is left out, and a pass keeps the order of the pictures."""

import importlib.util
import sys
import time
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from manyfit.models import inference

SHAPE = (24, 24, 3)
HAS_LITERT = importlib.util.find_spec("ai_edge_litert") is not None
NAMES = [
    pytest.param("litert", marks=pytest.mark.skipif(not HAS_LITERT, reason="ai-edge-litert is not installed")),
    "frozen_graph",
    "keras",
]


@pytest.fixture(scope="module")
def backbone() -> keras.Model:
    """Convolutions with batch norm whose statistics are no longer those of a new layer, and pooling."""
    keras.utils.set_random_seed(3)
    pixels = keras.Input(SHAPE, dtype="uint8")
    x = keras.applications.mobilenet_v2.preprocess_input(keras.ops.cast(pixels, "float32"))
    for filters in (8, 12):
        x = keras.layers.Conv2D(filters, 3, strides=2, use_bias=False)(x)
        x = keras.layers.BatchNormalization()(x)
        x = keras.layers.DepthwiseConv2D(3, padding="same")(keras.layers.ReLU(6.0)(x))
    model = keras.Model(pixels, keras.layers.GlobalAveragePooling2D()(x))
    rng = np.random.default_rng(4)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.set_weights([rng.uniform(0.5, 1.5, weight.shape) for weight in layer.get_weights()])
    model.trainable = False
    return model


def pictures(count: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (count, *SHAPE), dtype=np.uint8)


def choose(backbone, first, names=None, **arguments):
    told: list[str] = []
    strategy = tf.distribute.get_strategy()
    engine = inference.choose(
        backbone, first, strategy=strategy, on_gpu=False, notify=told.append, names=names, **arguments
    )
    return engine, told


@pytest.mark.parametrize("name", NAMES)
def test_an_engine_gives_the_features_of_keras_in_order(backbone, name):
    images = pictures(37)
    engine, told = choose(backbone, images[:8], (name,))
    assert engine.name == name and told == []
    out = np.full((37, 12), np.nan, np.float32)
    seen: list[int] = []
    inference.run(engine, iter([images[:16], images[16:32], images[32:]]), out, seen.append)
    assert inference.disagreement(out, backbone.predict(images, verbose=0)) < 1e-5
    assert seen[-1] == 37


@pytest.mark.skipif(not HAS_LITERT, reason="ai-edge-litert is not installed")
def test_one_interpreter_a_core(backbone):
    engine, _ = choose(backbone, pictures(1))
    assert engine.name == "litert" and len(engine.workers) == inference.num_cores()


def test_an_engine_that_takes_seconds_to_make_is_left_out_for_few_pictures(backbone):
    suitable = [inference._suitable(backbone, False, number)[0] for number in (None, 20, 349, 350)]
    assert suitable == ["litert", "frozen_graph", "frozen_graph", "litert"]


def test_without_litert_the_frozen_graph_runs_and_nobody_is_told(backbone, monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    engine, told = choose(backbone, pictures(3))
    assert engine.name == "frozen_graph" and told == []


def test_an_engine_that_differs_or_fails_is_left_out_with_a_notice(backbone, monkeypatch):
    right = inference._ENGINES["keras"]

    def wrong(*arguments):
        engine = right(*arguments)
        return replace(engine, workers=(lambda images: engine.workers[0](images) * 1.001,))

    def broken(*_):
        raise ValueError("an operation\nthat cannot be converted")

    monkeypatch.setitem(inference._ENGINES, "litert", broken)
    monkeypatch.setitem(inference._ENGINES, "frozen_graph", wrong)
    engine, told = choose(backbone, pictures(3))
    assert engine.name == "keras"
    assert "litert failed (ValueError: an operation)" in told[0]
    assert "frozen_graph differs from Keras by 1.0e-03" in told[1] and len(told) == 2


def test_sixteen_bits_stay_with_keras(backbone):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        pixels = keras.Input(SHAPE, dtype="uint8")
        x = keras.layers.Conv2D(4, 3)(keras.layers.Rescaling(1 / 255)(pixels))
        model = keras.Model(pixels, keras.layers.GlobalAveragePooling2D()(x))
    finally:
        keras.config.set_dtype_policy("float32")
    model.trainable = False
    engine, told = choose(model, pictures(3))
    assert engine.name == "keras" and told == []
    assert engine.workers[0](pictures(2)).dtype == np.float32


def test_what_progress_raises_ends_the_pass(backbone):
    engine, _ = choose(backbone, pictures(1), ("keras",))
    asked = []

    def endless():
        while True:
            asked.append(1)
            yield pictures(16)

    def stop(done):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inference.run(engine, endless(), np.zeros((10_000_000, 12), np.float32), stop)
    count = len(asked)
    time.sleep(0.05)
    assert len(asked) == count


def test_a_worker_that_fails_ends_the_pass():
    def fail(images):
        raise RuntimeError("out of memory")

    engine = inference.Engine("keras", 4, (fail, fail))
    with pytest.raises(RuntimeError, match="out of memory"):
        inference.run(engine, iter([pictures(4)] * 3), np.zeros((12, 12), np.float32))


@pytest.mark.parametrize(
    ("found", "expected", "difference"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([np.nan, 2.0], [1.0, 2.0], np.inf),
        ([1.0], [1.0, 2.0], np.inf),
        ([0.0], [0.0], 0.0),
    ],
)
def test_disagreement(found, expected, difference):
    assert inference.disagreement(np.array(found), np.array(expected)) == difference
