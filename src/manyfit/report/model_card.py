"""The model card that goes with an exported model: what it is, how to call it, what it learned from."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from manyfit.console import plural
from manyfit.export_names import DYNAMIC, FILE_NAMES, LABELS_NAME
from manyfit.report.show import in_bytes

_MOST_CLASSES = 100

_KERAS_LICENCES = {
    **dict.fromkeys(("mobilenet_v2", "MobileNetV2", "MobileNet", "NASNetMobile", "NASNetLarge"), "Apache-2.0"),
    **dict.fromkeys(("InceptionV3", "InceptionResNetV2"), "Apache-2.0"),
    **dict.fromkeys(("DenseNet121", "DenseNet169", "DenseNet201"), "BSD 3-Clause"),
    **dict.fromkeys(("VGG16", "VGG19"), "Creative Commons Attribution (VGG, University of Oxford)"),
    "ResNet50": "MIT (Kaiming He)",
}
"""What the documentation of keras.applications has named as the licence of the ImageNet weights; it names no others."""


@dataclass(frozen=True)
class Agreement:
    """How an exported model, loaded again, compares with the run's own.

    Args:
        num_pictures: Pictures that both were asked about.
        source: Where they are from, in words.
        largest: Largest difference of a probability.
        mean: Mean difference.
        same_labels: Share of the pictures with the same label.
        milliseconds: Median time for one picture, on the CPU.
    """

    num_pictures: int
    source: str
    largest: float
    mean: float
    same_labels: float
    milliseconds: float

    def sentence(self) -> str:
        """The same in words."""
        return (
            f"{self.num_pictures} pictures ({self.source}): largest difference of a probability {self.largest:.1e}, "
            f"mean {self.mean:.1e}, same label for {self.same_labels:.1%}"
        )


@dataclass(frozen=True)
class Exported:
    """What a card is made from.

    Args:
        name: The run.
        record: Of the run.
        settings: Its configuration, as nested dicts.
        format: `keras`, `saved_model`, `tflite` or `onnx`.
        quantize: `dynamic`, `float16` or None.
        input_shape: Height, width, channels that the network takes.
        class_names: In the order of the probabilities.
        num_bytes: Of the model.
        agreement: With the run's model.
    """

    name: str
    record: Mapping[str, Any]
    settings: Mapping[str, Any]
    format: str
    quantize: str | None
    input_shape: tuple[int, int, int]
    class_names: Sequence[str]
    num_bytes: int
    agreement: Agreement


def model_card(made: Exported, now: datetime | None = None) -> str:
    """The card in Markdown."""
    record = made.record
    date = (now or datetime.now(UTC)).strftime("%Y-%m-%d")
    parts = [f"# {record['model'].get('name')} on {record['data'].get('name')}", ""]
    if record.get("rehearsal"):
        parts += [
            "> **A rehearsal.** This model was trained on pictures drawn by code, not on photographs. It shows that "
            "everything works; it says nothing about real pictures and must not be used on them.",
            "",
        ]
    shown = _listed([f"`{name}`" for name in made.class_names])
    parts += [
        f"An image classifier for {plural(len(made.class_names), 'class')}: {shown}. Exported on {date} as "
        f"{_FORMAT_NAMES[made.format]}{_quantization(made.quantize)}, {in_bytes(made.num_bytes)}.",
        "",
        "## How to call it",
        "",
        _signature(made),
        "",
        f"```python\n{_snippet(made)}\n```",
        "",
        f"The class names, in the order of the probabilities, are in `{LABELS_NAME}`{_INSIDE[made.format]}.",
        "",
        *_table("Data", _data_rows(record)),
        *_table("Training", _training_rows(record, made.settings)),
        *_table("Results", _result_rows(record)),
        "The best epoch was chosen by this validation split; on other pictures expect less.",
        "",
        "## Agreement with the run's model",
        "",
        f"Loaded again and compared with `model.keras` of the run: {made.agreement.sentence()}. One picture takes "
        f"{made.agreement.milliseconds:.3g} ms (median, batch of 1, on the CPU of the machine that exported it).",
        "",
        *_table("Provenance", _provenance_rows(made, date)),
        "## Licence of the weights",
        "",
        licence(record),
        "",
    ]
    return "\n".join(parts)


def licence(record: Mapping[str, Any]) -> str:
    """What is known of the terms of the weights that the training started from, and of the data."""
    model = record["model"]
    weights, name = str(model.get("weights") or "none"), str(model.get("name") or "")
    own = "The terms of the training data hold for what was learned from them; this project does not know them."
    if weights == "none":
        return f"Trained from scratch: no weights of others are in it. {own}"
    if weights == "rehearsal":
        return (
            "It started from the rehearsal backbone of manyfit (Apache-2.0), which was trained on pictures drawn by "
            f"code. {own}"
        )
    if weights == "imagenet":
        known = _KERAS_LICENCES.get(name)
        said = f"{known}, as Keras' documentation says" if known else "not known to this project: see keras.io"
        return (
            f"It started from the ImageNet weights of keras.applications for {name}; their licence: {said}. The "
            f"pictures of ImageNet are offered for non-commercial research and education. {own}"
        )
    return (
        f"It started from the weights in a file, `{os.path.basename(weights)}`, that the run was given; their licence "
        f"is not known to this project: ask where the file came from. {own}"
    )


_FORMAT_NAMES = {
    "keras": "a Keras model (`.keras`)",
    "saved_model": "a TensorFlow SavedModel",
    "tflite": "a LiteRT (TensorFlow Lite) model",
    "onnx": "an ONNX model",
}
_INSIDE = {
    "keras": " beside it and inside it (a `.keras` file is a ZIP archive)",
    "saved_model": " and in the output `classes`",
    "tflite": " beside it and inside it (as an appended ZIP archive)",
    "onnx": " and, as JSON, in its metadata `class_names`",
}


def _quantization(quantize: str | None) -> str:
    if quantize is None:
        return ""
    if quantize == DYNAMIC:
        return " with dynamic-range quantization (8-bit weights, float32 activations)"
    return " with float16 quantization (16-bit weights)"


def _signature(made: Exported) -> str:
    height, width, channels = made.input_shape
    kind = "RGB" if channels == 3 else "grey"
    probabilities = f"`probabilities`, float32 `[n, {len(made.class_names)}]`, each row sums to 1"
    if made.format == "tflite":
        return (
            f"Input `pixels`, uint8 `[1, {height}, {width}, {channels}]`: one {kind} picture, levels 0 to 255, already "
            f"resized (bilinear, the aspect ratio not kept). Output {probabilities.replace('[n,', '[1,')}."
        )
    pixels = (
        f"`pixels`, uint8 `[n, height, width, {channels}]`: {kind} pictures of any one size, levels 0 to 255; they are "
        f"resized to {height} x {width} inside (bilinear, the aspect ratio not kept)"
    )
    if made.format == "saved_model":
        return (
            "Signature `serving_default` (what TensorFlow Serving answers): `image_bytes`, string `[n]`, each an "
            f"encoded JPEG, PNG, GIF, BMP or WebP. Signature `pixels`: {pixels}. Both give {probabilities}; `classes`, "
            f"string `[n, {len(made.class_names)}]`, their names; `label`, string `[n]`, and `probability`, float32 "
            "`[n]`, of the most probable."
        )
    return f"Input {pixels}. Output {probabilities}."


def _snippet(made: Exported) -> str:
    file = FILE_NAMES[made.format]
    height, width, channels = made.input_shape
    if made.format == "keras":
        return (
            "import keras\n"
            f'model = keras.models.load_model("{file}")\n'
            f"probabilities = model.predict(pixels)  # uint8 [n, height, width, {channels}]"
        )
    if made.format == "saved_model":
        return (
            "import tensorflow as tf\n"
            f'model = tf.saved_model.load("{file}")\n'
            'answer = model.signatures["serving_default"](image_bytes=tf.constant([open("a.jpg", "rb").read()]))\n'
            'print(answer["label"], answer["probability"])\n'
            "# TensorFlow Serving: tensorflow_model_server --rest_api_port=8501 --model_name=m "
            "--model_base_path=THIS_FOLDER\n"
            '# curl -d \'{"instances": [{"b64": "..."}]}\' http://localhost:8501/v1/models/m:predict'
        )
    if made.format == "tflite":
        return (
            "from ai_edge_litert.interpreter import Interpreter\n"
            f'interpreter = Interpreter(model_path="{file}")\n'
            "interpreter.allocate_tensors()\n"
            f'interpreter.set_tensor(interpreter.get_input_details()[0]["index"], pixels)  '
            f"# uint8 [1, {height}, {width}, {channels}]\n"
            "interpreter.invoke()\n"
            'probabilities = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])'
        )
    return (
        "import onnxruntime\n"
        f'session = onnxruntime.InferenceSession("{file}")\n'
        '(probabilities,) = session.run(["probabilities"], {"pixels": pixels})  '
        f"# uint8 [n, height, width, {channels}]"
    )


def _data_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    data = record["data"]
    return [
        ("data set", f"{data.get('name')} ({data.get('source')})"),
        ("training examples", _count(data.get("num_train"))),
        ("validation examples", _count(data.get("num_validation"))),
        ("files skipped", _count(data.get("num_skipped"))),
        ("fingerprint", f"`{data.get('fingerprint')}`"),
    ]


def _training_rows(record: Mapping[str, Any], settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    model, batch, strategy = record["model"], record["batch"], record["strategy"]
    weights = os.path.basename(str(model.get("weights") or "none"))
    trained = f"{_count(model.get('num_trainable_parameters'))} of {_count(model.get('num_parameters'))}"
    optimizer = (settings.get("optimizer") or {}).get("name")
    return [
        ("model", f"{model.get('name')}, started from weights: {weights}"),
        ("parameters trained", trained),
        ("epochs", _count(len(record["epochs"]))),
        ("batch", f"{_count(batch.get('global_batch_size'))} on {plural(strategy.get('num_replicas'), 'replica')}"),
        ("optimizer", f"{optimizer}, first learning rate {batch.get('learning_rate')}"),
        ("precision", str((settings.get("precision") or {}).get("name"))),
        ("seed", str(settings.get("seed"))),
    ]


def _result_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    best = record.get("best") or {}
    rows = [("best epoch", _count(best.get("epoch")))]
    more = [key for key in best if key.startswith("val_") and key not in ("val_accuracy", "val_loss")]
    for key in ("val_accuracy", "val_loss", *more):
        value = best.get(key)
        name = f"validation {key.removeprefix('val_').replace('_', ' ')}"
        rows.append((name, f"{value:.4f}" if isinstance(value, int | float) else "-"))
    return rows


def _provenance_rows(made: Exported, date: str) -> list[tuple[str, str]]:
    record = made.record
    git = record["git"]
    commit = f"`{git['commit']}`{' with uncommitted changes' if git.get('dirty') else ''}" if git.get("commit") else "-"
    versions = record["versions"]
    return [
        ("run", made.name),
        ("trained", str(record.get("ended") or record.get("started") or "-")[:10]),
        ("exported", date),
        ("code", f"manyfit {versions.get('manyfit')}, commit {commit}"),
        ("versions", ", ".join(f"{name} {versions[name]}" for name in ("tensorflow", "keras") if versions.get(name))),
        ("rehearsal", "yes: drawn pictures" if record.get("rehearsal") else "no"),
    ]


def _table(title: str, rows: Sequence[tuple[str, str]]) -> list[str]:
    lines = [f"| {name} | {_cell(value)} |" for name, value in rows]
    return [f"## {title}", "", "| | |", "|---|---|", *lines, ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _count(number: Any) -> str:
    return f"{number:,}" if isinstance(number, int) else "-"


def _listed(names: Sequence[str]) -> str:
    if len(names) <= _MOST_CLASSES:
        return ", ".join(names)
    return f"{', '.join(names[:_MOST_CLASSES])} and {len(names) - _MOST_CLASSES} more"
