"""The child of `batch=auto`: real steps of a small model at several sizes, and how running out of memory looks."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf

from manyfit import batch_probe
from manyfit.batch_child import RESULT
from manyfit.batch_probe import Resident, Trainer
from manyfit.batch_search import resolve
from manyfit.config import (
    AutoBatchConfig,
    ModuleConfig,
    RunConfig,
    SmallCNNConfig,
    StrategyConfig,
    SyntheticConfig,
    TrackerConfig,
    to_yaml,
)


def config(**changes) -> RunConfig:
    asked = {
        "data": SyntheticConfig(num_train=4000, num_validation=8, num_classes=3, image_size=9),
        "model": SmallCNNConfig(filters=2, units=4),
        "strategy": StrategyConfig(name="one_device", device="cpu"),
        "batch": AutoBatchConfig(),
        "tracker": TrackerConfig(),
    }
    return RunConfig(**asked | changes)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(batch_probe, "WINDOW_SECONDS", 0.01)


@pytest.mark.parametrize(("name", "steps_per_execution"), [("one_device", 1), ("default", "auto")])
def test_warm_steps_have_a_speed_at_every_size(short, capsys, name, steps_per_execution):
    place = StrategyConfig(name=name, device="cpu")
    trainer = Trainer(config(strategy=place, steps_per_execution=steps_per_execution))
    trainer.measure_all([8, 16])
    lines = [json.loads(line.removeprefix(RESULT)) for line in capsys.readouterr().out.splitlines()]
    assert [line["per_replica_batch_size"] for line in lines] == [8, 16]
    assert all(line["images_per_second"] > 0 for line in lines)


def test_out_of_memory_is_none_and_another_failure_is_told(short, monkeypatch, capsys):
    trainer = Trainer(config())

    def fail_with(error):
        def fit(*arguments, **keywords):
            raise error

        monkeypatch.setattr(trainer.model, "fit", fit)

    for error in (
        tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"),
        tf.errors.InternalError(None, None, "CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
        MemoryError(),
    ):
        fail_with(error)
        assert trainer.images_per_second(8) is None
    fail_with(tf.errors.InvalidArgumentError(None, None, "bad shape"))
    trainer.measure_all([8])
    assert "InvalidArgumentError: bad shape" in json.loads(capsys.readouterr().out.removeprefix(RESULT))["error"]


def test_resident_rows_have_the_shapes_of_the_networks_inputs(short):
    trainer = Trainer(config(gradient_accumulation=2))
    data = Resident.random(trainer.model.network, trainer._plan(8), 3, trainer.place.strategy)
    x, y, mask = next(iter(data))
    assert (x.shape, x.dtype, y.dtype, mask.shape) == ((16, 9, 9, 1), tf.uint8, tf.int32, (16,))


FACTORY = """
import os
import keras
import tensorflow as tf


class Hungry(keras.layers.Layer):
    def call(self, x):
        if (x.shape[0] or 0) > 32 and os.environ["HUNGRY"] == "abort":
            os.abort()
        if (x.shape[0] or 0) > 32:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return x


def build(input_shape, num_classes):
    inputs = keras.Input(input_shape, dtype="uint8")
    x = Hungry()(keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs)))
    return keras.Model(inputs, keras.layers.Dense(num_classes)(x))
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["raise", "abort"])
def test_a_search_survives_out_of_memory(tmp_path, monkeypatch, end):
    (tmp_path / "hungry.py").write_text(textwrap.dedent(FACTORY))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HUNGRY", end)
    model = ModuleConfig(factory="hungry:build")
    found, search = resolve(
        config(model=model),
        facts={},
        num_train=4000,
        num_replicas=1,
        cache_dir=tmp_path,
        show=print,
    )
    assert search is not None and search.stopped_by in ("memory", "gain")
    assert (found.batch.per_replica_batch_size or 0) <= 32
    assert search.curve.get(64) is None


@pytest.mark.slow
def test_the_child_measures_two_replicas(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config(strategy=StrategyConfig(device="cpu", replicas=2))))
    command = [sys.executable, "-m", "manyfit.batch_probe", str(path), "8", "16"]
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=surroundings)
    assert [line.startswith(RESULT) for line in done.stdout.splitlines()] == [True, True], done.stderr
