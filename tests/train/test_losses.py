"""The loss of class scores against the formulas written out, and Keras' own."""

import keras
import numpy as np
import pytest

from manyfit.assembly import class_weight
from manyfit.config import LossConfig, RunConfig
from manyfit.data.examples import ImageData, Split
from manyfit.errors import ConfigError
from manyfit.models import loss_and_metrics

SCORES = np.array([[2.0, -1.0, 0.5], [0.0, 0.0, 0.0], [-3.0, 1.0, 6.0]], np.float32)
LABELS = np.array([0, 2, 1], np.int32)


def rows(settings, labels=LABELS, scores=SCORES, classes=3):
    loss, _ = loss_and_metrics(classes, scores.shape[-1], settings)
    return keras.ops.convert_to_numpy(loss.call(labels, scores)).reshape(-1)


def written_out(smoothing, gamma):
    q = np.exp(SCORES) / np.exp(SCORES).sum(axis=1, keepdims=True)
    p = q[np.arange(3), LABELS]
    return (1 - p) ** gamma * (-(1 - smoothing) * np.log(p) - smoothing * np.log(q).mean(axis=1))


@pytest.mark.parametrize(("smoothing", "gamma"), [(0.1, 0.0), (0.0, 2.0), (0.2, 0.5)])
def test_the_loss_is_the_formula(smoothing, gamma):
    found = rows(LossConfig(label_smoothing=smoothing, focal_gamma=gamma))
    np.testing.assert_allclose(found, written_out(smoothing, gamma), rtol=1e-5)


def test_one_score_is_two_classes():
    one = np.array([[1.5], [-0.5]], np.float32)
    two = np.concatenate([np.zeros_like(one), one], axis=1)
    settings, labels = LossConfig(label_smoothing=0.1, focal_gamma=1.5), np.array([1, 1], np.int32)
    np.testing.assert_allclose(rows(settings, labels, one, 2), rows(settings, labels, two, 2), rtol=1e-5)


def test_smoothing_one_score_is_kerass():
    one, labels = np.array([[1.5], [-0.5]], np.float32), np.array([[1.0], [0.0]], np.float32)
    keras_own = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1).call(labels, one)
    found = rows(LossConfig(label_smoothing=0.1), labels.astype(np.int32), one, 2)
    np.testing.assert_allclose(found, keras.ops.convert_to_numpy(keras_own).reshape(-1), rtol=1e-5)


def test_nothing_asked_is_kerass_cross_entropy():
    loss, _ = loss_and_metrics(3, 3, LossConfig())
    assert type(loss) is keras.losses.SparseCategoricalCrossentropy


def test_balanced_class_weights_give_every_class_the_same_share():
    labels = np.array([0] * 8 + [1] * 3 + [2], np.int32)
    split = Split("train", labels, images=np.zeros((12, 2, 2, 1), np.uint8))
    data = ImageData("any", "any", ("a", "b", "c"), split, split)
    weights = class_weight(RunConfig(class_weight="balanced"), data)
    assert weights == pytest.approx([12 / (3 * 8), 12 / (3 * 3), 12 / 3])
    assert np.bincount(labels) * weights == pytest.approx([4.0] * 3)  # so that the mean weight of an example is 1
    assert class_weight(RunConfig(class_weight=[1, 2, 3]), data) == [1.0, 2.0, 3.0]
    with pytest.raises(ConfigError, match="has 2 factors; the data has 3"):
        class_weight(RunConfig(class_weight=[1, 2]), data)
