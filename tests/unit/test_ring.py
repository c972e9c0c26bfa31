"""The model of summing over a ring: known numbers, its fit to points that it made, and what it predicts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyfit.errors import ConfigError
from manyfit.report.ring import Link, Ring, Sum, bytes_of, fit, miss, outlook, predict_machines

POINTS = [(workers, bytes_of(parameters)) for workers in (2, 3, 4, 8) for parameters in (1e5, 1e6, 25e6)]


def test_a_sum_takes_its_messages_and_its_bytes():
    # 4 workers: 6 messages, for each of two sums, of 10 µs; each sends 3/2 of 100 MB at 1 GB/s.
    ring = Ring(10e-6, 1e-9)
    assert ring.seconds(4, 100e6) == pytest.approx(12 * 10e-6 + 0.150)
    assert ring.seconds(1, 100e6) == 0.0
    # With ever more workers the bytes of each stop growing, at twice the gradients; the messages do not.
    assert Ring(0.0, 1e-9).seconds(10**6, 100e6) == pytest.approx(0.2, rel=1e-5)
    assert Ring(1e-6, 0.0).seconds(1001, 100e6) == pytest.approx(4e-3)


def test_workers_that_share_cores_take_turns():
    alone, shared = Ring(10e-6, 1e-9), Ring(10e-6, 1e-9, cores=2)
    assert shared.seconds(2, 1e6) == alone.seconds(2, 1e6)
    assert shared.seconds(6, 1e6) == pytest.approx(3 * alone.seconds(6, 1e6))


def test_a_link_is_a_ring_whose_software_costs_nothing():
    ring = Link(gigabits=100, microseconds=20).ring()
    assert (ring.latency, ring.seconds_per_byte) == pytest.approx((20e-6, 1 / 12.5e9))
    both = Ring(5e-6, 1e-9, cores=2).over(Link(100, 20))
    assert both == Ring(pytest.approx(25e-6), pytest.approx(1.08e-9), cores=None)


@pytest.mark.parametrize("link", [(0, 1), (-1, 1), (1, -1), (float("nan"), 1), (1, float("inf"))])
def test_what_is_no_network_is_refused(link):
    with pytest.raises(ConfigError):
        Link(*link)


@given(st.floats(1e-6, 1e-2), st.floats(1e-11, 1e-7), st.sampled_from([None, 2, 4]))
def test_the_fit_finds_the_ring_that_made_the_points(latency, per_byte, cores):
    ring = Ring(latency, per_byte, cores)
    points = [Sum(workers, size, ring.seconds(workers, size)) for workers, size in POINTS]
    found = fit(points[::2], cores)
    assert all(abs(miss(found, point)) < 1e-6 for point in points[1::2])


@given(st.lists(st.tuples(st.sampled_from(POINTS), st.floats(1e-6, 10.0)), min_size=2, max_size=8))
def test_whatever_is_measured_no_term_is_negative(measured):
    found = fit([Sum(*point, seconds) for point, seconds in measured])
    assert found.latency >= 0 and found.seconds_per_byte >= 0 and found.latency + found.seconds_per_byte > 0


def test_a_fit_needs_two_points_of_several_workers():
    with pytest.raises(ValueError, match="two unknown terms; 1 points"):
        fit([Sum(1, 4e6, 0.0), Sum(2, 4e6, 0.01)])


def test_a_miss_is_positive_where_the_model_says_too_much():
    assert miss(Ring(0.0, 2e-9), Sum(2, 1e6, 1e-3)) == pytest.approx(1.0)


def test_predictions_for_machines_that_keep_their_batch():
    # 25M parameters over 100 Gbit/s and 20 µs, a step of 100 ms.
    found = predict_machines(0.1, 25e6, Link(100, 20).ring())
    assert [one.num_machines for one in found] == [8, 32, 256]
    assert found[0].sum_seconds == pytest.approx(28 * 20e-6 + 7 / 8 * 200e6 / 12.5e9)
    assert found[0].efficiency == pytest.approx(0.1 / (0.1 + found[0].sum_seconds)) == pytest.approx(0.873, abs=1e-3)
    assert [one.speed_up for one in found] == pytest.approx([one.num_machines * one.efficiency for one in found])
    assert found[0].efficiency > found[1].efficiency > found[2].efficiency


def test_an_outlook_says_what_it_is_and_what_it_assumes():
    record = {
        "batch": {"global_batch_size": 50, "gradient_accumulation": 2},
        "model": {"num_trainable_parameters": 1_000_000},
        "strategy": {"num_replicas": 4},
    }
    found = outlook([record], 1000.0, Link(10, 20))
    assert found is not None and found.step_seconds == pytest.approx(0.1) and found.rows == 100
    assert found.assumes.startswith("PREDICTION, not measured: machines like this one, each with 100 examples a step")
    names, rows = found.rows_of_table()
    assert names[:2] == ["machines", "replicas"] and [row[:3] for row in rows] == [
        ["8", "32", "7 MB"], ["32", "128", "7.75 MB"], ["256", "1024", "7.97 MB"],
    ]  # fmt: skip
    assert outlook([{**record, "model": {}}], 1000.0, Link(10)) is None
