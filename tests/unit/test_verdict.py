"""The verdict on a run, from numbers alone."""

import pytest

from manyfit.report.verdict import judge

GPU = {
    "strategy.cross_device_ops": "auto",
    "precision.name": "float32",
    "jit_compile": False,
    "steps_per_execution": "auto",
    "gradient_accumulation": 1,
    "model.trainable": "all",
}


def verdict(step, cached, without_all_reduce=None, launch=None, *, settings=GPU, **place):
    numbers = {
        "step_seconds": step,
        "step_seconds_cached": cached,
        "step_seconds_without_all_reduce": without_all_reduce,
        "launch_seconds": launch,
    }
    return judge(numbers, settings=settings, **{"on_gpu": True, **place})


def test_a_step_that_waits_for_pictures_is_input_bound():
    found = verdict(0.100, 0.038, settings=GPU | {"model.trainable": "none", "model.feature_cache": "off"})
    assert found.bound == "input"
    assert found.share == pytest.approx(0.62)
    assert found.sentence == "input-bound: 62% of a step waits for pictures; try model.feature_cache=auto"


def test_what_is_set_or_does_not_exist_is_not_advised():
    both = GPU | {"model.trainable": "none", "model.feature_cache": "off", "data.cache": "off"}
    assert verdict(1.0, 0.4, settings=both).advice == "try model.feature_cache=auto or data.cache=memory"
    assert verdict(1.0, 0.4, settings=GPU | {"data.cache": "off"}).advice == "try data.cache=memory"
    assert "in memory already" in verdict(1.0, 0.4, settings=GPU | {"data.cache": "memory"}).advice
    trained = both | {"model.trainable": "all"}
    assert "feature_cache" not in verdict(1.0, 0.4, settings=trained).advice
    assert "=" not in verdict(1.0, 0.4).advice


def test_a_step_that_sums_gradients_is_synchronisation_bound():
    found = verdict(0.100, 0.099, 0.060, 0.001, num_replicas=4)
    assert (found.bound, round(found.share, 2)) == ("synchronisation", 0.39)
    assert found.advice == "try a larger batch (batch=auto), gradient_accumulation=2 or strategy.replicas=2"
    slow_ring = GPU | {"strategy.cross_device_ops": "hierarchical", "gradient_accumulation": 2}
    advice = verdict(0.1, 0.1, 0.05, settings=slow_ring, num_replicas=2).advice
    assert "gradient_accumulation=4" in advice and "strategy.cross_device_ops=nccl" in advice
    assert "one CPU" in verdict(0.1, 0.1, 0.05, num_replicas=2, on_gpu=False).advice


@pytest.mark.parametrize(
    ("on_gpu", "communication", "advice"),
    [
        (False, "auto", "try a larger batch (batch=auto), gradient_accumulation=2 or fewer workers"),
        (True, "auto", "try a larger batch (batch=auto), gradient_accumulation=2 or fewer workers"),
        (
            True,
            "ring",
            "try a larger batch (batch=auto), gradient_accumulation=2, strategy.communication=nccl or fewer workers",
        ),
    ],
)
def test_between_workers_fewer_or_larger_sums_are_advised(on_gpu, communication, advice):
    settings = GPU | {"strategy.name": "multi_worker", "strategy.communication": communication}
    found = verdict(0.1, 0.1, 0.05, settings=settings, num_replicas=4, on_gpu=on_gpu)
    assert (found.bound, found.advice) == ("synchronisation", advice)


def test_a_step_that_is_mostly_its_start_is_launch_bound():
    found = verdict(0.0010, 0.0010, None, 0.0008, settings=GPU | {"steps_per_execution": 1})
    assert (found.bound, found.share) == ("launch", pytest.approx(0.8))
    assert found.advice == "try steps_per_execution=auto or a larger batch (batch=auto) or jit_compile=true"
    assert "steps_per_execution" not in verdict(0.001, 0.001, None, 0.0008).advice


def test_all_else_is_compute_bound():
    found = verdict(0.100, 0.095, 0.090, 0.030, num_replicas=2)
    assert (found.bound, found.share) == ("compute", pytest.approx(0.60))
    assert found.advice == "the devices are busy, as they should be: try precision=mixed_float16 or more GPUs"
    frozen = GPU | {"model.trainable": "none", "model.feature_cache": "off"}
    assert "model.feature_cache=auto" in verdict(0.1, 0.1, settings=frozen).advice
    assert "try a GPU" in verdict(0.1, 0.1, on_gpu=False).advice


def test_shares_sum_to_one_whatever_the_noise():
    for numbers in [(0.1, 0.2, 0.3, 0.4), (0.3, 0.2, 0.1, 0.2), (0.1, 0.1, 0.0, 0.0), (0.2, 0.1, None, 0.5)]:
        found = verdict(*numbers)
        assert sum(found.shares.values()) == pytest.approx(1.0)
        assert all(0 <= share <= 1 for share in found.shares.values())


def test_a_busy_machine_is_not_called_slow_input():
    numbers = {"step_seconds": 0.100, "step_seconds_cached": 0.040, "input_seconds": 0.002}
    found = judge(numbers, settings=GPU, on_gpu=True)
    assert (found.bound, found.shares["input"]) == ("compute", pytest.approx(0.002 / 0.042))


def test_a_run_faster_than_its_probe_waited_for_nothing():
    assert verdict(0.1, 0.15).shares["input"] == 0.0


def test_it_is_plain_for_the_record():
    found = verdict(0.1, 0.05).as_dict()
    assert found["numbers"]["step_seconds"] == 0.1
    assert list(found) == ["bound", "share", "shares", "advice", "sentence", "numbers"]


@pytest.mark.parametrize(("step", "cached"), [(None, 0.1), (0.1, None), (0.0, 0.1)])
def test_numbers_that_say_nothing_are_refused(step, cached):
    with pytest.raises(ValueError, match="step_seconds"):
        verdict(step, cached)
