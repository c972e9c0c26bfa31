"""`src/train.py` in a process of its own: screen, run folder, W&B, exit codes."""

import json
import re
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from manyfit.config import from_yaml
from manyfit.report.system_samples import read_samples
from manyfit.wandb_file import files_in, read

SMALL = (
    *("data=synthetic", "data.num_train=40", "data.num_validation=12", "data.image_size=10", "data.num_classes=3"),
    *("model=small_cnn", "model.filters=2", "model.units=4", "epochs=1", "tracker=none"),
)
TWO_REPLICAS = ("strategy=mirrored", "strategy.device=cpu", "strategy.replicas=2")


def inspected(folder, *flags):
    """What W&B's own reader says of an offline run."""
    [run] = [path for path in (folder / "wandb").iterdir() if path.name.startswith("offline-run-")]
    code = "from wandb.cli.cli import cli; cli()"
    command = [sys.executable, "-c", code, "leet", "inspect", *flags, "--json", str(run)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def said(done) -> str:
    """The one message of a run that was refused: no traceback, nothing else on stderr."""
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("Error: ")
    return done.stderr


# --- the run that all of these look at ------------------------------------------------------------------------------


def test_the_screen_shows_header_rows_closing_table_and_last_the_folder(trained):
    lines = trained.done.stdout.splitlines()
    assert trained.done.stderr == ""
    assert lines[-1] == str(trained.folder)
    header, closing = lines.index("--- manyfit ---"), lines.index("--- run finished ---")
    head = "\n".join(lines[header:closing])
    for text in (
        "data: synthetic",
        "61 train, 23 validation",
        "classes: 3 (class_0, class_1, class_2)",
        "model: small_cnn",
        "strategy: mirrored, 2 replicas",
        "devices: CPU:0 (logical), CPU:1 (logical)",
        "batch: 16 in all, 8 a replica, 4 steps an epoch",
        "tracker: offline, manyfit/",
        f"run folder: {trained.folder}",
    ):
        assert text in head
    rows = [line for line in lines[header:closing] if re.match(r" +\d/3 ", line)]
    assert len(rows) == 3
    assert any(row.endswith("  best") for row in rows)
    tail = "\n".join(lines[closing:])
    for text in ("best epoch: ", "val accuracy: ", "images/s: ", "time: ", "wandb sync "):
        assert text in tail
    noise = r"oneDNN|cuda|absl|TF-TRT|WARNING|\bI0000\b|wandb:"
    assert not re.search(noise, trained.done.stdout)


def test_the_run_folder_holds_what_it_should(trained):
    names = {path.name for path in trained.folder.iterdir()}
    files = {"config.yaml", "record.json", "epochs.jsonl", "manifest.json", "model.keras", "log.txt"}
    files |= {"system.jsonl", "checkpoints", ".lock"}
    assert names - {"git.diff"} == files | {"wandb", "tensorboard"}  # that one where the code is not committed
    log = (trained.folder / "log.txt").read_text()
    assert "strategy: mirrored, 2 replicas" in log and "--- run finished ---" in log


def test_the_record_has_the_keys_that_other_work_relies_on(trained):
    record = trained.record
    sections = {
        "data": {"name", "source", "num_train", "num_validation", "num_skipped", "class_names", "fingerprint"},
        "model": {"name", "weights", "num_parameters", "num_trainable_parameters"},
        "strategy": {"name", "num_replicas", "devices"},
        "batch": {"global_batch_size", "per_replica_batch_size", "steps_per_epoch"},
        "best": {"epoch", "val_accuracy", "val_loss"},
        "timing": {"total_seconds", "startup_seconds", "first_step_seconds"},
        "tracker": {"mode", "run_id", "path", "url"},
        "git": {"commit", "dirty"},
    }
    for section, keys in sections.items():
        assert keys <= set(record[section]), section
    assert {"schema", "status", "rehearsal", "versions", "host", "command", "epochs"} <= set(record)
    row = {"epoch", "loss", "accuracy", "val_loss", "val_accuracy", "learning_rate"}
    row |= {"train_seconds", "validation_seconds", "images_per_second", "elapsed_seconds"}
    assert all(set(epoch) == row for epoch in record["epochs"])
    assert (record["status"], record["rehearsal"], record["exit_code"]) == ("finished", False, 0)
    assert record["data"]["class_names"] == ["class_0", "class_1", "class_2"]
    assert (record["data"]["num_train"], record["data"]["num_validation"]) == (61, 23)
    assert record["strategy"]["devices"] == ["CPU:0 (logical)", "CPU:1 (logical)"]
    assert record["batch"]["global_batch_size"] == 16
    assert "src/train.py strategy=mirrored" in record["command"]


def test_rows_and_record_agree(trained):
    rows = [json.loads(line) for line in (trained.folder / "epochs.jsonl").read_text().splitlines()]
    assert rows == trained.record["epochs"]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    # 16 examples a step are half of the 32 that the rate is meant for.
    assert [row["learning_rate"] for row in rows] == pytest.approx([0.002] * 3)


def test_the_times_are_those_of_the_process(trained):
    timing = trained.record["timing"]
    assert 0 < timing["startup_seconds"] < timing["total_seconds"]
    shown = re.search(r"^time: (\S+ (?:s|min)).* \(start-up", trained.done.stdout, re.MULTILINE)
    assert shown


def test_the_saved_config_checks_to_what_was_asked(trained):
    config = from_yaml((trained.folder / "config.yaml").read_text())
    assert (config.strategy.replicas, config.data.num_train, config.epochs) == (2, 61, 3)
    assert config.optimizer.learning_rate == 0.004
    assert config.tracker.tags == ["e2e"]


def test_wandb_holds_config_rows_and_exit_code(trained):
    summary = json.loads(inspected(trained.folder, "--summary"))
    assert summary["exit_code"] == 0
    config = summary["config"]
    assert (config["epochs"], config["optimizer"]["learning_rate"]) == (3, 0.004)
    derived, record = config["derived"], trained.record
    assert derived["strategy"]["num_replicas"] == 2
    for section in ("data", "batch", "versions"):
        assert derived[section] == record[section]
    assert derived["learning_rate"] == pytest.approx(0.002)
    assert set(summary["tags"]) == {"e2e", "synthetic", "small_cnn", "mirrored-x2"}
    records = [json.loads(line) for line in inspected(trained.folder).splitlines()]
    rows = [entry["history"]["item"] for entry in records if entry["type"] == "history"]
    rows = [row for row in rows if "epoch/epoch" in row]
    for row, wanted in zip(rows, record["epochs"], strict=True):
        assert {name: row[f"epoch/{name}"] for name in wanted} == wanted
    assert summary["summary"]["best/val_accuracy"] == record["best"]["val_accuracy"]


def test_the_machine_is_sampled_in_every_phase(trained):
    samples, problem = read_samples(trained.folder)
    assert problem is None
    system = trained.record["system"]
    assert {one["phase"] for one in samples} == {"start", "train", "validation", "end"} == set(system["phases"])
    assert all(one["gpus"] == [] for one in samples)
    assert (system["gpu"], system["gpu_note"]) == (None, "no GPU samples: the run uses no GPU")
    assert (system["num_samples"], system["energy_watt_hours"]) == (len(samples), None)
    assert not any(name.startswith("gpu") for phase in system["phases"].values() for name in phase)
    assert system["phases"]["train"]["process_memory_bytes"]["mean"] > 1e8
    epochs = trained.record["epochs"]
    assert system["seconds"]["validation"] == pytest.approx(sum(row["validation_seconds"] for row in epochs), rel=0.5)
    assert epochs[-1]["elapsed_seconds"] < trained.record["timing"]["total_seconds"]
    summary = read(files_in(trained.folder)[0]).summary
    assert summary["system/train/cpu_percent"] == system["phases"]["train"]["cpu_percent"]["mean"]


@pytest.mark.slow
def test_four_gpus_are_sampled_alike_in_our_file_the_record_and_wandb(script, nvml_stub, tmp_path):
    folder, seconds = tmp_path / "run", 2.0
    done = script(
        "train.py",
        *SMALL[:-1],
        *TWO_REPLICAS,
        *("data.num_train=4000", "epochs=6", "tracker.mode=offline", "tracker.system_metrics_seconds=0.2"),
        *("tracker.system_metrics_gpus=all", f"hydra.run.dir={folder}"),
        WANDB_MODE="",
        **nvml_stub.environment(gpus=4, seconds=seconds),
    )
    assert done.returncode == 0, done.stderr
    names = {
        "utilization_percent": "gpu",
        "memory_utilization_percent": "memory",
        "memory_used_bytes": "memoryAllocatedBytes",
        "power_watts": "powerWatts",
        "temperature_celsius": "temp",
        "sm_clock_megahertz": "smClock",
        "memory_clock_megahertz": "memoryClock",
    }

    def agrees(index, read_at, values):
        # A sample has one time for many readings, which take a while on a busy machine.
        around = [nvml_stub.expected(index, read_at + late, seconds) for late in (-1.0, 0.0, 1.0)]
        for name in names:
            assert values[name] in [one[name] for one in around], (index, read_at, name)

    ours, problem = read_samples(folder)
    assert problem is None
    assert len({one["gpus"][0]["utilization_percent"] for one in ours}) > 1
    for sample in ours:
        assert [gpu["index"] for gpu in sample["gpus"]] == [0, 1, 2, 3]
        for gpu in sample["gpus"]:
            agrees(gpu["index"], sample["time"], gpu)
    found = read(files_in(folder)[0])
    assert (found.notes, found.exit_code) == ([], 0)
    theirs = [sample for sample in found.system if "gpu.0.gpu" in sample]
    assert len(theirs) >= 3
    for sample in theirs:
        for index in range(4):
            agrees(index, sample["time"], {name: sample[f"gpu.{index}.{other}"] for name, other in names.items()})
    system = json.loads((folder / "record.json").read_text())["system"]
    assert (system["gpu"], system["gpu_note"], system["gpu_indices"]) == ("4 x Stub GPU", None, [0, 1, 2, 3])
    train = [one for one in ours if one["phase"] == "train"]
    for index in range(4):
        utilization = [one["gpus"][index]["utilization_percent"] for one in train]
        both = system["phases"]["train"][f"gpu.{index}.utilization_percent"]
        assert min(utilization) <= both["mean"] <= both["p95"] <= max(utilization)
    # An independent sum: every GPU's power by NumPy's trapezoidal rule over all samples.
    elapsed = [one["elapsed_seconds"] for one in ours]
    watts = [sum(gpu["power_watts"] for gpu in one["gpus"]) for one in ours]
    assert system["energy_watt_hours"] == pytest.approx(np.trapezoid(watts, elapsed) / 3600)
    joules = system["energy_watt_hours_of_phases"]["train"] * 3600
    assert system["joules_per_image"] == pytest.approx(joules / (6 * 4000))
    assert found.summary["system/joules_per_image"] == pytest.approx(system["joules_per_image"])


def test_tensorboard_has_its_logs(trained):
    assert list((trained.folder / "tensorboard").rglob("events*"))


@pytest.mark.slow
def test_the_model_opens_in_plain_keras(trained, tmp_path):
    (tmp_path / "manyfit.py").write_text("raise SystemExit('manyfit was imported')\n")
    code = """
        import os, sys
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        import keras, numpy as np
        model = keras.saving.load_model(sys.argv[1])
        assert not any(name.startswith("manyfit") for name in sys.modules)
        print(model.predict(np.zeros((5, 14, 14, 1), "uint8"), verbose=0).shape)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(trained.folder / "model.keras")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["(5,", "3)"]


# --- what is refused ------------------------------------------------------------------------------------------------


def test_a_folder_that_holds_a_run_is_refused_at_once(trained, script):
    before = (trained.folder / "record.json").read_bytes()
    start = time.perf_counter()
    done = script("train.py", *SMALL, f"hydra.run.dir={trained.folder}")
    print(f"{time.perf_counter() - start:.1f} s")
    assert done.returncode == 2
    assert "already holds a run, which is never overwritten" in said(done)
    assert (trained.folder / "record.json").read_bytes() == before


def test_xla_on_several_replicas_is_refused_at_once(script):
    done = script("train.py", *SMALL, *TWO_REPLICAS, "jit_compile=true")
    assert done.returncode == 2
    assert "jit_compile=true does not work with strategy.replicas=2" in said(done)


@pytest.mark.slow
def test_gpus_that_are_not_there_end_with_code_2_and_leave_nothing(script, tmp_path):
    folder = tmp_path / "run"
    done = script("train.py", *SMALL, "strategy.replicas=4", f"hydra.run.dir={folder}", CUDA_VISIBLE_DEVICES="-1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Asked for 4 GPU replicas, found no GPU" in said(done)
    assert not folder.exists()


@pytest.mark.slow
def test_real_photos_without_imagenet_weights_end_with_code_2(script, photos, tmp_path):
    folder = tmp_path / "run"
    done = script("train.py", "data=image_folder", f"data.root={photos}", "tracker=none", f"hydra.run.dir={folder}")
    assert done.returncode == 2
    message = said(done)
    assert "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224_no_top.h5" in message
    assert "/models/" in message and "model.weights=PATH" in message
    assert not folder.exists()


# --- runs that do not finish ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sigterm_ends_with_143_and_a_closed_record(start_script, finish_script, tmp_path):
    folder = tmp_path / "run"
    process = start_script("train.py", *SMALL, *TWO_REPLICAS, "epochs=100000", f"hydra.run.dir={folder}")
    for line in process.stdout:  # also shows that a pipe gets each line at once
        if re.match(r" +1/100000 ", line):
            break
    process.send_signal(signal.SIGTERM)
    done = finish_script(process)
    assert done.returncode == 143
    assert done.stderr == ""
    record = json.loads((folder / "record.json").read_text())
    assert (record["status"], record["exit_code"]) == ("stopped", 143)
    assert len(record["epochs"]) >= 1
    assert record["system"]["seconds"]["train"] > 0
    assert done.stdout.splitlines()[-1] == str(folder)
    assert (folder / "model.keras").exists()


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_with_code_1_and_advice(script, tmp_path):
    folder = tmp_path / "run"
    arguments = ("optimizer=sgd", "optimizer.learning_rate=1e30", "batch.global_batch_size=8")
    done = script("train.py", *SMALL, *TWO_REPLICAS, *arguments, f"hydra.run.dir={folder}")
    assert done.returncode == 1
    message = said(done)
    assert "not a finite number at step" in message and "optimizer.learning_rate" in message
    record = json.loads((folder / "record.json").read_text())
    assert (record["status"], record["exit_code"]) == ("failed", 1)
    assert "NCCL_P2P_DISABLE=1" in record["error"]


# --- a model of one's own -------------------------------------------------------------------------------------------

OWN = """
import keras
import tensorflow as tf
from manyfit.replicated import ReplicatedModel

def network(input_shape, num_classes):
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    return keras.Model(inputs, keras.layers.Dense(num_classes, kernel_initializer="zeros")(x))

class Doubled(ReplicatedModel):
    def example_losses(self, x, y, training):
        outputs = self.network(x, training=training)
        return 2 * keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True), outputs

def build(input_shape, num_classes):
    return Doubled(network(input_shape, num_classes))
"""


@pytest.mark.slow
def test_a_training_step_of_ones_own_gives_the_same_on_two_replicas(start_script, finish_script, tmp_path):
    (tmp_path / "own_model.py").write_text(OWN)
    arguments = (*SMALL[:5], "model=module", "model.factory=own_model:build", "tracker=none", "epochs=1")
    arguments += ("strategy=mirrored", "strategy.device=cpu", "batch.global_batch_size=12")
    processes = [
        start_script("train.py", *arguments, f"strategy.replicas={count}", f"hydra.run.dir=x{count}", cwd=tmp_path)
        for count in (1, 2)
    ]
    assert [finish_script(process).returncode for process in processes] == [0, 0]
    rows = [json.loads((tmp_path / f"x{count}" / "epochs.jsonl").read_text()) for count in (1, 2)]
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert rows[1][name] == pytest.approx(rows[0][name], rel=1e-5)
    assert rows[0]["loss"] > 1.5  # about twice the logarithm of 3


# --- the main job ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_rehearsal_learns_and_says_what_it_is(script, tmp_path):
    folder = tmp_path / "run"
    start = time.perf_counter()
    done = script(
        "train.py", "strategy=mirrored", "data=cats_dogs", f"hydra.run.dir={folder}", CUDA_VISIBLE_DEVICES="-1"
    )
    print(f"the rehearsal took {time.perf_counter() - start:.0f} s")
    assert done.returncode == 0, done.stderr
    record = json.loads((folder / "record.json").read_text())
    assert record["rehearsal"] is True
    assert (record["data"]["source"], record["model"]["weights"]) == ("sample", "rehearsal")
    assert record["data"]["class_names"] == ["cats", "dogs"]
    assert record["best"]["val_accuracy"] >= 0.9
    lines = done.stdout.splitlines()
    assert len([line for line in lines if line.startswith("REHEARSAL: ")]) == 2
    assert any("rehearsal backbone" in line for line in lines)
    assert "rehearsal" in json.loads(inspected(folder, "--summary"))["tags"]
    features = record["system"]["seconds"]["features"]
    # The phase lasts from the first picture until the training begins, whose model is made meanwhile.
    prepared = record["timing"]["prepare_seconds"]
    assert prepared - 0.5 <= features <= prepared + 4.0


# --- real pictures, where they are ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_five_classes_of_flowers_train_and_are_named(script, shared_data, tmp_path):
    weights = shared_data / "weights" / "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_0.35_224_no_top.h5"
    done = script(
        "train.py",
        *("data=flowers", f"data.root={shared_data / 'flowers5'}", "epochs=2", "tracker=none"),
        *(f"model.weights={weights}", "model.alpha=0.35", "model.image_size=96"),
        *("strategy=mirrored", "strategy.device=cpu", f"hydra.run.dir={tmp_path / 'run'}"),
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["data"]["class_names"] == ["daisy", "dandelion", "roses", "sunflowers", "tulips"]
    assert (record["data"]["num_train"], record["data"]["num_validation"]) == (400, 100)
    assert record["best"]["val_accuracy"] > 0.4


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_classes", "accuracy"), [("mnist", 10, 0.93), ("emnist", 47, 0.5)])
def test_mnist_and_emnist_train_in_one_short_epoch(script, shared_data, tmp_path, name, num_classes, accuracy):
    done = script(
        "train.py",
        *(f"data={name}", f"data.root={shared_data / name}", "model=small_cnn", "epochs=1", "tracker=none"),
        *(*TWO_REPLICAS, "batch.global_batch_size=128", f"hydra.run.dir={tmp_path / 'run'}"),
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert len(record["data"]["class_names"]) == num_classes
    assert record["best"]["val_accuracy"] > accuracy
