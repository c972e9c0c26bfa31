"""The metrics by word: their values against formulas written out, padding, and scores at the ends of float32."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from manyfit import metrics
from manyfit.errors import ConfigError


def softmax(scores):
    if scores.shape[1] == 1:
        scores = np.concatenate([np.zeros_like(scores), scores], axis=1)
    raised = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def auc_by_pairs(labels, scores):
    """Every example of a class against every other one."""
    likely = softmax(scores)
    values = []
    for k in range(1 if likely.shape[1] == 2 else 0, likely.shape[1]):
        own, others = likely[labels == k, k], likely[labels != k, k]
        if len(own) and len(others):
            values.append(np.mean((own[:, None] > others) + 0.5 * (own[:, None] == others)))
    return np.mean(values) if values else 0.0


def f1_by_hand(labels, scores):
    predicted = softmax(scores).argmax(axis=1)
    values = []
    for k in set(labels) | set(predicted):
        true = np.sum((labels == k) & (predicted == k))
        values.append(2 * true / (np.sum(labels == k) + np.sum(predicted == k)))
    return np.mean(values)


def ece_by_hand(labels, scores):
    likely = softmax(scores)
    confidence, right = likely.max(axis=1), likely.argmax(axis=1) == labels
    total = 0.0
    for m in range(1, 16):
        inside = (confidence > (m - 1) / 15) & (confidence <= m / 15)
        if inside.any():
            total += inside.sum() * abs(right[inside].mean() - confidence[inside].mean())
    return total / len(labels)


BY_HAND = {"auc": auc_by_pairs, "f1": f1_by_hand, "calibration_error": ece_by_hand}


def counted(labels, scores, words=tuple(BY_HAND), classes=None, batch=7):
    """The metrics after batches that end in padding rows with absurd contents."""
    classes = classes or max(2, scores.shape[1])
    made = metrics.make(words, classes, scores.shape[1])
    for start in range(0, len(labels), batch):
        part, own = scores[start : start + batch], labels[start : start + batch]
        missing = batch - len(part)
        filled = np.concatenate([part, np.full((missing, scores.shape[1]), 50.0)]).astype(np.float32)
        mask = np.concatenate([np.ones(len(part)), np.zeros(missing)]).astype(np.float32)
        for metric in made:
            metric.update_state(np.concatenate([own, np.zeros(missing, int)]), filled, sample_weight=mask)
    return {metric.name: metric for metric in made}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 2, 3, 6]), st.integers(1, 60), st.floats(0.1, 6))
def test_values_are_those_of_the_formulas(seed, outputs, count, spread):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, max(2, outputs), count)
    scores = rng.normal(0, spread, (count, outputs)).astype(np.float32)
    found = counted(labels, scores)
    assert float(found["accuracy"].result()) == pytest.approx(np.mean(softmax(scores).argmax(axis=1) == labels))
    for name in ("f1", "calibration_error"):
        assert float(found[name].result()) == pytest.approx(BY_HAND[name](labels, scores), abs=2e-6), name
    bound = float(found["auc"].bound())
    assert abs(float(found["auc"].result()) - auc_by_pairs(labels, scores)) <= bound + 1e-9


def test_the_area_is_close_for_many_examples_and_for_a_sure_model():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 3000)
    scores = rng.normal(0, 1, (3000, 5)) + 1.5 * np.eye(5)[labels]
    for factor in (1, 8):  # eight times as sure: most probabilities are above 0.999 or below 0.001
        metric = counted(labels, scores * factor, ["auc"], batch=1000)["auc"]
        exact = auc_by_pairs(labels, scores * factor)
        assert float(metric.bound()) < 2e-3
        assert float(metric.result()) == pytest.approx(exact, abs=2e-4)
    keras_own = keras.metrics.AUC(multi_label=True, num_labels=5)
    keras_own.update_state(np.eye(5)[labels], softmax(scores * 8))
    assert abs(float(keras_own.result()) - exact) > 10 * abs(float(metric.result()) - exact)  # why not Keras' own


def test_scores_without_end_keep_their_order():
    scores = np.array([[800.0, -800.0, 0.0], [0.0, 900.0, 1.0], [0.0, 0.0, 2.0], [3.0, 3.0, 3.0]], np.float32)
    odds = metrics.log_odds(tf.constant(scores)).numpy()
    assert np.isfinite(odds).all()
    assert odds[3].tolist() == pytest.approx([-np.log(2)] * 3)
    assert float(counted(np.array([0, 1, 2, 0]), scores)["auc"].result()) == pytest.approx(
        auc_by_pairs(np.array([0, 1, 2, 0]), scores)
    )


def test_the_odds_of_a_sure_class_have_digits():
    scores = np.array([[12.0, 0.1, -0.3]])
    likely = softmax(scores)[0]
    found = metrics.log_odds(tf.constant(scores, tf.float32)).numpy()[0]
    np.testing.assert_allclose(found, np.log(likely) - np.log1p(-likely), rtol=1e-5)


def test_a_class_without_examples_does_not_count():
    labels = np.array([0, 0, 1, 1])
    scores = np.array([[3.0, 0, 0], [1, 2, 0], [0, 3, 0], [0, 1, 0]])
    found = counted(labels, scores)
    assert float(found["f1"].result()) == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert float(found["auc"].result()) == pytest.approx((1 + 3 / 4) / 2)


def test_ties_count_one_prediction():
    """An untrained head gives equal scores: one prediction each, as for the accuracy."""
    found = counted(np.array([0, 1, 2, 2]), np.zeros((4, 3)))
    assert float(found["f1"].result()) == pytest.approx((2 / 5 + 0 + 0) / 3)
    assert float(found["auc"].result()) == pytest.approx(0.5)
    assert float(found["accuracy"].result()) == 0.25


def test_top_k_counts_a_true_class_among_the_first():
    labels = np.array([0, 1, 2, 3])
    scores = np.array([[3.0, 2, 1, 0]] * 4)
    found = counted(labels, scores, ["top_2", "top_3"])
    assert (float(found["top_2"].result()), float(found["top_3"].result())) == (0.5, 0.75)
    with pytest.raises(ConfigError, match="top_5 is always 1"):
        metrics.make(["top_5"], 4, 4)


def test_nothing_counted_is_zero_and_reset_begins_anew():
    rng = np.random.default_rng(2)
    found = counted(rng.integers(0, 3, 9), rng.normal(size=(9, 3)), (*BY_HAND, "top_2"))
    for metric in found.values():
        metric.reset_state()
        assert float(metric.result()) == 0.0


def test_metrics_count_inside_xla():
    """`jit_compile=true` compiles them with the step."""
    rng = np.random.default_rng(3)
    labels, scores = rng.integers(0, 4, 40), rng.normal(size=(40, 4)).astype(np.float32)
    made = metrics.make(list(BY_HAND), 4, 4)

    @tf.function(jit_compile=True)
    def step(y, x, mask):
        for metric in made:
            metric.update_state(y, x, sample_weight=mask)

    step(tf.constant(labels), tf.constant(scores), tf.ones(40))
    for metric in made[1:]:
        expected = BY_HAND[metric.name](labels, scores)
        slack = float(metric.bound()) if isinstance(metric, metrics.AUC) else 1e-6
        assert float(metric.result()) == pytest.approx(expected, abs=slack + 1e-9)
