"""Exported models: each format loaded as its users would, on pictures of any size, against the run's own network."""

import dataclasses
import json
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from manyfit.errors import TrainingError, UserError
from manyfit.export import drawn_pictures, export_run
from manyfit.export_formats import FORMATS, in_float32, raw_pixels_model
from manyfit.export_names import FILE_NAMES
from manyfit.models.saved import probabilities
from manyfit.prediction import fitted
from manyfit.trained_run import TrainedRun

pytestmark = [
    # Keras' own saving, NumPy 2
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tf2onnx"),
]


def network(outputs=1, channels=3, size=(12, 10)):
    """A small network with what converters fold: convolution, batch norm with statistics of its own, pooling."""
    keras.utils.set_random_seed(1)
    pixels = keras.Input((*size, channels), dtype="uint8", name="pixels")
    x = keras.layers.Rescaling(1 / 127.5, offset=-1)(pixels)
    x = keras.layers.Conv2D(6, 3, use_bias=False)(x)
    norm = keras.layers.BatchNormalization()
    x = keras.layers.ReLU()(norm(x))
    x = keras.layers.Dropout(0.5)(keras.layers.GlobalAveragePooling2D()(x))
    model = keras.Model(pixels, keras.layers.Dense(outputs, dtype="float32")(x))
    rng = np.random.default_rng(0)
    norm.set_weights([rng.uniform(0.5, 2, 6), rng.normal(0, 1, 6), rng.normal(0, 0.3, 6), rng.uniform(0.1, 1, 6)])
    return model


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for split, count in (("train", 3), ("validation", 7)):
        for name in ("cat", "dog"):
            (root / split / name).mkdir(parents=True)
            for index in range(count):
                coarse = Image.fromarray(rng.integers(0, 256, (4, 5, 3)).astype(np.uint8))
                coarse.resize((23 + index, 31)).save(root / split / name / f"{index}.jpg")
    return root


@pytest.fixture
def make(made_runs, tmp_path, photos):
    def run(model, classes=("cat", "dog"), root=photos, **sections):
        data = {"class_names": list(classes), "name": "image_folder", "source": "folder"}
        config = {"data__name": "image_folder", "data__root": str(root), "data__source": "auto"}
        folder = made_runs.make_run(tmp_path / "run", data=data, config=config, **sections)
        model.save(folder / "model.keras")
        return TrainedRun.load(folder)

    return run


def expected_of(model, pictures):
    shape = tuple(model.input_shape[1:])
    return probabilities(model.predict(np.stack([fitted(picture, shape) for picture in pictures]), verbose=0))


def export(run, format_name, out, **keywords):
    told = []
    made = export_run(run, format_name, out, notify=told.append, **keywords)
    return made, told


@pytest.mark.parametrize("format_name", FORMATS)
def test_an_exported_model_agrees_and_brings_its_card_and_labels(make, tmp_path, format_name):
    if format_name == "onnx":
        pytest.importorskip("tf2onnx")
        pytest.importorskip("onnxruntime")
    model = network()
    made, told = export(make(model), format_name, tmp_path / "out" / "x")
    assert told == []
    assert made.agreement.num_pictures == 14 and made.agreement.source == "image_folder (folder), validation split"
    assert made.agreement.largest < 2e-3 and made.agreement.same_labels == 1 and made.agreement.milliseconds > 0
    out = tmp_path / "out" / "x"
    assert sorted(path.name for path in out.iterdir()) == sorted(["README.md", "labels.txt", FILE_NAMES[format_name]])
    assert (out / "labels.txt").read_text() == "cat\ndog\n"
    assert "14 pictures" in (out / "README.md").read_text()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["x"]
    answer = FORMATS[format_name].read(out)
    pictures = drawn_pictures((12, 10, 3), 9)
    assert len({picture.shape for picture in pictures}) > 3
    if not FORMATS[format_name].any_size:
        pictures = [fitted(picture, (12, 10, 3)) for picture in pictures]
    np.testing.assert_allclose([answer(one) for one in pictures], expected_of(model, pictures), atol=2e-3)


@pytest.mark.parametrize("format_name", ["keras", "tflite"])
def test_the_class_names_are_inside_the_file(make, tmp_path, format_name):
    export(make(network(3), ("a", "b c", "ü")), format_name, tmp_path / "x", data_root=None, tolerance=1)
    with zipfile.ZipFile(tmp_path / "x" / FILE_NAMES[format_name]) as archive:
        assert archive.read("labels.txt").decode() == "a\nb c\nü\n"


def test_the_saved_model_answers_encoded_pictures_as_tensorflow_serving_asks(make, tmp_path, photos):
    model = network()
    export(make(model), "saved_model", tmp_path / "x")
    loaded = tf.saved_model.load(str(tmp_path / "x" / "1"))
    serving = loaded.signatures["serving_default"]
    assert set(serving.structured_input_signature[1]) == {"image_bytes"}
    paths = sorted((photos / "validation").rglob("*.jpg"))[:5]
    answer = serving(image_bytes=tf.constant([path.read_bytes() for path in paths]))
    pictures = [np.asarray(tf.io.decode_jpeg(path.read_bytes(), channels=3)) for path in paths]
    expected = expected_of(model, pictures)
    np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-5)
    assert answer["classes"].numpy().tolist() == [[b"cat", b"dog"]] * 5
    assert answer["label"].numpy().tolist() == [[b"cat", b"dog"][index] for index in expected.argmax(axis=1)]
    np.testing.assert_allclose(answer["probability"], expected.max(axis=1), atol=1e-5)


def test_a_keras_model_of_several_classes_and_grey_pictures(make, tmp_path):
    model = network(4, channels=1)
    root = tmp_path / "nothing"
    made, told = export(make(model, "wxyz", root=root), "keras", tmp_path / "x")
    assert made.agreement.source == "drawn" and "drawn pictures take its place" in told[0]
    loaded = keras.models.load_model(tmp_path / "x" / "model.keras", safe_mode=True)
    batch = np.stack(drawn_pictures((30, 20, 1), 1) * 3)
    np.testing.assert_allclose(loaded.predict(batch, verbose=0), expected_of(model, batch), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["dynamic", "float16"])
def test_quantization_makes_it_smaller(make, tmp_path, quantize):
    pixels = keras.Input((8, 8, 3), dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(pixels))
    model = keras.Model(pixels, keras.layers.Dense(1)(keras.layers.Dense(200, activation="relu")(x)))
    run = make(model)
    whole, _ = export(run, "tflite", tmp_path / "whole")
    small, _ = export(run, "tflite", tmp_path / "small", quantize=quantize)
    assert small.num_bytes < {"dynamic": 0.35, "float16": 0.6}[quantize] * whole.num_bytes
    assert whole.agreement.largest < 1e-5 < small.agreement.largest < 0.05
    assert "quantization" in (tmp_path / "small" / "README.md").read_text()


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_a_model_of_mixed_precision_is_exported_in_float32(make, tmp_path, policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = network()
    finally:
        keras.config.set_dtype_policy("float32")
    same = in_float32(model)
    assert {layer.compute_dtype for layer in same._flatten_layers() if layer.weights} == {"float32"}
    for before, after in zip(model.get_weights(), same.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    made, _ = export(make(model), "tflite", tmp_path / "x", tolerance=0.05)
    assert made.agreement.largest > 0  # sixteen bits against thirty-two


def test_a_float32_model_is_taken_as_it_is():
    model = network()
    assert in_float32(model) is model


def test_resizing_rounds_as_in_training():
    """Levels between two whole ones must come out as the pipeline rounds them, or a dark picture drifts."""
    pixels = keras.Input((5, 5, 3), dtype="uint8")
    sums = keras.ops.sum(keras.ops.cast(pixels, "float32"), axis=(1, 2))
    model = raw_pixels_model(keras.Model(pixels, sums / 100))
    for picture in drawn_pictures((9, 7, 3), 6):
        scores = fitted(picture, (5, 5, 3)).astype(np.float64).sum(axis=(0, 1))[None] / 100
        np.testing.assert_allclose(model(picture[None]), probabilities(scores), atol=1e-4)


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_model_that_does_not_agree_leaves_nothing(make, tmp_path, monkeypatch):
    run = make(network())
    wrong = network()
    wrong.layers[-1].set_weights([-wrong.layers[-1].get_weights()[0], np.ones(1)])
    monkeypatch.setattr("manyfit.export.in_float32", lambda model: wrong)
    with pytest.raises(TrainingError, match="does not agree.*at most 0.002") as caught:
        export(run, "keras", tmp_path / "out" / "x")
    assert "--tolerance" in caught.value.remedy
    assert list((tmp_path / "out").iterdir()) == []


def test_a_model_that_gives_no_numbers_is_refused(make, tmp_path):
    model = network()
    model.layers[-1].set_weights([np.full_like(model.layers[-1].get_weights()[0], np.nan), np.zeros(1)])
    with pytest.raises(TrainingError, match="does not agree"):
        export(make(model), "keras", tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("part", ["write", "read"])
def test_a_converter_or_runtime_that_fails_is_one_message(make, tmp_path, monkeypatch, part):
    def fail(*_):
        raise ValueError("No Op registered\nfor that")

    broken = dataclasses.replace(FORMATS["tflite"], **{part: fail})
    monkeypatch.setitem(FORMATS, "tflite", broken)
    with pytest.raises(TrainingError, match="cannot be had as tflite: ValueError: No Op registered") as caught:
        export(make(network()), "tflite", tmp_path / "out" / "x")
    assert "saved_model" in caught.value.remedy and list((tmp_path / "out").iterdir()) == []


def test_pictures_that_were_asked_for_must_be_there(make, tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        export(make(network()), "keras", tmp_path / "x", data_root=str(tmp_path / "nowhere"))


def test_a_package_that_is_missing_is_named(make, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tf2onnx", None)
    monkeypatch.setitem(__import__("sys").modules, "onnx", __import__("types").ModuleType("onnx"))
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", __import__("types").ModuleType("onnxruntime"))
    with pytest.raises(UserError, match="needs the package tf2onnx") as caught:
        export(make(network()), "onnx", tmp_path / "x")
    assert "--extra onnx" in caught.value.remedy


def test_onnx_carries_the_class_names(make, tmp_path):
    pytest.importorskip("tf2onnx")
    onnx = pytest.importorskip("onnx")
    export(make(network()), "onnx", tmp_path / "x")
    known = {entry.key: entry.value for entry in onnx.load(str(tmp_path / "x" / "model.onnx")).metadata_props}
    assert json.loads(known["class_names"]) == ["cat", "dog"]
