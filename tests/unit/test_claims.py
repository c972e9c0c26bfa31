"""Means, ratios, differences and their intervals: right values, and that the intervals hold what they promise."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyfit.report.claims import Estimate, difference, differs, mean, proportions, ratio, t_975

speeds = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("degrees", "expected"),
    # Critical values of Student's t as printed in NIST/SEMATECH 1.3.6.7.2, also beyond what the module tabulates.
    [(1, 12.706), (2, 4.303), (4, 2.776), (10, 2.228), (30, 2.042), (40, 2.021), (60, 2.000), (100, 1.984)],
)
def test_quantiles_of_student(degrees, expected):
    assert t_975(degrees) == pytest.approx(expected, abs=6e-4)


@given(st.floats(1, 500), st.floats(1, 500))
def test_fewer_degrees_of_freedom_never_give_a_narrower_interval(first, second):
    few, many = sorted((first, second))
    assert t_975(few) >= t_975(many) > 1.959


def test_no_degree_of_freedom_is_a_programming_error():
    with pytest.raises(ValueError, match="no interval"):
        t_975(0.5)


def test_one_value_has_no_interval():
    assert mean([5.0]) == Estimate(5.0, None, None, (1,))
    assert mean([5.0]).one_sample and not mean([5.0, 6.0]).one_sample


def test_the_interval_of_a_mean():
    # s = 2, n = 3: 4.303 * 2 / sqrt(3) = 4.9687
    found = mean([10.0, 12.0, 14.0])
    assert (found.value, found.samples) == (12.0, (3,))
    assert found.low == pytest.approx(12 - 4.96868, abs=1e-4)
    assert found.high == pytest.approx(12 + 4.96868, abs=1e-4)


def test_the_interval_of_a_difference_is_welchs():
    # Variances 1 and 4, three values each: error = sqrt(5/3) = 1.29099; degrees = (5/3)^2 / ((1/9 + 16/9) / 2) = 2.94,
    # rounded down to 2: half a width of 4.303 * 1.29099 = 5.5551.
    found = difference([4.0, 5.0, 6.0], [1.0, 3.0, 5.0])
    assert found.value == pytest.approx(2.0)
    assert (found.low, found.high) == (pytest.approx(2 - 5.5551, abs=1e-3), pytest.approx(2 + 5.5551, abs=1e-3))


def test_equal_repeats_differ_by_exactly_their_difference():
    assert difference([0.5, 0.5], [0.25, 0.25]) == Estimate(0.25, 0.25, 0.25, (2, 2))


@given(speeds, speeds)
def test_a_ratio_turned_round_is_its_inverse(ours, theirs):
    there, back = ratio(ours, theirs), ratio(theirs, ours)
    assert there.value * back.value == pytest.approx(1.0)
    if there.low is not None and back.low is not None and there.high < 1e200:
        assert there.low * back.high == pytest.approx(1.0, rel=1e-6)
        assert there.low <= there.value <= there.high
    assert (there.low is None) == (len(ours) < 2 or len(theirs) < 2) == there.one_sample


def test_a_ratio_of_geometric_means():
    assert ratio([200.0, 800.0], [100.0, 100.0]).value == pytest.approx(4.0)


def test_ninety_five_per_cent_of_the_intervals_hold_the_truth():
    draw = random.Random(7)
    held = {"mean": 0, "difference": 0}
    for _ in range(2000):
        ours = [draw.gauss(10, 2) for _ in range(3)]
        theirs = [draw.gauss(8, 1) for _ in range(4)]
        held["mean"] += mean(ours).holds(10)
        held["difference"] += difference(ours, theirs).holds(2)
    assert 0.935 < held["mean"] / 2000 < 0.965
    assert 0.935 < held["difference"] / 2000 < 0.99  # rounding the degrees down makes it wider, never narrower


def test_nine_hundred_and_fifty_of_a_thousand_differences_of_equal_models_are_noise():
    draw, noise = random.Random(3), 0
    for _ in range(600):
        ours, theirs = (sum(draw.random() < 0.95 for _ in range(200)) / 200 for _ in range(2))
        noise += proportions(ours, theirs, 200, 200).holds(0.0)
    assert 0.93 < noise / 600 < 0.985


@given(st.floats(0, 1), st.integers(1, 10**6))
def test_equal_accuracies_are_within_noise_also_at_the_ends(accuracy, num):
    assert proportions(accuracy, accuracy, num, num).holds(0.0)


def test_many_examples_tell_more_apart():
    assert proportions(0.92, 0.90, 200, 200).holds(0.0)
    assert not proportions(0.92, 0.90, 20_000, 20_000).holds(0.0)


@pytest.mark.parametrize(
    ("speed_up", "spread", "expected"),
    [
        (Estimate(1.5), 0.0, True),
        (Estimate(1.01), 0.0, False),  # below two per cent
        (Estimate(0.985), 0.0, False),
        (Estimate(0.9), 0.0, True),
        (Estimate(1.3), 0.4, False),  # the epochs of one run differ by more
        (Estimate(1.3, 0.9, 1.9, (2, 2)), 0.0, False),  # one lies in its interval
        (Estimate(1.3, 1.2, 1.4, (3, 3)), 0.9, True),  # repeats know better than the epochs
        (Estimate(1.01, 1.005, 1.015, (9, 9)), 0.0, False),
    ],
)
def test_what_is_more_than_noise(speed_up, spread, expected):
    assert differs(speed_up, spread) is expected


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_a_mean_lies_in_its_interval(values):
    found = mean(values)
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(statistics.fmean(values))
    assert math.isfinite(found.high - found.low)
