"""Builders: what comes out, what trains, where weights come from, and that pixels are preprocessed as Keras does."""

import importlib
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from manyfit import models
from manyfit.config import (
    ApplicationConfig,
    BackboneConfig,
    HeadConfig,
    MobileNetV2Config,
    ModelConfig,
    ModuleConfig,
    SmallCNNConfig,
)
from manyfit.data.examples import ImageData, Split
from manyfit.errors import ConfigError
from manyfit.models.backbones import keras_models_folder
from manyfit.replicated import ReplicatedModel

SIZE = 32

# Keras' own saving, NumPy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def pictures(num_classes: int = 3, shape=(SIZE, SIZE, 3), rehearsal: bool = False) -> ImageData:
    """Two examples in memory, of as many classes as asked."""
    split = Split("train", np.zeros(2, np.int32), images=np.zeros((2, *shape), np.uint8))
    names = tuple(f"class_{index}" for index in range(num_classes))
    return ImageData("synthetic", "synthetic", names, split, split, rehearsal=rehearsal)


def files(num_classes: int = 3) -> ImageData:
    """Two examples in files, whose sizes nobody knows."""
    split = Split("train", np.zeros(2, np.int32), paths=("a.jpg", "b.jpg"))
    return ImageData("image_folder", "folder", tuple("abcdefgh"[:num_classes]), split, split)


def mobilenet(**changes) -> MobileNetV2Config:
    head = HeadConfig(units=8, dropout=0.5)
    return MobileNetV2Config(**{"weights": "none", "alpha": 0.35, "image_size": SIZE, "head": head, **changes})


def base_of(network: models.Network) -> keras.Model:
    """The keras.applications model inside a network."""
    [base] = [layer for layer in network.backbone.layers if isinstance(layer, keras.Model)]
    return base


def refused(config: ModelConfig, data: ImageData | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        models.build(config, data or pictures())
    assert caught.value.exit_code == 2
    assert caught.value.remedy
    return str(caught.value)


@pytest.fixture(scope="module")
def frozen() -> models.Network:
    """MobileNetV2 with random weights, frozen."""
    return models.build(mobilenet(l2=0.01), pictures())


@pytest.fixture
def float32_afterwards():
    yield
    keras.config.set_dtype_policy("float32")


# --- what comes out -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_classes", "outputs"), [(2, 1), (3, 3), (10, 10)])
def test_two_classes_have_one_logit(num_classes, outputs):
    network = models.build(SmallCNNConfig(filters=2, units=4), pictures(num_classes, (9, 9, 1)))
    assert network.model.output_shape == (None, outputs)
    assert network.model.layers[-1].activation is keras.activations.linear
    loss, [accuracy] = models.loss_and_metrics(num_classes, outputs)
    assert accuracy.name == "accuracy"
    assert ("Binary" in type(loss).__name__) == (num_classes == 2)


def test_small_cnn_takes_the_datas_own_size_or_the_one_asked_for():
    assert models.build(SmallCNNConfig(), pictures(4, (9, 11, 1))).model.input_shape == (None, 9, 11, 1)
    assert models.build(SmallCNNConfig(image_size=16), files()).model.input_shape == (None, 16, 16, 3)
    assert "Give model.image_size=N" in refused(SmallCNNConfig(), files())


def test_small_cnn_with_batch_norm_has_no_bias_before_it():
    layers = {layer.name: layer for layer in models.build(SmallCNNConfig(batch_norm=True), pictures()).model.layers}
    assert "batch_norm" in layers
    assert not layers["convolution"].use_bias


def test_mobilenet_is_backbone_pooling_dense_dropout_logits(frozen):
    assert frozen.model.input_shape == (None, SIZE, SIZE, 3)
    assert frozen.model.input.dtype == "uint8"
    assert frozen.model.output_shape == (None, 3)
    assert (frozen.model.name, frozen.weights, frozen.notices) == ("mobilenet_v2", "none", ())
    assert frozen.backbone.output_shape == (None, 1280)
    dense, dropout, scores = frozen.head.layers[1:]
    assert (dense.units, dense.activation, dropout.rate) == (8, keras.activations.relu, 0.5)
    assert scores.units == 3
    pixels = np.random.default_rng(0).integers(0, 256, (2, SIZE, SIZE, 3), dtype=np.uint8)
    parts = frozen.head(frozen.backbone(pixels))
    np.testing.assert_allclose(frozen.model(pixels), parts, rtol=1e-5, atol=1e-6)


def test_grey_data_become_colour_for_a_backbone():
    assert models.input_shape(mobilenet(), pictures(shape=(28, 28, 1))) == (SIZE, SIZE, 3)
    assert models.input_shape(mobilenet(image_size=None), pictures(shape=(28, 30, 1))) == (28, 30, 3)


def test_pixels_are_scaled_as_mobilenet_wants_them(frozen):
    pixels = np.random.default_rng(1).integers(0, 256, (2, SIZE, SIZE, 3), dtype=np.uint8)
    by_hand = base_of(frozen)(pixels.astype(np.float32) / 127.5 - 1)
    np.testing.assert_allclose(frozen.backbone(pixels), np.mean(by_hand, axis=(1, 2)), rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_pixels_are_preprocessed_as_the_application_does(tmp_path):
    """The one that swaps the channels; `test_backbones.py` has those that are trained with most."""
    name = "VGG16"
    create = getattr(keras.applications, name)
    module = importlib.import_module(f"keras.applications.{create.__module__.rpartition('.')[2]}")
    config = ApplicationConfig(name=name, weights="none", image_size=SIZE, head=HeadConfig(units=4))
    network = models.build(config, pictures())
    assert network.model.name == name
    pixels = np.random.default_rng(2).integers(0, 256, (2, SIZE, SIZE, 3), dtype=np.uint8)
    by_keras = base_of(network)(module.preprocess_input(pixels.astype(np.float32)))
    np.testing.assert_allclose(network.backbone(pixels), np.mean(by_keras, axis=(1, 2)), rtol=1e-3, atol=1e-5)
    # The preprocessing is part of the saved model.
    network.model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    np.testing.assert_allclose(loaded(pixels), network.model(pixels), rtol=1e-5, atol=1e-6)


def test_an_unknown_application_names_the_nearest():
    message = refused(ApplicationConfig(name="ResNet5V2", weights="none"))
    assert "Did you mean 'ResNet50V2'?" in message
    assert "is not in keras.applications" in refused(ApplicationConfig(name="resnet50"))


@pytest.mark.slow
def test_a_size_that_a_backbone_cannot_take_is_refused():
    message = refused(ApplicationConfig(name="VGG16", weights="none", image_size=16))
    assert "VGG16 cannot be built for pictures of (16, 16, 3)" in message
    assert "model.image_size" in message


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_the_heads_output_is_float32_under_mixed_precision(policy, float32_afterwards):
    keras.config.set_dtype_policy(policy)
    model = models.build(SmallCNNConfig(filters=2, units=4), pictures(shape=(9, 9, 1))).model
    assert model.get_layer("dense").compute_dtype == policy.removeprefix("mixed_")
    assert model(np.zeros((1, 9, 9, 1), np.uint8)).dtype == tf.float32
    head = models.backbones.build_head(HeadConfig(units=4), 6, 2)
    assert head(np.zeros((1, 6), np.float32)).dtype == tf.float32


def test_outputs_that_do_not_fit_the_classes_are_refused():
    with pytest.raises(ConfigError, match=r"(?s)gives 7 scores an example, but the data has 4 classes.*4 logits"):
        models.loss_and_metrics(4, 7)
    loss, _ = models.loss_and_metrics(2, 2)
    assert "Sparse" in type(loss).__name__


# --- what trains ----------------------------------------------------------------------------------------------------


def test_a_frozen_backbone_leaves_the_head_to_train(frozen):
    trained = [variable.path for variable in frozen.model.trainable_variables]
    assert trained == [variable.path for variable in frozen.head.trainable_variables]
    assert len(trained) == 4


def test_all_or_the_last_layers_train():
    network = models.build(mobilenet(trainable=5), pictures())
    base = base_of(network)
    assert not any(layer.trainable for layer in base.layers[:-5])
    assert all(layer.trainable for layer in base.layers[-5:])
    wanted = sum(len(layer.trainable_variables) for layer in base.layers[-5:]) + 4
    assert len(network.model.trainable_variables) == wanted > 4
    with pytest.raises(ConfigError, match="model.trainable=1000 is more than the"):
        models.trainable.set_layers(base, 1000)
    for layer in base.layers:
        layer.trainable = True
    models.trainable.set_layers(base, "all")
    assert len(network.model.trainable_variables) > 100


def test_l2_adds_the_squares_of_the_kernels_that_train(frozen):
    kernels = [variable for variable in frozen.model.trainable_variables if variable.name == "kernel"]
    assert len(kernels) == 2
    wanted = 0.01 * sum(float(np.sum(np.square(kernel.numpy()))) for kernel in kernels)
    assert float(sum(frozen.model.losses)) == pytest.approx(wanted, rel=1e-5)
    assert models.build(SmallCNNConfig(), pictures(shape=(9, 9, 1))).model.losses == []


# --- where weights come from ----------------------------------------------------------------------------------------


def test_weights_of_a_file_are_the_backbones(tmp_path, frozen):
    path = tmp_path / "base.weights.h5"
    base_of(frozen).save_weights(path)
    network = models.build(mobilenet(weights=str(path)), pictures(5))
    assert network.weights == str(path)
    for one, other in zip(base_of(network).weights, base_of(frozen).weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    message = refused(mobilenet(weights=str(path), alpha=0.5))
    assert f"model.weights={path} does not fit MobileNetV2: " in message
    assert "the same model.alpha" in message
    assert len(message) < 600


def test_a_file_that_holds_no_weights_is_refused(tmp_path):
    assert "is not a file" in refused(mobilenet(weights=str(tmp_path / "missing.h5")))
    path = tmp_path / "page.h5"
    path.write_text("<html>404</html>")
    assert f"model.weights={path} does not fit MobileNetV2" in refused(mobilenet(weights=str(path)))


@pytest.mark.parametrize("image_size", [32, 160])
def test_imagenet_weights_that_cannot_be_had_name_the_file_and_the_folder(image_size):
    start = time.perf_counter()
    message = refused(mobilenet(weights="imagenet", image_size=image_size), files())
    size = 160 if image_size == 160 else 224
    assert f"mobilenet_v2_weights_tf_dim_ordering_tf_kernels_0.35_{size}_no_top.h5" in message
    assert f"{keras_models_folder()}/" in message
    assert "model.weights=none" in message
    assert time.perf_counter() - start < 30


def test_an_alpha_without_imagenet_weights_is_refused():
    message = refused(mobilenet(weights="imagenet", alpha=0.6))
    assert "model.alpha=0.6 has no ImageNet weights" in message
    assert "0.35, 0.5, 0.75, 1.0" in message


# --- a model of one's own -------------------------------------------------------------------------------------------

OWN = """
import keras
from manyfit.replicated import ReplicatedModel

def build(input_shape, num_classes):
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    return keras.Model(inputs, keras.layers.Dense(num_classes)(x))

class Own(ReplicatedModel):
    def example_losses(self, x, y, training):
        outputs = self.network(x, training=training)
        return 2 * keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True), outputs

def own_step(input_shape, num_classes):
    return Own(build(input_shape, num_classes))

def unbuilt(input_shape, num_classes):
    return keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(num_classes)])

def nothing(input_shape, num_classes):
    build(input_shape, num_classes)

def of_the_shape_alone(input_shape):
    return build(input_shape, 3)

prebuilt = None

def earlier(input_shape, num_classes):
    return prebuilt

not_a_function = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The name of a module with factories, importable from the launch directory."""
    (tmp_path / "own_models.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "own_models"
    sys.modules.pop("own_models", None)


def test_a_factory_of_ones_own_gets_shape_and_classes(own):
    network = models.build(ModuleConfig(factory=f"{own}:build"), pictures(5, (6, 7, 1)))
    assert network.model.input_shape == (None, 6, 7, 1)
    assert network.model.output_shape == (None, 5)


def test_a_replicated_model_of_ones_own(own):
    network = models.build(ModuleConfig(factory=f"{own}:own_step"), pictures(5))
    assert isinstance(network.model, ReplicatedModel)
    assert network.model.network.output_shape == (None, 5)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("unbuilt", "returned a model that is not built"),
        ("nothing", "returned NoneType, expected a keras.Model"),
        ("missing", "has no function missing"),
        ("not_a_function", "has no function not_a_function"),
        ("of_the_shape_alone", "cannot be called with input_shape and num_classes"),
    ],
)
def test_what_is_no_factory_is_refused(own, function, said):
    assert said in refused(ModuleConfig(factory=f"{own}:{function}"))


def test_a_module_that_is_not_there_is_refused(own):
    message = refused(ModuleConfig(factory="own_modules:build"))
    assert "there is no module own_modules" in message and "launch directory" in message


def test_a_model_built_before_the_strategy_is_refused(own):
    sys.path.insert(0, "")
    own_models = importlib.import_module(own)
    own_models.prebuilt = own_models.build((SIZE, SIZE, 3), 3)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        message = refused(ModuleConfig(factory=f"{own}:earlier"))
    assert "built outside the strategy's scope" in message
    assert "inside the function" in message


def test_only_builders_that_exist_are_configured():
    assert set(models.BUILDERS) == {"mobilenet_v2", "application", "small_cnn", "module"}
    assert issubclass(ApplicationConfig, BackboneConfig)
