"""Metrics, calibration and confusions of scores: against formulas written out, and what their intervals promise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyfit.report.classification import (
    Measure,
    Scored,
    confusions,
    interval,
    per_class,
    words_told,
)
from manyfit.report.evaluation_pairs import differences
from manyfit.report.roc import Curves, log_odds

WORDS = ["top_2", "auc", "f1", "calibration_error"]


def softmax(scores):
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def weighted_auc(likely, labels, weights):
    """Every example of a class against every other, each as often as its weight says."""
    values = []
    for k in range(1 if likely.shape[1] == 2 else 0, likely.shape[1]):
        own, others = labels == k, labels != k
        pairs = weights[own][:, None] * weights[others]
        wins = (likely[own, k][:, None] > likely[others, k]) + 0.5 * (likely[own, k][:, None] == likely[others, k])
        if pairs.sum():
            values.append((pairs * wins).sum() / pairs.sum())
    return np.mean(values) if values else 0.0


def by_hand(word, scores, labels, weights):
    """The metric of a list that holds each example as often as its weight says."""
    likely = softmax(scores)
    if word == "auc":
        return weighted_auc(likely, labels, weights)
    chosen = np.repeat(np.arange(len(labels)), weights.astype(int))
    likely, labels = likely[chosen], labels[chosen]
    predicted, confidence = likely.argmax(axis=1), likely.max(axis=1)
    if word.startswith("top_"):
        return np.mean([label in np.argsort(-row)[:2] for row, label in zip(likely, labels, strict=True)])
    if word == "f1":
        each = []
        for k in set(labels) | set(predicted):
            right = np.sum((labels == k) & (predicted == k))
            each.append(2 * right / (np.sum(labels == k) + np.sum(predicted == k)))
        return np.mean(each)
    total = 0.0
    for m in range(1, 16):
        inside = (confidence > (m - 1) / 15) & (confidence <= m / 15)
        if inside.any():
            total += inside.sum() * abs((predicted == labels)[inside].mean() - confidence[inside].mean())
    return total / len(labels)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([2, 3, 5]), st.integers(1, 30))
def test_each_metric_of_any_resample_is_that_of_the_list(seed, num_classes, count):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, count)
    scores = rng.normal(0, 2, (count, num_classes))
    scored = Scored(scores, labels, num_classes)
    weights = np.bincount(rng.integers(0, count, count), minlength=count).astype(float)
    for word in WORDS:
        assert scored.statistic(word)(weights) == pytest.approx(by_hand(word, scores, labels, weights)), word


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([2, 4]), st.integers(1, 25))
def test_ties_count_half(seed, num_classes, count):
    rng = np.random.default_rng(seed)
    labels, odds = rng.integers(0, num_classes, count), rng.integers(0, 4, (count, num_classes)).astype(float)
    weights = np.bincount(rng.integers(0, count, count), minlength=count).astype(float)
    assert Curves(odds, labels).mean_area(weights) == pytest.approx(weighted_auc(odds, labels, weights))


def test_one_score_for_two_classes_is_the_second_of_two():
    rng = np.random.default_rng(1)
    scores, labels = rng.normal(0, 2, (50, 1)), rng.integers(0, 2, 50)
    one, two = Scored(scores, labels, 2), Scored(np.hstack([np.zeros((50, 1)), scores]), labels, 2)
    np.testing.assert_array_equal(one.confusion_matrix, two.confusion_matrix)
    np.testing.assert_allclose(one.confidence, np.maximum(1 / (1 + np.exp(-scores)), 1 / (1 + np.exp(scores)))[:, 0])
    once = np.ones(50)
    assert [one.statistic(w)(once) for w in WORDS] == pytest.approx([two.statistic(w)(once) for w in WORDS])


def test_odds_keep_the_order_where_probabilities_are_all_one():
    scores = np.array([[40.0, 0.0, 0.0], [41.0, 0.0, 0.0], [0.0, 900.0, -900.0]])
    odds = log_odds(scores)
    assert odds[1, 0] > odds[0, 0] and np.isfinite(odds).all()
    np.testing.assert_allclose(odds[0], [40 - np.log(2), -np.log(np.exp(40) + 1), -np.log(np.exp(40) + 1)], rtol=1e-12)


def test_areas_of_classes_that_have_none():
    areas = Curves(np.random.default_rng(0).normal(size=(6, 3)), np.array([0, 0, 1, 1, 0, 1])).areas()
    assert np.isnan(areas[2]) and not np.isnan(areas[:2]).any()
    assert Curves(np.zeros((3, 2)), np.array([1, 1, 1])).mean_area() == 0.0


def test_resamples_are_seeded_paired_and_hold_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(5)
    held = dict.fromkeys(("auc", "f1"), 0)
    truth = {}
    big = rng.integers(0, 2, 40_000)
    scores = rng.normal(0, 1, (40_000, 1)) + 2.0 * (big[:, None] - 0.5)
    whole = Scored(scores, big, 2)
    truth = {word: whole.statistic(word)(np.ones(40_000)) for word in held}
    for start in range(0, 24_000, 400):
        part = slice(start, start + 400)
        found = Scored(scores[part], big[part], 2)
        found._num_resamples = lambda word: 200  # enough for an interval, and quick
        for word, measure in found.measures(list(held), seed=start).items():
            held[word] += measure.estimate().holds(truth[word])
    assert all(50 <= count <= 60 for count in held.values()), held  # 95 % of 60
    one, again = (Scored(scores[:99], big[:99], 2).measures(WORDS[1:], 4) for _ in range(2))
    assert all(np.array_equal(one[word].resamples, again[word].resamples) for word in one)
    same = differences(one, again)
    assert all((same[word].value, same[word].low) == (0.0, None) for word in one)


def test_a_metric_asked_for_alone_has_the_same_resamples():
    rng = np.random.default_rng(6)
    scored = Scored(rng.normal(size=(40, 4)), rng.integers(0, 4, 40), 4)
    alone, together = scored.measures(["f1"], 1), scored.measures(WORDS, 1)
    np.testing.assert_array_equal(alone["f1"].resamples, together["f1"].resamples)


def test_a_calibrated_model_is_seldom_shown_to_be_badly_calibrated():
    rng = np.random.default_rng(7)
    beyond = 0
    for trial in range(60):
        scores = rng.normal(0, 2, (300, 1))
        labels = (rng.random(300) < 1 / (1 + np.exp(-scores[:, 0]))).astype(int)
        found, overconfident = (Scored(factor * scores, labels, 2).calibration(trial) for factor in (1, 4))
        beyond += found.expected > found.chance
        assert overconfident.expected > 2 * overconfident.chance
    assert beyond <= 8  # 5 % of 60 are 3


def test_the_basic_interval_mirrors_the_percentile_one():
    resamples = np.linspace(0.04, 0.11, 1001)
    plain, basic = interval(0.05, resamples), interval(0.05, resamples, basic=True)
    assert basic.high == pytest.approx(0.1 - plain.low)
    unbounded = interval(0.05, resamples, basic=True, lowest=None)
    assert basic.low == 0.0 and unbounded.low == pytest.approx(0.1 - plain.high)


def test_resamples_that_are_all_alike_give_no_interval():
    assert Measure(1.0, np.ones(200)).estimate().low is None
    assert Measure(1.0, np.zeros(0)).estimate().low is None


def test_many_ranks_take_fewer_resamples_and_too_many_none(monkeypatch):
    scored = Scored(np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 3, 3)
    monkeypatch.setattr("manyfit.report.classification._MOST_STEPS", 90 * 250)
    assert [len(one.resamples) for one in scored.measures(["auc", "f1"]).values()] == [250, 2000]
    monkeypatch.setattr("manyfit.report.classification._MOST_RANKS", 80)
    assert scored.measures(["auc"])["auc"].estimate().low is None


def test_the_bins_hold_every_example():
    scores = np.log(np.array([[0.6, 0.4], [0.61, 0.39], [0.3, 0.7], [1 - 1e-12, 1e-12]]))
    calibration = Scored(scores, np.array([0, 1, 1, 0]), 2).calibration()
    assert [one.num_examples for one in calibration.bins if one.num_examples] == [1, 1, 1, 1]
    first = next(one for one in calibration.bins if one.num_examples)
    assert (first.low, first.high) == (8 / 15, 9 / 15)  # 0.6 belongs to the bin that it ends
    assert first.gap == pytest.approx(-0.4)
    assert calibration.expected == pytest.approx((0.4 + 0.61 + 0.3) / 4)
    assert calibration.maximum == pytest.approx(0.61)


def test_confusions_are_sorted_and_shares_of_the_true_class():
    matrix = np.array([[5, 3, 2], [0, 10, 0], [4, 0, 0]])
    found = confusions(matrix, ("a", "b", "c"))
    assert [(one["truth"], one["predicted"], one["num_examples"], one["share"]) for one in found] == [
        ("c", "a", 4, 1.0),
        ("a", "b", 3, 0.3),
        ("a", "c", 2, 0.2),
    ]
    assert len(confusions(matrix, ("a", "b", "c"), most=1)) == 1 and confusions(np.eye(2, dtype=int), "ab") == []


def test_the_area_of_two_classes_is_that_of_both():
    rows = per_class(np.array([[3, 1], [2, 4]]), ("a", "b"), np.array([0.75]))
    assert [row["auc"] for row in rows.values()] == [0.75, 0.75]
    assert [row["accuracy"] for row in rows.values()] == [0.7, 0.7]


def test_what_is_told_follows_the_classes_and_the_run():
    assert words_told(2, []) == ["auc", "f1", "calibration_error"]
    assert words_told(47, ["top_10", "f1"])[:3] == ["top_3", "top_5", "top_10"]
    assert words_told(4, ["top_5"])[0] == "top_3"  # evaluated on fewer classes than it was asked for
