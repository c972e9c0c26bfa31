"""What bounds a step: real probes of small models, whose bounds are far from each other."""

import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from manyfit import probe
from manyfit.callbacks.throughput import EpochRows
from manyfit.command import repository_root
from manyfit.data.examples import Split
from manyfit.data.pipeline import Feed
from manyfit.probe import budget, judge_run, measure
from manyfit.record import RunRecord
from manyfit.replicated import ReplicatedModel

SETTINGS = {"steps_per_execution": 1, "data.cache": "off"}
BATCH, STEPS = 8, 6


def model_of(*layers, shape=(4, 4, 1), steps_per_execution=1):
    network = keras.Sequential([keras.Input(shape), keras.layers.Flatten(), *layers, keras.layers.Dense(3)])
    model = ReplicatedModel(network)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, steps_per_execution=steps_per_execution)
    return model


def data_of(shape=(4, 4, 1)):
    rng = np.random.default_rng(0)
    num = BATCH * STEPS
    images = rng.integers(0, 256, (num, *shape)).astype(np.uint8)
    split = Split("train", rng.integers(0, 3, num).astype(np.int32), images=images)
    return Feed(split, BATCH, STEPS, shape, shuffle_seed=0).distribute(tf.distribute.get_strategy())


def slowed(dataset, seconds):
    """The same data set, each step of which takes its time."""

    def wait(x, y, mask):
        [slept] = tf.numpy_function(lambda: (time.sleep(seconds), np.int32(0))[1:], [], [tf.int32])
        with tf.control_dependencies([slept]):
            return tf.identity(x), y, mask

    return dataset.map(wait).prefetch(1)


@pytest.fixture
def trained(tmp_path):
    """Train a model, and give what `judge_run` takes."""

    def train(model, dataset, epochs=4):
        record = RunRecord.create(tmp_path)
        rows = EpochRows(record, num_train=BATCH * STEPS, steps_per_epoch=STEPS, global_batch_size=BATCH)
        model.fit(dataset, epochs=epochs, steps_per_epoch=STEPS, callbacks=[rows])
        return model, dataset, rows, record

    return train


def judged(arguments, asked=True, settings=SETTINGS, said=None):
    return judge_run(
        *arguments,
        asked=asked,
        settings=settings,
        first_step_seconds=0.1,
        on_gpu=False,
        notify=[].append if said is None else said.append,
    )


def test_a_slow_input_is_the_bound(trained):
    arguments = trained(model_of(), slowed(data_of(), 0.05))
    verdict = judged(arguments)
    assert verdict is not None and verdict.bound == "input", verdict
    assert verdict.share > 0.5
    assert "data.cache=memory" in verdict.advice
    recorded = arguments[-1].data
    assert recorded["verdict"]["bound"] == "input"
    assert recorded["throughput"]["input_wait_share"] == verdict.share
    assert recorded["throughput"]["input_seconds"] > 0.04 > recorded["throughput"]["step_seconds_cached"]
    assert recorded["throughput"]["step_milliseconds_p95"] >= recorded["throughput"]["step_milliseconds_p50"] > 40
    assert recorded["timing"]["probe_seconds"] > 0


def test_a_tiny_step_a_call_is_bound_by_its_launch(trained):
    verdict = judged(trained(model_of(), data_of()))
    assert verdict is not None and verdict.bound == "launch", verdict
    assert "steps_per_execution=auto" in verdict.advice


def test_a_large_step_is_bound_by_its_arithmetic(trained):
    shape = (32, 32, 1)
    convolutions = [keras.layers.Reshape(shape), *(keras.layers.Conv2D(32, 5, padding="same") for _ in range(3))]
    model = model_of(*convolutions, keras.layers.GlobalAveragePooling2D(), shape=shape, steps_per_execution="auto")
    verdict = judged(trained(model, data_of(shape), epochs=2))
    assert verdict is not None and verdict.bound == "compute", verdict


def test_the_model_is_as_it_was_and_the_step_is_not_traced_again(trained):
    model, dataset, *_ = trained(model_of(keras.layers.Dropout(0.5)), data_of())
    variables = (*model.network.variables, *model.optimizer.variables)
    before = [variable.numpy() for variable in variables]
    traces = model._train_steps.experimental_get_tracing_count()
    numbers = measure(model, dataset, step_seconds=0.001, steps_per_call=1)
    assert (
        numbers is not None and None not in {key: numbers[key] for key in ("input_seconds", "launch_seconds")}.values()
    )
    assert model._train_steps.experimental_get_tracing_count() == traces
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert model.num_examples == 0


def test_what_was_not_asked_for_takes_a_twentieth_of_the_training(trained):
    assert (budget("auto", 100.0), budget("auto", 1e6), budget(True, 1.0), budget(False, 1e6)) == (
        5,
        60,
        float("inf"),
        0,
    )
    arguments = trained(model_of(), data_of())
    assert judged(arguments, asked="auto") is judged(arguments, asked=False) is None
    assert "verdict" not in arguments[-1].data


def test_a_small_budget_leaves_out_what_must_be_traced(trained):
    model, dataset, *_ = trained(model_of(), data_of())
    steps = {"step_seconds": 0.001, "steps_per_call": 1.0}
    numbers = measure(model, dataset, **steps, budget_seconds=30.0, trace_seconds=100.0)
    assert numbers is not None and numbers["launch_seconds"] is None and numbers["input_seconds"] is not None
    assert measure(model, dataset, **steps, budget_seconds=1.0) is None


def test_a_run_of_one_call_says_why_it_has_no_verdict(trained):
    said = []
    model = model_of(steps_per_execution=STEPS)
    assert judged(trained(model, data_of(), epochs=1), said=said) is None
    assert "too short" in said[0]


def test_a_probe_that_fails_ends_nothing(trained, monkeypatch):
    def fail(*arguments, **keywords):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    arguments, said = trained(model_of(), data_of()), []
    monkeypatch.setattr(probe, "measure", fail)
    assert judged(arguments, said=said) is None
    assert "OOM" in said[0]
    assert judged(arguments, asked="auto", said=said) is None and len(said) == 1


def test_step_times_are_weighted_by_steps_and_leave_the_first_call_out(tmp_path):
    now = [0.0]
    record = RunRecord.create(tmp_path)
    rows = EpochRows(
        record, num_train=100, steps_per_epoch=100, global_batch_size=1, num_replicas=4, clock=lambda: now[0]
    )
    assert rows.step_seconds() is rows.steps_per_call() is None
    rows.on_train_begin()
    rows.on_epoch_begin(0)
    # The first call traces; 90 steps of 1 s, then single ones of 2 s (eight) and 9 s (one), and a pause outside a call.
    for first, last, seconds in [(0, 0, 50.0), (1, 90, 90.0), *((n, n, 2.0) for n in range(91, 99)), (99, 99, 9.0)]:
        rows.on_train_batch_begin(first)
        now[0] += seconds
        rows.on_train_batch_end(last)
        now[0] += 100.0
    assert (rows.step_seconds(), rows.step_seconds(0.95), rows.step_seconds(1.0)) == (1.0, 2.0, 9.0)
    assert rows.steps_per_call() == 90
    rows.on_epoch_end(0, {"learning_rate": 0.1})
    rows.on_train_end()
    found = record.data["throughput"]
    assert (found["step_milliseconds_p50"], found["step_milliseconds_p95"]) == (1000.0, 2000.0)
    assert found["images_per_second"] == 4 * found["images_per_second_per_replica"] > 0


TWO_REPLICAS = f"""
import sys
sys.path[:0] = [{str(repository_root() / "src")!r}]
import keras, numpy as np, tensorflow as tf
from manyfit import strategy
from manyfit.config import StrategyConfig
from manyfit.data.examples import Split
from manyfit.data.pipeline import Feed
from manyfit.probe import measure
from manyfit.replicated import ReplicatedModel

place = strategy.make(StrategyConfig(device="cpu", replicas=2)).strategy
with place.scope():
    coupled = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    layers = [keras.Input((4, 4, 1)), keras.layers.Flatten(), *coupled, keras.layers.Dense(3)]
    model = ReplicatedModel(keras.Sequential(layers))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, gradient_accumulation=2)
images = np.random.default_rng(0).integers(0, 256, (64, 4, 4, 1)).astype("uint8")
split = Split("train", np.arange(64, dtype="int32") % 3, images=images)
dataset = Feed(split, 32, 2, (4, 4, 1), 2, 0).distribute(place)
model.fit(dataset, epochs=3, steps_per_epoch=2)
before = [variable.numpy() for variable in model.network.variables]
traces = model._train_steps.experimental_get_tracing_count()
numbers = measure(model, dataset, step_seconds=0.01, steps_per_call=2)
assert all(value is not None for value in numbers.values()), numbers
assert numbers["step_seconds_with_barrier"] > 0
assert model._train_steps.experimental_get_tracing_count() == traces
for variable, value in zip(model.network.variables, before):
    for replica in place.experimental_local_results(variable.value):
        np.testing.assert_array_equal(replica.numpy(), value)
losses = model.fit(dataset, epochs=2, steps_per_epoch=2)
print("all is well")
"""


@pytest.mark.slow
def test_two_replicas_are_measured_with_and_without_their_reduction():
    done = subprocess.run([sys.executable, "-c", TWO_REPLICAS], capture_output=True, text=True, timeout=400)
    assert done.stdout.endswith("all is well\n"), done.stderr
