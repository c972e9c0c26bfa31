"""BatchPlan: the arithmetic, its refusals, and what holds for every plan."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyfit.batch import BatchPlan
from manyfit.config import BatchConfig
from manyfit.errors import ConfigError


def make(num_train=2000, num_validation=400, num_replicas=1, gradient_accumulation=1, **batch):
    return BatchPlan.make(
        BatchConfig(**batch),
        num_train=num_train,
        num_validation=num_validation,
        num_replicas=num_replicas,
        gradient_accumulation=gradient_accumulation,
    )


def refused(*said, **arguments):
    with pytest.raises(ConfigError) as caught:
        make(**arguments)
    for text in said:
        assert text in str(caught.value)
    return caught.value


def test_a_global_size_is_shared_by_the_replicas():
    plan = make(global_batch_size=64, num_replicas=4)
    assert (plan.per_replica_batch_size, plan.global_batch_size) == (16, 64)


def test_a_size_a_replica_grows_with_the_replicas():
    plan = make(per_replica_batch_size=16, num_replicas=4)
    assert (plan.per_replica_batch_size, plan.global_batch_size) == (16, 64)


def test_padding_fills_the_last_step_and_every_example_counts():
    plan = make(num_train=37, global_batch_size=8, num_replicas=4)
    assert (plan.steps_per_epoch, plan.padding_rows, plan.examples_per_epoch) == (5, 3, 37)


def test_dropping_leaves_the_last_examples_out():
    plan = make(num_train=37, global_batch_size=8, remainder="drop")
    assert (plan.steps_per_epoch, plan.padding_rows, plan.examples_per_epoch) == (4, 0, 32)


def test_evaluation_pads_even_where_training_drops():
    plan = make(num_validation=37, global_batch_size=8, remainder="drop")
    assert (plan.validation_steps, plan.validation_padding_rows) == (5, 3)


def test_a_validation_split_smaller_than_a_batch_is_padded():
    plan = make(num_validation=3, global_batch_size=64, num_replicas=4)
    assert (plan.validation_steps, plan.validation_padding_rows) == (1, 61)


def test_no_validation_has_no_steps():
    plan = make(num_validation=0)
    assert (plan.validation_steps, plan.validation_padding_rows) == (0, 0)


def test_accumulation_makes_the_step_larger_not_the_micro_batch():
    plan = make(num_train=100, per_replica_batch_size=4, num_replicas=2, gradient_accumulation=3)
    assert (plan.global_batch_size, plan.examples_per_step, plan.rows_per_replica_per_step) == (8, 24, 12)
    assert (plan.steps_per_epoch, plan.padding_rows, plan.validation_steps) == (5, 20, 50)


def test_the_default_is_32_a_replica():
    plan = make(num_replicas=4)
    assert (plan.per_replica_batch_size, plan.size_was_reduced) == (32, False)


@pytest.mark.parametrize(
    ("num_train", "num_replicas", "expected"), [(37, 4, 9), (31, 1, 31), (4, 4, 1), (128, 4, 32), (127, 4, 31)]
)
def test_the_default_shrinks_to_fit_a_small_split(num_train, num_replicas, expected):
    plan = make(num_train=num_train, num_replicas=num_replicas)
    assert plan.per_replica_batch_size == expected
    assert plan.size_was_reduced == (expected < 32)


@pytest.mark.parametrize(
    ("size", "num_replicas", "nearest"),
    [(30, 4, "28 or 32"), (3, 4, "batch.global_batch_size=4."), (1, 2, "batch.global_batch_size=2."), (7, 3, "6 or 9")],
)
def test_an_uneven_global_size_names_both_neighbours(size, num_replicas, nearest):
    refused(f"batch.global_batch_size={size}", f"{num_replicas} replicas", nearest, global_batch_size=size,
            num_replicas=num_replicas)  # fmt: skip


def test_a_neighbour_larger_than_the_split_is_not_named():
    error = refused("does not split evenly", num_train=31, global_batch_size=30, num_replicas=4)
    assert error.remedy == "Give batch.global_batch_size=28."


def test_a_step_larger_than_the_split_names_the_largest_that_fits():
    assert "=96 or less" in refused("128", num_train=99, global_batch_size=128, num_replicas=4).remedy
    error = refused("x 4 replicas", "steps of 128 examples", num_train=99, per_replica_batch_size=32, num_replicas=4)
    assert "batch.per_replica_batch_size=24 or less" in error.remedy


def test_accumulation_is_named_when_it_makes_the_step_too_large():
    arguments = {"num_train": 100, "global_batch_size": 64, "gradient_accumulation": 2, "num_replicas": 2}
    assert "=50 or less" in refused("gradient_accumulation=2", "128 examples", **arguments).remedy


def test_fewer_examples_than_replicas_is_refused_even_by_default():
    assert "strategy.replicas=3 or fewer" in refused("3 examples", "4 replicas", num_train=3, num_replicas=4).remedy


def test_fewer_examples_than_micro_batches_names_what_would_fit():
    error = refused("need at least 12", num_train=8, num_replicas=4, gradient_accumulation=3)
    assert "strategy.replicas=2 or fewer or gradient_accumulation=2 or less" in error.remedy


def test_an_empty_split_is_refused():
    refused("no examples", num_train=0)


@pytest.mark.parametrize("key", ["global_batch_size", "per_replica_batch_size"])
@pytest.mark.parametrize("size", [0, -1])
def test_a_size_below_one_is_refused(key, size):
    refused(f"batch.{key}={size}", **{key: size})


def test_a_size_that_became_zero_after_its_check_is_refused():
    batch = BatchConfig(per_replica_batch_size=1)
    batch.per_replica_batch_size = 0
    with pytest.raises(ConfigError, match="from 1 to 5"):
        BatchPlan.make(batch, num_train=10, num_validation=0, num_replicas=2)


@pytest.mark.parametrize("arguments", [{"num_replicas": 0}, {"num_validation": -1}])
def test_an_impossible_call_is_a_programming_error(arguments):
    with pytest.raises(ValueError, match="make no plan"):
        make(**arguments)


def test_the_learning_rate_scales_with_the_examples_of_a_step():
    plan = make(global_batch_size=64, num_replicas=2, gradient_accumulation=2)
    assert plan.learning_rate_scale("linear", 32) == 4.0
    assert plan.learning_rate_scale("sqrt", 32) == 2.0
    assert plan.learning_rate_scale("none", 32) == 1.0
    with pytest.raises(ValueError, match="cubic"):
        plan.learning_rate_scale("cubic", 32)


@given(
    per_replica=st.integers(1, 300),
    num_replicas=st.integers(1, 16),
    accumulation=st.integers(1, 8),
    num_train=st.integers(1, 100_000),
    num_validation=st.integers(0, 10_000),
    remainder=st.sampled_from(["pad", "drop"]),
)
def test_every_plan_keeps_its_promises(per_replica, num_replicas, accumulation, num_train, num_validation, remainder):
    """Either the step fits and every example is accounted for, or the remedy names a size that works."""
    arguments = {
        "num_train": num_train,
        "num_validation": num_validation,
        "num_replicas": num_replicas,
        "gradient_accumulation": accumulation,
        "remainder": remainder,
    }
    step = per_replica * num_replicas * accumulation
    try:
        plan = make(per_replica_batch_size=per_replica, **arguments)
    except ConfigError as error:
        assert step > num_train
        if num_train >= num_replicas * accumulation:
            named = int(error.remedy.split("=")[1].split()[0])
            assert make(per_replica_batch_size=named, **arguments).steps_per_epoch >= 1
        return
    assert step <= num_train
    assert plan == make(global_batch_size=per_replica * num_replicas, **arguments)
    assert plan.examples_per_step == num_replicas * plan.rows_per_replica_per_step == step
    assert plan.steps_per_epoch >= 1
    assert plan.steps_per_epoch * step == plan.examples_per_epoch + plan.padding_rows
    assert 0 <= plan.padding_rows < step
    assert plan.examples_per_epoch == (num_train if remainder == "pad" else num_train - num_train % step)
    assert plan.validation_steps == math.ceil(num_validation / plan.global_batch_size)
    assert 0 <= plan.validation_padding_rows < plan.global_batch_size


@given(
    size=st.integers(1, 5000),
    num_replicas=st.integers(1, 16),
    num_train=st.integers(16, 4000),
)
def test_every_size_named_by_a_refusal_works(size, num_replicas, num_train):
    try:
        plan = make(global_batch_size=size, num_replicas=num_replicas, num_train=num_train)
    except ConfigError as error:
        named = [int(word.rstrip(".")) for word in error.remedy.replace("=", " ").split() if word.rstrip(".").isdigit()]
        assert named
        for other in named:
            assert make(global_batch_size=other, num_replicas=num_replicas, num_train=num_train)
    else:
        assert plan.global_batch_size == size


@given(num_train=st.integers(1, 5000), num_replicas=st.integers(1, 16))
def test_the_default_never_fails_while_each_replica_can_have_an_example(num_train, num_replicas):
    if num_train >= num_replicas:
        assert 1 <= make(num_train=num_train, num_replicas=num_replicas).per_replica_batch_size <= 32
    else:
        refused("at least", num_train=num_train, num_replicas=num_replicas)
