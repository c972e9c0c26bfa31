"""The rehearsal weights: the file is the recorded one, fits one architecture, and its features tell cats from dogs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import keras
import numpy as np
import pytest

from manyfit.data.drawn import CLASSES, draw
from manyfit.models import rehearsal

SIZE = 96


@pytest.fixture(scope="module")
def backbone() -> keras.Model:
    model = keras.applications.MobileNetV2(
        input_shape=(SIZE, SIZE, 3), alpha=rehearsal.ALPHA, include_top=False, weights=None
    )
    rehearsal.load_rehearsal_weights(model)
    return model


def draw_batch(per_class: int, stream: int) -> tuple[np.ndarray, np.ndarray]:
    labels = np.tile([0, 1], per_class)
    pictures = [
        np.asarray(draw(CLASSES[label], np.random.default_rng([7, stream, index])).resize((SIZE, SIZE)))
        for index, label in enumerate(labels)
    ]
    return np.stack(pictures).astype(np.float32) / 127.5 - 1.0, labels * 2.0 - 1.0


def test_the_shipped_file_is_small_and_the_recorded_one() -> None:
    content = rehearsal.WEIGHTS_PATH.read_bytes()
    facts = json.loads(rehearsal.FACTS_PATH.read_text())
    assert len(content) < 2_000_000
    assert hashlib.sha256(content).hexdigest() == rehearsal.WEIGHTS_SHA256 == facts["sha256"]


def test_cats_and_dogs_were_never_shown() -> None:
    facts = json.loads(rehearsal.FACTS_PATH.read_text())
    assert not set(facts["kinds"]) & set(CLASSES)


def test_another_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backbone: keras.Model) -> None:
    changed = bytearray(rehearsal.WEIGHTS_PATH.read_bytes())
    changed[len(changed) // 2] ^= 1
    (tmp_path / "weights.npz").write_bytes(changed)
    monkeypatch.setattr(rehearsal, "WEIGHTS_PATH", tmp_path / "weights.npz")
    with pytest.raises(ValueError, match=r"has sha256 [0-9a-f]{64}, expected [0-9a-f]{64}"):
        rehearsal.load_rehearsal_weights(backbone)


def test_another_width_is_refused_and_left_alone() -> None:
    other = keras.applications.MobileNetV2(input_shape=(SIZE, SIZE, 3), alpha=0.5, include_top=False, weights=None)
    before = [np.asarray(variable) for variable in other.weights]
    with pytest.raises(ValueError, match=r"can't take the rehearsal weights.*alpha=0.35"):
        rehearsal.load_rehearsal_weights(other)
    for variable, values in zip(other.weights, before, strict=True):
        np.testing.assert_array_equal(variable, values)


def test_another_architecture_is_refused() -> None:
    other = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3)], name="small_cnn")
    with pytest.raises(ValueError, match=r"backbone 'small_cnn' can't take the rehearsal weights"):
        rehearsal.load_rehearsal_weights(other)


def test_weights_do_not_depend_on_the_input_size(backbone: keras.Model) -> None:
    larger = keras.applications.MobileNetV2(
        input_shape=(128, 128, 3), alpha=rehearsal.ALPHA, include_top=False, weights=None, name="another_name"
    )
    rehearsal.load_rehearsal_weights(larger)
    for ours, theirs in zip(backbone.weights, larger.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_frozen_features_separate_drawn_cats_from_dogs(backbone: keras.Model) -> None:
    images, signs = draw_batch(80, stream=0)
    features = np.asarray(backbone.predict_on_batch(images)).mean(axis=(1, 2))
    num_train = 100
    mean = features[:num_train].mean(axis=0)
    train, held_out = features[:num_train] - mean, features[num_train:] - mean
    # Ridge regression in its dual form: 100 pictures against 1,280 features.
    kernel = train @ train.T
    ridge = 0.1 * np.trace(kernel) / num_train
    weights = train.T @ np.linalg.solve(kernel + ridge * np.eye(num_train), signs[:num_train])
    accuracy = np.mean(np.sign(held_out @ weights) == signs[num_train:])
    assert accuracy >= 0.85
