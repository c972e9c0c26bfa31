"""The learning rate of every epoch, against the formulas and the numbers of the seed experiments."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyfit.batch import BatchPlan
from manyfit.config import (
    AdamConfig,
    BatchConfig,
    CosineConfig,
    RampConfig,
    RunConfig,
    ScheduleConfig,
    StepConfig,
)
from manyfit.schedule import learning_rate_factor, learning_rates


def factors(schedule, epochs):
    return [learning_rate_factor(schedule, epoch, epochs) for epoch in range(epochs)]


def test_constant_is_one():
    assert factors(ScheduleConfig(), 4) == [1.0] * 4


def test_ramp_gives_the_rates_of_the_seed():
    """Start = min = 1e-5, max = 5e-5 x 4 replicas, 5 epochs up, none sustained, decay .8."""

    def seed(epoch, start=1e-5, highest=20e-5, lowest=1e-5, up=5, sustain=0, decay=0.8):
        if epoch < up:
            return (highest - start) / up * epoch + start
        if epoch < up + sustain:
            return highest
        return (highest - lowest) * decay ** (epoch - up - sustain) + lowest

    config = RunConfig(
        optimizer=AdamConfig(learning_rate=20e-5),
        schedule=RampConfig(start_factor=1 / 20, max_factor=1.0, min_factor=1 / 20),
        epochs=12,
    )
    plan = BatchPlan.make(config.batch, num_train=18_610, num_validation=4652, num_replicas=4)
    assert learning_rates(config, plan) == pytest.approx([seed(epoch) for epoch in range(12)])


def test_ramp_sustains():
    ramp = RampConfig(start_factor=0.0, min_factor=0.0, ramp_up_epochs=2, sustain_epochs=3, decay=0.5)
    assert factors(ramp, 8) == [0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.5, 0.25]


def test_ramp_without_an_ascent_starts_at_the_top():
    assert factors(RampConfig(ramp_up_epochs=0, min_factor=0.0, decay=0.5), 3) == [1.0, 0.5, 0.25]


def test_step_gives_the_rates_of_the_tutorial():
    config = RunConfig(schedule=StepConfig(), epochs=12)
    plan = BatchPlan.make(config.batch, num_train=60_000, num_validation=10_000, num_replicas=2)
    assert learning_rates(config, plan) == pytest.approx([1e-3] * 3 + [1e-4] * 4 + [1e-5] * 5)


def test_step_without_boundaries_is_constant():
    assert factors(StepConfig(boundaries=[], factors=[]), 3) == [1.0] * 3


def test_step_from_the_first_epoch():
    assert factors(StepConfig(boundaries=[0], factors=[0.5]), 2) == [0.5, 0.5]


def test_cosine_falls_from_one_towards_the_minimum():
    got = factors(CosineConfig(min_factor=0.1), 10)
    assert got[0] == 1.0
    assert got == pytest.approx([0.1 + 0.9 * (1 + math.cos(math.pi * epoch / 10)) / 2 for epoch in range(10)])


def test_cosine_longer_in_warm_up_than_it_lasts_only_warms_up():
    assert factors(CosineConfig(warmup_epochs=3), 3) == [0.25, 0.5, 0.75]


@pytest.mark.parametrize(("rule", "scale"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_the_batch_scales_every_epoch(rule, scale):
    config = RunConfig(
        optimizer=AdamConfig(learning_rate=0.5),
        schedule=StepConfig(scale_with=rule, boundaries=[1], factors=[0.1]),
        batch=BatchConfig(global_batch_size=128),
        epochs=2,
    )
    plan = BatchPlan.make(config.batch, num_train=2000, num_validation=400, num_replicas=4)
    assert learning_rates(config, plan) == pytest.approx([0.5 * scale, 0.05 * scale])


@given(
    schedule=st.one_of(
        st.builds(
            RampConfig,
            start_factor=st.floats(0, 1),
            min_factor=st.floats(0, 1),
            ramp_up_epochs=st.integers(0, 9),
            sustain_epochs=st.integers(0, 9),
            decay=st.floats(0, 1),
        ),
        st.builds(CosineConfig, warmup_epochs=st.integers(0, 30), min_factor=st.floats(0, 1)),
    ),
    epochs=st.integers(1, 40),
)
def test_no_factor_leaves_its_bounds(schedule, epochs):
    assert all(-1e-12 <= factor <= 1 + 1e-12 for factor in factors(schedule, epochs))
