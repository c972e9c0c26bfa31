"""Intervals and tests on one set of examples: against exact values, and against what they promise."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyfit.report.evaluation_pairs import pairs_of
from manyfit.report.paired import bootstrap, holm, mcnemar, share


class Told:
    def __init__(self, name, right, losses=None, fingerprint="same"):
        self.name, self.fingerprint, self.measures = name, fingerprint, {}
        self.right = np.asarray(right, bool)
        self.losses = np.where(self.right, 0.1, 2.0) if losses is None else np.asarray(losses)


def by_counting(only_first, only_second):
    """McNemar's exact p by walking through every outcome."""
    total = only_first + only_second
    seen = abs(only_first - only_second)
    outcomes = [sum(one) for one in itertools.product((0, 1), repeat=total)]
    return sum(abs(total - 2 * k) >= seen for k in outcomes) / len(outcomes)


@given(st.integers(0, 6), st.integers(0, 6))
def test_mcnemar_is_the_share_of_outcomes_at_least_as_far_apart(first, second):
    assert mcnemar(first, second) == pytest.approx(min(1.0, by_counting(first, second)), rel=1e-9)


def test_mcnemar_of_many_examples_is_finite_and_small():
    assert 0 < mcnemar(20_000, 21_000) < 1e-5
    assert mcnemar(0, 1000) == pytest.approx(2.0**-999, rel=1e-6)


def test_the_bootstrap_is_seeded_and_as_wide_as_the_standard_error():
    rng = np.random.default_rng(3)
    values = rng.normal(5.0, 2.0, 900)
    one, again, other = bootstrap(values, 1), bootstrap(values, 1), bootstrap(values, 2)
    assert one == again and one != other
    assert one.value == pytest.approx(values.mean())
    assert (one.high - one.low) / 2 == pytest.approx(1.96 * values.std() / math.sqrt(900), rel=0.06)


def test_the_interval_of_a_share_holds_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    held = [share(rng.random(200) < 0.8, seed).holds(0.8) for seed in range(120)]
    assert 0.88 <= np.mean(held) <= 1.0


def test_resamples_larger_than_a_block_are_drawn_in_parts():
    values = np.arange(50_000) % 2
    one = bootstrap(values, 0)
    assert one.low < 0.5 < one.high and one.high - one.low == pytest.approx(2 * 1.96 * 0.5 / 50_000**0.5, rel=0.1)


@pytest.mark.parametrize("right", [True, False])
def test_a_share_of_all_or_none_is_not_certain(right):
    one = share(np.full(50, right))
    assert one.value == float(right)
    assert one.high - one.low == pytest.approx(3.8415 / 53.8415, rel=1e-3)
    assert one.low >= 0 and one.high <= 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
@settings(max_examples=60)
def test_holm_only_raises_and_keeps_the_order(p_values):
    corrected = holm(p_values)
    assert all(after >= before for before, after in zip(p_values, corrected, strict=True))
    assert max(corrected) <= 1
    order = np.argsort(p_values, kind="stable")
    assert all(np.diff(np.array(corrected)[order]) >= 0)
    assert min(corrected) == pytest.approx(min(1.0, len(p_values) * min(p_values)))


def test_a_better_run_is_called_better_and_the_reverse_worse():
    base = np.tile([True, True, False, False], 50)
    better = base | (np.arange(200) < 60)
    (pair,), reasons = pairs_of([Told("A", base), Told("B", better)])
    assert not reasons
    assert (pair.only_baseline, pair.only_other) == (0, 30)
    assert pair.accuracy.value == pytest.approx(0.15) and pair.accuracy.low > 0
    assert pair.loss.value < 0
    assert pair.verdict == "better" and pair.sentence().startswith("B is better than A: accuracy +15.00 points")
    (pair,), _ = pairs_of([Told("B", better), Told("A", base)])
    assert pair.verdict == "worse" and pair.p_value == pytest.approx(2.0**-29)


def test_a_chance_difference_is_none():
    base = np.arange(100) % 2 == 0
    other = base.copy()
    other[[0, 1, 3]] = [False, True, True]
    (pair,), _ = pairs_of([Told("A", base), Told("B", other)])
    assert pair.verdict == "no difference shown" and pair.accuracy.holds(0.0)
    assert "No difference between B and A is shown" in pair.sentence()


def test_several_tests_are_corrected():
    base = np.zeros(40, bool)
    runs = [Told("A", base), *(Told(name, np.arange(40) < 6) for name in "BCD")]
    pairs, _ = pairs_of(runs)
    assert [pair.p_value for pair in pairs] == [pytest.approx(3 * 2 * 0.5**6)] * 3
    assert all(pair.verdict == "no difference shown" for pair in pairs)
    assert "corrected for 3 tests" in pairs[0].sentence()


def test_other_examples_are_never_paired():
    pairs, reasons = pairs_of([Told("A", [True, False]), Told("B", [True, True, True], fingerprint="other")])
    assert pairs == [] and "B was evaluated on other examples than A" in reasons[0]
