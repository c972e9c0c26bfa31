"""Faults in the middle of a run: each ends it with what happened and how to go on, and what was written stays."""

import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf

from manyfit import checkpoint, fit
from manyfit.callbacks.throughput import EpochRows
from manyfit.config import (
    BatchConfig,
    CheckpointConfig,
    DataConfig,
    ResumeConfig,
    RunConfig,
    SmallCNNConfig,
    StrategyConfig,
    SyntheticConfig,
    TrackerConfig,
)
from manyfit.console import Console
from manyfit.epoch_loop import EpochLoop
from manyfit.errors import ConfigError, DataError, TrainingError
from manyfit.record import RunRecord

# Keras' own saving, NumPy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def config(**changes) -> RunConfig:
    asked = {
        "data": SyntheticConfig(num_train=32, num_validation=8, num_classes=2, image_size=9),
        "model": SmallCNNConfig(filters=2, units=4, image_size=12),
        "strategy": StrategyConfig(name="one_device", device="cpu"),
        "batch": BatchConfig(global_batch_size=8),
        "tracker": TrackerConfig(),
        "probe": False,
        "epochs": 3,
    }
    return RunConfig(**(asked | changes))


def run(asked: RunConfig, folder: Path) -> RunRecord:
    with open("/dev/null", "w") as nowhere:
        return fit.run(asked, outputs=folder.parent, folder=folder, console=Console(stdout=nowhere, stderr=nowhere))


@pytest.fixture
def photos(tmp_path):
    """A folder of two classes of ten pictures."""
    rng = np.random.default_rng(0)
    for name, level in (("dark", 0), ("light", 150)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(10):
            levels = rng.integers(level, level + 60, (12, 12, 3)).astype(np.uint8)
            (tmp_path / "photos" / name / f"{index}.png").write_bytes(tf.io.encode_png(levels).numpy())
    return tmp_path / "photos"


@pytest.fixture
def meanwhile(monkeypatch):
    """`meanwhile(action)`: do it after the training part of the second epoch."""

    def arrange(action):
        original, calls = EpochLoop._test_epoch, []

        def test_epoch(self, *arguments):
            calls.append(None)
            if len(calls) == 2:
                action()
            return original(self, *arguments)

        monkeypatch.setattr(EpochLoop, "_test_epoch", test_epoch)

    return arrange


def remove(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[:40])


@pytest.mark.parametrize(("harm", "said"), [(remove, "No such file"), (cut, "cut off|damaged|truncated")])
def test_a_file_that_changes_during_the_run_is_named(photos, meanwhile, tmp_path, harm, said):
    asked = config(
        data=DataConfig(name="image_folder", root=str(photos), cache="off", validation_fraction=0.3),
        epochs=6,
        batch=BatchConfig(global_batch_size=2),
    )
    victims = sorted(photos.rglob("*.png"))
    saved = {path: path.read_bytes() for path in victims}
    meanwhile(lambda: [harm(path) for path in victims])
    with pytest.raises(TrainingError, match=said) as caught:
        run(asked, tmp_path / "run")
    assert str(photos) in caught.value.message and "resume=" in caught.value.remedy
    record = RunRecord.load(tmp_path / "run").data
    assert record["status"] == "failed" and len(record["epochs"]) < 6
    for path, content in saved.items():
        path.write_bytes(content)
    record = run(config(**{**vars(asked), "resume": ResumeConfig(folder=str(tmp_path / "run"))}), tmp_path / "run")
    assert record.data["status"] == "finished" and len(record.data["epochs"]) == 6


def test_other_data_than_before_are_refused(photos, meanwhile, tmp_path):
    asked = config(data=DataConfig(name="image_folder", root=str(photos), validation_fraction=0.3))
    meanwhile(lambda: pytest.fail("stop here"))
    with pytest.raises(pytest.fail.Exception):
        run(asked, tmp_path / "run")
    next(photos.rglob("*.png")).unlink()
    with pytest.raises(DataError, match="other data"):
        run(config(data=asked.data, resume=ResumeConfig(folder=str(tmp_path / "run"))), tmp_path / "run")


def test_no_memory_names_the_batch_and_the_next_one_to_try(meanwhile, tmp_path):
    def exhaust():
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[8,9,9,2]\nmore")

    meanwhile(exhaust)
    with pytest.raises(
        TrainingError, match=r"8 examples a replica(?s:.*)shape\[8,9,9,2\](?s:.*)per_replica_batch_size=4"
    ):
        run(config(), tmp_path / "run")


def test_a_full_disk_stops_the_run_and_leaves_the_checkpoints_before(monkeypatch, tmp_path):
    original, written = np.savez, []

    def savez(file, **arrays):
        written.append(None)
        if len(written) == 2:
            file.write(b"half")
            raise OSError(28, "No space left on device")
        original(file, **arrays)

    monkeypatch.setattr(checkpoint.np, "savez", savez)
    with pytest.raises(TrainingError, match="epoch-0000(?s:.*)No space left(?s:.*)MB"):
        run(config(), tmp_path / "run")
    found = checkpoint.paths(tmp_path / "run" / "checkpoints")
    assert [checkpoint.position_of(path).epoch for path in found] == [1]
    assert RunRecord.load(tmp_path / "run").data["status"] == "failed"
    record = run(config(resume=ResumeConfig(folder=str(tmp_path / "run"))), tmp_path / "run")
    assert record.data["status"] == "finished" and [row["epoch"] for row in record.data["epochs"]] == [1, 2, 3]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = sys.platform == "linux" and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("this user may not mount a tmpfs")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_a_disk_that_is_really_full(small_disk, tmp_path):
    big = config(model=SmallCNNConfig(filters=32, units=256))
    with pytest.raises(TrainingError, match="cannot be written: No space left on device"):
        run(big, small_disk / "run")
    record = RunRecord.load(small_disk / "run").data
    assert record["status"] in ("failed", "running")  # the record itself may have found no room
    assert not list((small_disk / "run").rglob("*.tmp"))


def test_a_folder_that_is_only_read(small_disk):
    record = run(config(epochs=1), small_disk / "run")
    before = (record.folder / "record.json").read_bytes()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(ConfigError, match="Read-only file system"):
        run(config(), small_disk / "other")
    with pytest.raises(TrainingError, match="cannot be written: Read-only file system"):
        run(config(resume=ResumeConfig(folder=str(record.folder))), record.folder)
    assert (record.folder / "record.json").read_bytes() == before


def test_a_run_that_another_process_works_on_is_refused(meanwhile, tmp_path):
    from manyfit.resume import one_process

    asked = config(resume=ResumeConfig(folder=str(tmp_path / "run")), checkpoint=CheckpointConfig(keep=1))
    run(config(epochs=1), tmp_path / "run")
    with one_process(tmp_path / "run"), pytest.raises(ConfigError, match="Another process"):
        run(asked, tmp_path / "run")


@pytest.mark.slow
def test_many_epochs_take_no_more_memory_than_few(monkeypatch, tmp_path):
    used = {}
    original = EpochRows.on_epoch_end

    def on_epoch_end(self, epoch, logs=None):
        original(self, epoch, logs)
        used[epoch + 1] = psutil.Process().memory_info().rss

    monkeypatch.setattr(EpochRows, "on_epoch_end", on_epoch_end)
    record = run(config(epochs=200, model=SmallCNNConfig(filters=8, units=32, image_size=12)), tmp_path / "run")
    assert len(record.data["epochs"]) == 200
    # The first epochs fill pools and caches; a copy of the model an epoch would be more than ten times this.
    assert used[200] - used[60] < 15e6


@pytest.fixture(autouse=True)
def float32_afterwards():
    yield
    keras.config.set_dtype_policy("float32")
