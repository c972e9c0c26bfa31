"""The model card: what it says for each format, of rehearsals and of licences."""

import json
from datetime import UTC, datetime

import pytest

from manyfit.export_names import FILE_NAMES
from manyfit.report.model_card import Agreement, Exported, licence, model_card

AGREEMENT = Agreement(100, "cats_dogs (folder), validation split", 1.5e-6, 2e-7, 1.0, 3.25)


@pytest.fixture
def card(made_runs, tmp_path):
    def make(format_name="keras", quantize=None, class_names=("cat", "dog"), **sections):
        folder = made_runs.make_run(tmp_path / f"run{len(list(tmp_path.iterdir()))}", **sections)
        record = json.loads((folder / "record.json").read_text())
        settings = made_runs.settings()
        made = Exported(
            "run7", record, settings, format_name, quantize, (96, 128, 3), class_names, 4_200_000, AGREEMENT
        )
        return model_card(made, datetime(2026, 3, 4, tzinfo=UTC))

    return make


@pytest.mark.parametrize("format_name", FILE_NAMES)
def test_a_card_says_what_the_model_is_and_how_to_call_it(card, format_name):
    text = card(format_name)
    for part in (
        *("`cat`, `dog`", "2026-03-04", "4.2 MB", "4,000", "1,000", "0.9000", "0.5000", "a" * 40, "f" * 64),
        *("uint8", "float32", "probabilities", FILE_NAMES[format_name], "96", "128", "labels.txt", "run7"),
        *("| rehearsal | no |", "largest difference of a probability 1.5e-06", "3.25 ms", "Licence of the weights"),
    ):
        assert part in text, part
    assert "rehearsal.**" not in text
    snippet = text.split("```python\n")[1].split("```")[0]
    compile(snippet, "snippet", "exec")  # what is shown is at least Python


def test_the_size_of_the_input_is_named_as_the_format_takes_it(card):
    assert "uint8 `[1, 96, 128, 3]`" in card("tflite")
    assert "uint8 `[n, height, width, 3]`" in card("onnx")
    assert "image_bytes" in card("saved_model") and "serving_default" in card("saved_model")


def test_quantization_is_named(card):
    assert "dynamic-range quantization (8-bit weights" in card("tflite", "dynamic")
    assert "float16 quantization" in card("tflite", "float16")
    assert "quantization" not in card("tflite")


def test_a_rehearsal_is_marked_at_the_top(card):
    text = card(rehearsal=True)
    assert text.index("**A rehearsal.**") < text.index("## How to call it")
    assert "| rehearsal | yes: drawn pictures |" in text


def test_a_path_of_the_machine_never_lands_in_a_card(card):
    text = card(model={"weights": "/home/someone/secret/base.h5", "name": "mobilenet_v2"})
    assert "base.h5" in text and "/home" not in text


def test_a_thousand_classes_are_cut(card):
    text = card(class_names=[f"c{index}" for index in range(1000)])
    assert "`c99` and 900 more" in text and "`c100`" not in text


@pytest.mark.parametrize(
    ("weights", "name", "said"),
    [
        ("none", "small_cnn", "Trained from scratch"),
        ("rehearsal", "mobilenet_v2", "rehearsal backbone of manyfit (Apache-2.0)"),
        ("imagenet", "mobilenet_v2", "Apache-2.0, as Keras' documentation says"),
        ("imagenet", "ResNet50", "MIT (Kaiming He)"),
        ("imagenet", "ResNet50V2", "not known to this project"),
        ("base.h5", "mobilenet_v2", "ask where the file came from"),
    ],
)
def test_the_licence_says_what_is_known_and_what_is_not(weights, name, said):
    assert said in licence({"model": {"weights": weights, "name": name}})
