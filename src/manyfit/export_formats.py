"""A network as a model that takes raw pixels and gives probabilities, in four formats, and each loaded again."""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from manyfit.data.decode import decode_image
from manyfit.data.pipeline import fit_shape
from manyfit.errors import UserError
from manyfit.export_names import FILE_NAMES, FLOAT16, LABELS_NAME
from manyfit.quiet import quiet_tensorflow

Answer = Callable[[np.ndarray], np.ndarray]
"""One picture, uint8 [height, width, channels], to its probabilities, float [classes]."""

ONNX_OPSET = 18


@dataclass(frozen=True)
class Format:
    """How a model is written and read again.

    Args:
        write: `(model, class_names, folder, quantize)`: writes it into a folder that exists.
        read: `(folder) -> Answer`: loads it as its users would.
        any_size: Whether it takes pictures of any size, or those of the network's own.
    """

    write: Callable[[keras.Model, Sequence[str], Path, str | None], None]
    read: Callable[[Path], Answer]
    any_size: bool = True


# --- the model ------------------------------------------------------------------------------------------------------


def in_float32(network: keras.Model) -> keras.Model:
    """The network with float32 arithmetic, whatever precision it was trained in: its weights are float32 anyway."""
    if all(layer.compute_dtype == "float32" for layer in network._flatten_layers() if layer.weights):
        return network
    text = json.dumps(keras.saving.serialize_keras_object(network))
    for policy in ("mixed_float16", "mixed_bfloat16"):
        text = text.replace(f'"{policy}"', '"float32"')
    text = text.replace('"dtype": "float16"', '"dtype": "float32"').replace('"dtype": "bfloat16"', '"dtype": "float32"')
    same = keras.saving.deserialize_keras_object(json.loads(text), safe_mode=True)
    same.set_weights(network.get_weights())
    return same


def raw_pixels_model(network: keras.Model) -> keras.Model:
    """Pictures of any size, uint8 [n, height, width, channels], to probabilities, float32 [n, classes].

    They are resized as in training: bilinear, without keeping the aspect ratio, rounded to whole levels.
    """
    height, width, channels = network.input_shape[1:]
    pixels = keras.Input((None, None, channels), dtype="uint8", name="pixels")
    x = keras.ops.cast(pixels, "float32")
    x = keras.ops.image.resize(x, (height, width), interpolation="bilinear", data_format="channels_last")
    x = keras.ops.cast(keras.ops.clip(keras.ops.round(x), 0.0, 255.0), "uint8")
    return keras.Model(pixels, _probabilities(network(x, training=False)), name="pixels_to_probabilities")


def own_size_model(network: keras.Model) -> keras.Model:
    """Pictures of the network's own size to probabilities."""
    pixels = keras.Input(network.input_shape[1:], dtype="uint8", name="pixels")
    return keras.Model(pixels, _probabilities(network(pixels, training=False)), name="pixels_to_probabilities")


def _probabilities(scores):
    scores = keras.ops.cast(scores, "float32")
    if scores.shape[-1] != 1:
        return keras.layers.Softmax(name="probabilities", dtype="float32")(scores)
    second = keras.ops.sigmoid(scores)
    first = keras.ops.sigmoid(keras.ops.negative(scores))  # 1 - sigmoid would lose the digits of a small one
    return keras.layers.Concatenate(name="probabilities", dtype="float32")([first, second])


# --- Keras ----------------------------------------------------------------------------------------------------------


def _write_keras(network: keras.Model, class_names: Sequence[str], folder: Path, quantize: str | None) -> None:
    path = folder / FILE_NAMES["keras"]
    raw_pixels_model(network).save(path)
    _append_labels(path, class_names)


def _read_keras(folder: Path) -> Answer:
    model = keras.models.load_model(folder / FILE_NAMES["keras"], compile=False, safe_mode=True)
    spec = tf.TensorSpec([1, None, None, model.input_shape[-1]], tf.uint8)
    run = tf.function(lambda pixels: model(pixels, training=False), input_signature=[spec], autograph=False)
    return lambda picture: run(picture[None]).numpy()[0]


def _append_labels(path: Path, class_names: Sequence[str]) -> None:
    """Put the class names into the file itself: a .keras file is a ZIP, and to a .tflite file one may be appended."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(LABELS_NAME, "".join(f"{name}\n" for name in class_names))


# --- SavedModel -----------------------------------------------------------------------------------------------------


class _Served(tf.Module):
    """What TensorFlow Serving loads: pixels or encoded pictures to probabilities with the names of the classes."""

    def __init__(self, network: keras.Model, class_names: Sequence[str]):
        super().__init__()
        self.model = raw_pixels_model(network)
        self.class_names = tf.Variable(list(class_names), trainable=False, name="class_names")
        shape = tuple(network.input_shape[1:])

        def answer(pixels):
            probabilities = self.model(pixels, training=False)
            best = tf.argmax(probabilities, axis=-1)
            return {
                "probabilities": probabilities,
                "classes": tf.tile(self.class_names[None], [tf.shape(probabilities)[0], 1]),
                "label": tf.gather(self.class_names, best),
                "probability": tf.reduce_max(probabilities, axis=-1),
            }

        def from_bytes(image_bytes):
            kind = tf.TensorSpec(shape, tf.uint8)
            pictures = tf.map_fn(lambda one: fit_shape(decode_image(one), shape), image_bytes, fn_output_signature=kind)
            return answer(pictures)

        pixels = tf.TensorSpec([None, None, None, shape[-1]], tf.uint8, name="pixels")
        self.from_pixels = tf.function(answer, input_signature=[pixels])
        self.from_bytes = tf.function(
            from_bytes, input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")]
        )


def _write_saved_model(network: keras.Model, class_names: Sequence[str], folder: Path, quantize: str | None) -> None:
    served = _Served(network, class_names)
    signatures = {"serving_default": served.from_bytes, "pixels": served.from_pixels}
    with quiet_tensorflow():
        tf.saved_model.save(served, str(folder / FILE_NAMES["saved_model"]), signatures=signatures)


def _read_saved_model(folder: Path) -> Answer:
    loaded = tf.saved_model.load(str(folder / FILE_NAMES["saved_model"]))
    pixels = loaded.signatures["pixels"]
    # The function belongs to what was loaded, which must live as long.
    return lambda picture, keep=loaded: pixels(pixels=tf.constant(picture[None]))["probabilities"].numpy()[0]


# --- LiteRT (TensorFlow Lite) ---------------------------------------------------------------------------------------


def _write_tflite(network: keras.Model, class_names: Sequence[str], folder: Path, quantize: str | None) -> None:
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    model = own_size_model(network)
    spec = tf.TensorSpec([1, *network.input_shape[1:]], tf.uint8, name="pixels")
    function = tf.function(lambda pixels: model(pixels, training=False), input_signature=[spec], autograph=False)
    # With constants for variables batch norm folds into the convolutions: several times as fast.
    frozen = convert_variables_to_constants_v2(function.get_concrete_function())
    named = tf.function(lambda pixels: {"probabilities": frozen(pixels)[0]}, input_signature=[spec])
    with _quiet_converter(), quiet_tensorflow():
        converter = tf.lite.TFLiteConverter.from_concrete_functions([named.get_concrete_function()], model)
        if quantize is not None:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if quantize == FLOAT16:
            converter.target_spec.supported_types = [tf.float16]
        content = converter.convert()
    path = folder / FILE_NAMES["tflite"]
    path.write_bytes(content)
    _append_labels(path, class_names)


def _read_tflite(folder: Path) -> Answer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # tf.lite's own says that it moves to the package below
        try:
            from ai_edge_litert.interpreter import Interpreter
        except ImportError:
            from tensorflow.lite.python.interpreter import Interpreter
        with quiet_tensorflow():
            interpreter = Interpreter(model_path=str(folder / FILE_NAMES["tflite"]))
            interpreter.allocate_tensors()
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()

    def answer(picture: np.ndarray) -> np.ndarray:
        interpreter.set_tensor(given["index"], picture[None])
        interpreter.invoke()
        return interpreter.get_tensor(made["index"])[0]

    return answer


@contextlib.contextmanager
def _quiet_converter() -> Iterator[None]:
    absl_log = logging.getLogger("absl")
    level = absl_log.level
    absl_log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        absl_log.setLevel(level)


# --- ONNX -----------------------------------------------------------------------------------------------------------


def _write_onnx(network: keras.Model, class_names: Sequence[str], folder: Path, quantize: str | None) -> None:
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    onnx, tf2onnx, _ = import_onnx()
    model = raw_pixels_model(network)
    spec = tf.TensorSpec([None, None, None, network.input_shape[-1]], tf.uint8, name="pixels")
    function = tf.function(lambda pixels: model(pixels, training=False), input_signature=[spec], autograph=False)
    # Converted from the function itself, constants of some layers (EfficientNet's normalization) become inputs.
    frozen = convert_variables_to_constants_v2(function.get_concrete_function())
    names = {frozen.inputs[0].name: "pixels", frozen.outputs[0].name: "probabilities"}
    given, gives = names
    with _quiet_converter(), quiet_tensorflow():
        made, _ = tf2onnx.convert.from_graph_def(
            frozen.graph.as_graph_def(), input_names=[given], output_names=[gives], opset=ONNX_OPSET
        )
    _rename(made.graph, names)
    known = made.metadata_props.add()
    known.key, known.value = "class_names", json.dumps(list(class_names))
    onnx.checker.check_model(made)
    onnx.save(made, str(folder / FILE_NAMES["onnx"]))


def _rename(graph, names: dict[str, str]) -> None:
    """Give values of an ONNX graph other names, wherever they are named."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*graph.input, *graph.output):
        value.name = names.get(value.name, value.name)


def _read_onnx(folder: Path) -> Answer:
    _, _, onnxruntime = import_onnx()
    session = onnxruntime.InferenceSession(str(folder / FILE_NAMES["onnx"]), providers=["CPUExecutionProvider"])
    return lambda picture: session.run(["probabilities"], {"pixels": picture[None]})[0][0]


def import_onnx():
    """The packages onnx, tf2onnx and onnxruntime.

    Raises:
        UserError: one of them is not installed.
    """
    try:
        import onnx  # pyright: ignore[reportMissingImports]
        import onnxruntime  # pyright: ignore[reportMissingImports]
        import tf2onnx  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            f"--format onnx needs the package {error.name}, which is not installed.",
            "Install the extra: uv sync --extra onnx (or pip install 'tf2onnx>=1.17' onnxruntime).",
        ) from error
    return onnx, tf2onnx, onnxruntime


FORMATS = {
    "keras": Format(_write_keras, _read_keras),
    "saved_model": Format(_write_saved_model, _read_saved_model),
    "tflite": Format(_write_tflite, _read_tflite, any_size=False),
    "onnx": Format(_write_onnx, _read_onnx),
}
