"""N replicas give the numbers of one, and one gives those of a loop written by hand."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from manyfit.schema.metrics import of_epochs

WORKER = Path(__file__).with_name("same_fit_worker.py")
SOURCE = Path(__file__).parents[2] / "src"
PHASES = (Phase.explicit, Phase.generate)  # no shrinking: each trial is a training
BASE = {"num_examples": 19, "batch": 8, "optimizer": "sgd"}


class Worker:
    """A process that trains cases on a fixed number of replicas."""

    def __init__(self, replicas: int, cross_device_ops: str):
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), str(replicas), cross_device_ops],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )

    def run(self, case: dict) -> dict:
        """What came out of `case`."""
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("RESULT "):
                return json.loads(line.removeprefix("RESULT "))
        raise AssertionError(f"the worker ended with {self.process.wait()} at {case}")

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def worker():
    """Workers by (replicas, cross_device_ops), started when first needed."""
    workers: dict[tuple[int, str], Worker] = {}

    def get(replicas: int, cross_device_ops: str = "one_device") -> Worker:
        key = (replicas, "auto" if replicas == 1 else cross_device_ops)
        if key not in workers:
            workers[key] = Worker(*key)
        return workers[key]

    yield get
    for one in workers.values():
        one.close()


METRICS = ["top_2", "auc", "f1", "calibration_error"]


def assert_same(result: dict, expected: dict, *, tolerance: float = 1e-5, metrics: Sequence[str] = ()) -> None:
    """Every epoch's numbers and every weight agree to float32 rounding."""
    assert "error" not in result, result
    for name in of_epochs(metrics):
        np.testing.assert_allclose(
            result["history"][name], expected["history"][name], rtol=tolerance, atol=1e-6, err_msg=name
        )
    for index, (weight, wanted) in enumerate(zip(result["weights"], expected["weights"], strict=True)):
        np.testing.assert_allclose(weight, wanted, rtol=tolerance, atol=1e-5, err_msg=f"weight {index}")


OPTIMIZERS = {
    "sgd": {},
    "momentum": {"optimizer_arguments": {"momentum": 0.9, "nesterov": True}},
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "adamw", "optimizer_arguments": {"weight_decay": 0.05}},
    "weight_decay": {"optimizer_arguments": {"weight_decay": 0.05}},
    "clip": {"optimizer_arguments": {"global_clipnorm": 0.05}},
    "l2": {"l2": 0.01},
    "class_weight": {"class_weight": [1.0, 3.0, 0.5]},
    "batch_norm": {"batch_norm": True, "optimizer": "adam"},
    "accumulation": {"gradient_accumulation": 2, "batch": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_equal_one_and_one_equals_the_hand_written_loop(worker, replicas, name):
    """Nothing that an optimizer or loss can do depends on the number of replicas."""
    case = {**BASE, **OPTIMIZERS[name]}
    one = worker(1).run(case)
    assert_same(one, worker(1).run({**case, "by_hand": True}))
    assert_same(worker(replicas).run(case), one)


def test_two_replicas_equal_one_with_padding_and_batch_norm(worker):
    """The quick one: nine examples in batches of eight, so that seven rows of the second step are padding."""
    case = {"num_examples": 9, "batch": 8, "optimizer": "adam", "batch_norm": True, "metrics": METRICS}
    one = worker(1).run(case)
    assert_same(one, worker(1).run({**case, "by_hand": True}))
    two = worker(2).run(case)
    assert_same(two, one, metrics=METRICS)
    assert two["history"]["num_trained"] == [9, 9]
    assert two["history"]["num_validated"] == [5, 5]
    assert two["history"]["num_steps"] == [2, 2]
    assert np.shape(two["outputs"]) == (5, 3)
    np.testing.assert_allclose(two["outputs"], one["outputs"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"gradient_accumulation": 2}, {"batch": 12}])
def test_every_metric_counts_each_example_once(worker, more):
    """On four replicas, of which some hold nothing but padding in the last step."""
    case = {**BASE, "num_validation": 9, "metrics": METRICS, **more}
    one, four = worker(1).run(case), worker(4).run(case)
    assert_same(four, one, metrics=METRICS)
    assert len(set(one["history"]["val_auc"])) == 2  # it is a number that moves


@pytest.mark.slow
@pytest.mark.parametrize(("replicas", "cross_device_ops"), [(2, "auto"), (4, "auto"), (4, "hierarchical")])
def test_every_reduction_gives_the_same(worker, replicas, cross_device_ops):
    """The collectives that MirroredStrategy takes by itself, in a process of their own; and the hierarchical copy."""
    case = {**BASE, "optimizer": "adam", "batch_norm": True, "num_examples": 17}
    assert_same(worker(replicas, cross_device_ops).run(case), worker(1).run(case))


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, phases=PHASES)
@given(
    replicas=st.sampled_from([2, 3, 4, 8]),
    rows_per_replica=st.integers(1, 4),
    num_examples=st.integers(1, 40),
    num_validation=st.integers(1, 9),
    batch_norm=st.booleans(),
    optimizer=st.sampled_from(["sgd", "adam", "adamw"]),
    steps_per_execution=st.sampled_from(["auto", 1, 3]),
)
def test_any_split_of_any_data(worker, replicas, rows_per_replica, **drawn):
    """Fewer examples than a batch, fewer than replicas, one more than a batch, primes: the numbers stay."""
    case = {**drawn, "batch": replicas * rows_per_replica, "epochs": 2}
    one = worker(1).run(case)
    assert_same(worker(replicas).run(case), one)
    assert_same(one, worker(1).run({**case, "by_hand": True}))
    assert one["history"]["num_trained"] == [drawn["num_examples"]] * 2
    assert one["history"]["num_validated"] == [drawn["num_validation"]] * 2
    assert np.shape(one["outputs"]) == (drawn["num_validation"], 3)


@pytest.mark.slow
def test_accumulation_equals_one_large_batch(worker):
    """K micro-batches are one batch K times as large, however they lie on the replicas."""
    large = worker(1).run({**BASE, "batch": 12})
    assert_same(worker(1).run({**BASE, "batch": 4, "gradient_accumulation": 3}), large)
    assert_same(worker(2).run({**BASE, "batch": 4, "gradient_accumulation": 3}), large)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [2, 4])
def test_dropout_draws_what_one_replica_draws(worker, replicas):
    """Plain, spatial and row-wise dropout: each replica takes its part of one mask."""
    case = {**BASE, "optimizer": "adam", "dropout": 0.4, "num_examples": 17}
    one = worker(1).run(case)
    assert_same(worker(replicas).run(case), one)
    assert one["history"]["loss"] != worker(1).run({**case, "dropout": 0.0})["history"]["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("more", [{}, {"gradient_accumulation": 2, "class_weight": [1.0, 3.0, 0.5]}])
def test_every_replica_count_sees_the_same_augmented_pictures(worker, replicas, more):
    """All dials at once, with padding beside real rows, with accumulation and class weights."""
    case = {**BASE, "num_examples": 13, "augment": {}, **more}
    one = worker(1).run(case)
    assert_same(worker(replicas).run(case), one, tolerance=1e-4)
    assert one["history"]["loss"] != worker(1).run({**case, "augment": None})["history"]["loss"]
    assert one["history"]["num_trained"] == [13, 13]


@pytest.mark.slow
def test_augmentation_is_the_same_with_xla(worker):
    """The pictures are made outside of what XLA compiles, where other random numbers would come out."""
    case = {**BASE, "augment": {}}
    assert_same(worker(1).run({**case, "jit_compile": True}), worker(1).run(case), tolerance=1e-4)


@pytest.mark.slow
def test_mixed_float16_trains_on_two_replicas(worker):
    """Dynamic loss scaling finds its scale, and what it leaves out is counted."""
    case = {**BASE, "policy": "mixed_float16", "epochs": 4, "learning_rate": 0.1}
    result = worker(2).run(case)
    assert "error" not in result, result
    losses = result["history"]["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
    assert result["iterations"] + result["skipped_steps"] == 4 * 3
    np.testing.assert_allclose(losses, worker(1).run(case)["history"]["loss"], rtol=2e-2)


@pytest.mark.slow
def test_averaged_weights_serve_the_validation(worker):
    """With ema.decay the validation sees the average, on any number of replicas; the training does not."""
    case = {**BASE, "optimizer": "adam", "ema_decay": 0.9}
    plain, one, two = worker(1).run({**BASE, "optimizer": "adam"}), worker(1).run(case), worker(2).run(case)
    assert_same(two, one)
    np.testing.assert_allclose(one["history"]["loss"], plain["history"]["loss"], rtol=1e-6)
    assert abs(one["history"]["val_loss"][-1] - plain["history"]["val_loss"][-1]) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_loss_that_is_not_finite_stops_at_its_step_or_is_skipped(worker, replicas):
    """The message names the step, the rate and the remedies; `skip` leaves the step out and counts it."""
    case = {**BASE, "learning_rate": 1e38, "epochs": 1, "l2": 0.1}
    error = worker(replicas).run(case)["error"]
    assert error.startswith("NonFiniteError") and "step 2 of epoch 1" in error and "learning rate 1e+38" in error
    assert "optimizer.learning_rate" in error and "NCCL_P2P_DISABLE" in error
    skipped = worker(replicas).run({**case, "on_non_finite": "skip"})
    assert skipped["skipped_steps"] == 2 and skipped["iterations"] == 1


@pytest.mark.slow
def test_xla_on_one_device_gives_the_same(worker):
    """jit_compile changes the speed alone."""
    case = {**BASE, "optimizer": "adam", "batch_norm": True}
    assert_same(worker(1).run({**case, "jit_compile": True}), worker(1).run(case), tolerance=1e-4)
