"""On a machine with GPUs: `pytest -m gpu`. One GPU is enough for most of it: it is split in two logical ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from manyfit.command import repository_root

pytestmark = pytest.mark.gpu

SECONDS = 600
CASE = {"num_examples": 37, "batch": 8, "optimizer": "sgd", "optimizer_arguments": {"momentum": 0.9}, "epochs": 3}
SMALL = ("data=synthetic", "data.num_train=256", "model=small_cnn", "epochs=2", "tracker=none")


def in_process(*command: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        input=stdin,
        env={**os.environ, "PYTHONPATH": str(repository_root() / "src")},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    print(f"{command} ended with {done.returncode}\n{done.stdout}\n--- stderr\n{done.stderr}")
    return done


def script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return in_process(repository_root() / "src" / name, *arguments)


@pytest.fixture(scope="session")
def num_gpus() -> int:
    """GPUs that TensorFlow can use, asked in a process of its own: this one must not start their devices."""
    code = "import tensorflow as tf; print('GPUS', len(tf.config.list_physical_devices('GPU')))"
    found = int(in_process("-c", code).stdout.split("GPUS")[-1])
    if not found:
        pytest.skip("TensorFlow finds no GPU on this machine")
    return found


@pytest.fixture
def several_gpus(num_gpus) -> int:
    if num_gpus < 2:
        pytest.skip(f"needs at least two GPUs; TensorFlow finds {num_gpus}")
    return num_gpus


def trained(where: str, cross_device_ops: str = "auto", **changes) -> dict:
    worker = Path(__file__).with_name("gpu_worker.py")
    done = in_process(worker, where, cross_device_ops, stdin=json.dumps(CASE | changes))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.split("RESULT ")[-1])


def assert_same(one: dict, other: dict, tolerance: float = 1e-4) -> None:
    for name, values in one["history"].items():
        np.testing.assert_allclose(other["history"][name], values, rtol=tolerance, atol=tolerance, err_msg=name)
    for left, right in zip(one["weights"], other["weights"], strict=True):
        np.testing.assert_allclose(right, left, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def one_gpu(num_gpus) -> dict:
    return trained("one", batch_norm=True)


def test_the_worker_itself_on_two_logical_cpus():
    """Runs everywhere `-m gpu` does, so that a mistake in the worker is not taken for one of the GPUs."""
    assert trained("cpu", "hierarchical", epochs=1)["num_replicas"] == 2


def test_one_gpu_split_in_two_gives_the_numbers_of_one(one_gpu):
    halves = trained("split", batch_norm=True)
    assert halves["num_replicas"] == 2
    assert_same(one_gpu, halves)


def test_memory_growth_is_set(one_gpu):
    assert one_gpu["memory_growth"] == [True]


@pytest.mark.parametrize("cross_device_ops", ["auto", "nccl", "hierarchical", "one_device"])
def test_all_gpus_give_the_numbers_of_one(several_gpus, cross_device_ops):
    if cross_device_ops == "hierarchical" and several_gpus % 2:
        pytest.skip(f"the hierarchical reduction is refused on an odd number of GPUs; there are {several_gpus}")
    rows = 8 * several_gpus
    one = trained("one", batch=rows, num_examples=5 * rows + 3, batch_norm=True)
    every = trained("all", cross_device_ops, batch=rows, num_examples=5 * rows + 3, batch_norm=True)
    assert every["num_replicas"] == several_gpus
    assert_same(one, every)


@pytest.mark.parametrize("where", ["one", "split"])
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_trains(num_gpus, where, policy):
    result = trained(where, policy=policy, epochs=6, learning_rate=0.05)
    losses = result["history"]["loss"]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


def test_the_main_command_takes_every_gpu(num_gpus, tmp_path):
    done = script("train.py", *SMALL, "strategy=mirrored", f"hydra.run.dir={tmp_path / 'run'}")
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["strategy"]["num_replicas"] == num_gpus
    assert [device.split()[0] for device in record["strategy"]["devices"]] == [f"GPU:{i}" for i in range(num_gpus)]
    assert record["best"]["val_accuracy"] > 0.5
    evaluation = script("evaluate.py", tmp_path / "run", "--device", "cpu", "--replicas", "2", "--json")
    found = json.loads(evaluation.stdout)
    assert found["loss"] == pytest.approx(record["best"]["val_loss"], rel=5e-3)  # TensorFloat-32 against float32


@pytest.mark.parametrize("communication", ["auto", "nccl", "ring"])
def test_two_workers_with_a_gpu_each_give_the_numbers_of_one(several_gpus, tmp_path, communication):
    size = "batch.global_batch_size=32"
    one = script("train.py", *SMALL, "strategy=one_device", size, f"hydra.run.dir={tmp_path / 'one'}")
    two = script(
        "train.py", *SMALL, "strategy=multi_worker", "strategy.local_workers=2", "strategy.replicas=1", size,
        f"strategy.communication={communication}", f"hydra.run.dir={tmp_path / 'two'}",
    )  # fmt: skip
    assert one.returncode == two.returncode == 0
    records = [json.loads((tmp_path / name / "record.json").read_text()) for name in ("one", "two")]
    assert records[1]["strategy"]["num_replicas"] == 2
    for row, expected in zip(records[1]["epochs"], records[0]["epochs"], strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-3)


def test_a_subset_of_the_gpus(num_gpus, tmp_path):
    last = num_gpus - 1
    done = script("train.py", *SMALL, f"strategy.devices=[{last}]", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    [device] = record["strategy"]["devices"]
    assert device.startswith(f"GPU:{last}")
    done = script("train.py", *SMALL, f"strategy.devices=[0,{num_gpus}]", f"hydra.run.dir={tmp_path / 'other'}")
    assert done.returncode == 2
    assert f"asks for GPU {num_gpus}; found {num_gpus} GPUs" in done.stderr


def test_more_gpus_than_there_are_is_refused(num_gpus, tmp_path):
    done = script("train.py", *SMALL, f"strategy.replicas={num_gpus + 1}", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert f"asks for {num_gpus + 1} GPUs; found {num_gpus}" in done.stderr
    assert not (tmp_path / "run").exists()


def test_mixed_float16_and_xla_train_on_a_gpu(num_gpus, tmp_path):
    arguments = ("strategy=one_device", "precision=mixed_float16", "jit_compile=true")
    done = script("train.py", *SMALL, *arguments, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["best"]["val_accuracy"] > 0.5


def test_the_check_passes(several_gpus):
    done = script("check.py", "data=synthetic", "model=small_cnn", "model.batch_norm=true", "strategy=mirrored")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"PASS: {several_gpus} replicas give the numbers of one." in done.stdout


def test_the_check_of_logical_cpus_passes_on_a_gpu_machine(num_gpus):
    arguments = ("strategy.device=cpu", "strategy.replicas=2")
    done = script("check.py", "data=synthetic", "model=small_cnn", *arguments)
    assert done.returncode == 0, done.stderr
    assert "PASS: 2 replicas" in done.stdout


def test_the_samples_are_of_the_gpu_that_trains(num_gpus, tmp_path, monkeypatch):
    import pynvml

    pynvml.nvmlInit()
    last = pynvml.nvmlDeviceGetCount() - 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(last)))
    pynvml.nvmlShutdown()
    folder = tmp_path / "run"
    done = script("train.py", *SMALL, "tracker.system_metrics_seconds=0.2", f"hydra.run.dir={folder}")
    assert done.returncode == 0, done.stderr
    record = json.loads((folder / "record.json").read_text())
    system = record["system"]
    assert (system["gpu_indices"], system["gpu_note"]) == ([last], None), record["notices"]
    train = system["phases"]["train"]
    assert train[f"gpu.{last}.memory_used_bytes"]["mean"] > 1e8
    assert train[f"gpu.{last}.power_watts"]["mean"] > 5
    assert system["joules_per_image"] > 0
