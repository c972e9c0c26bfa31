"""Runs that go on, servers and disks that fail, artifacts: against a W&B server on loopback, without a training."""

import os
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the stand-ins of servers are

from manyfit.callbacks.wandb_rows import WandbRows
from manyfit.config import WandbConfig
from manyfit.mistakes import Mistake, Mistakes
from manyfit.tracker_opening import open_tracker
from manyfit.wandb_file import files_in, read, read_run
from manyfit.wandb_segments import segments_of
from wandb_artifact_stub import WandbArtifactStub
from wandb_stub import KEY, WandbStub

STEPS = 8


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def opened(folder, told, mode="offline", earlier=None, begins=(1, 0), **config):
    folder.mkdir(exist_ok=True)
    if earlier:
        time.sleep(1.1)  # W&B orders the parts of a run by the second in which they began
    return open_tracker(
        WandbConfig(mode=mode, system_metrics_seconds=None, **config),
        folder=folder,
        run_name="a run",
        config_dict={"epochs": 3},
        derived={"num_replicas": 2},
        tags=[],
        notify=told.append,
        earlier=segments_of(folder, {"segments": earlier.segments}) if earlier else (),
        begins=begins,
        steps_per_epoch=STEPS,
    )


def log_epochs(tracker, *epochs, value):
    for epoch in epochs:
        tracker.log({"epoch/epoch": epoch, "value": value}, epoch * STEPS)


def sync(stub, command):
    words = [sys.executable, "-c", "from wandb.cli.cli import cli; cli()", *shlex.split(command)[1:]]
    done = subprocess.run(words, env={**os.environ, **stub.environment}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def rows(history):
    return [(row["_step"], row["epoch/epoch"], row["value"]) for row in history]


def test_a_run_that_goes_on_is_one_history_offline_synced_and_online(tmp_path, monkeypatch):
    run, told = tmp_path / "run", []
    with opened(run, told) as first:
        log_epochs(first, 1, 2, 3, value=1)
    # Killed after the row of epoch 3, before its checkpoint: epoch 3 is trained again.
    with opened(run, told, earlier=first, begins=(3, 0)) as second:
        log_epochs(second, 3, 4, value=2)
    assert told == []
    assert (second.run_id, second.path) == (first.run_id, first.path)
    assert [(part["from_epoch"], part["mode"]) for part in second.segments] == [(1, "offline"), (3, "offline")]
    assert second.sync_command == f"wandb sync {first.folder} {second.folder}"
    history = [(8, 1, 1), (16, 2, 1), (24, 3, 2), (32, 4, 2)]
    assert [rows(read(path).history) for path in files_in(run)] == [history[:2], history[2:]]
    assert rows(read_run(run).history) == history
    with WandbStub() as stub:
        for name, text in stub.environment.items():
            monkeypatch.setenv(name, text)
        with opened(run, told, "online", earlier=second, begins=(5, 0)) as third:  # a key was found meanwhile
            log_epochs(third, 5, value=3)
        assert third.mode == "offline" and "goes on offline" in told.pop()
        # What was uploaded is not changed any more: of epoch 5 the row that the server has stays.
        sync(stub, third.sync_command)
        with opened(run, told, earlier=third, begins=(5, 0)) as fourth:
            log_epochs(fourth, 5, 6, value=4)
        assert fourth.sync_command == f"wandb sync {fourth.folder}"
        sync(stub, fourth.sync_command)
        with opened(run, told, "online", earlier=fourth, begins=(7, 0)) as fifth:
            assert fifth.mode == "online"
            log_epochs(fifth, 6, 7, value=5)
        assert (told, fifth.sync_command) == ([], None)
        [synced] = stub.runs.values()
        everything = [*history, (40, 5, 3), (48, 6, 4), (56, 7, 5)]
        assert (synced.name, rows(synced.history), synced.exit_code) == (first.run_id, everything, 0)
        assert rows(read_run(run).history) == everything


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["silent", "500"])
def test_a_server_that_fails_in_mid_run_costs_nothing_and_is_told_once(tmp_path, monkeypatch, fault):
    told, released, failing = [], threading.Event(), threading.Event()

    def fails(method, what):
        if not failing.is_set():
            return None
        if fault == "silent":
            released.wait(60)
        return 500

    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "3")
    with WandbStub() as stub:
        stub.fails = fails
        for name, text in stub.environment.items():
            monkeypatch.setenv(name, text)
        with opened(tmp_path / "run", told, "online") as tracker:
            log_epochs(tracker, 1, value=1)
            stub.wait_for(lambda: any(run.history for run in stub.runs.values()))
            failing.set()
            log_epochs(tracker, 2, 3, value=1)
        released.set()
    assert len(told) == 1 and "W&B stopped working" in told[0]
    command = f"wandb sync --include-online {tracker.folder}"
    assert tracker.sync_command == command and told[0].endswith(command)
    assert not any(KEY in path.read_text("latin-1") for path in (tmp_path / "run").rglob("*") if path.is_file())
    with WandbStub() as again:
        sync(again, command)
        [run] = again.runs.values()
        assert rows(run.history) == [(8, 1, 1), (16, 2, 1), (24, 3, 1)]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_of_wandb_alone_is_told_once(tmp_path):
    disk, told = tmp_path / "run/wandb", []
    disk.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no small disk: {mounted.stderr.decode()}")
    try:
        with opened(tmp_path / "run", told) as tracker:
            for step in range(1, 400):
                tracker.log({"text": "x" * 5000}, step)
        assert len(told) == 1 and ("is incomplete" in told[0] or "stopped working" in told[0])
        assert read(files_in(tmp_path / "run")[0]).notes
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_models_code_and_mistakes_are_artifacts_with_their_lineage(tmp_path, monkeypatch, mode):
    run, told = tmp_path / "run", []
    (run / "mistakes").mkdir(parents=True)
    for name, content in {"manifest.json": "[1]", "model.keras": "model", "git.diff": "-a\n+b\n"}.items():
        (run / name).write_text(content)
    Image.new("RGB", (10, 10)).save(run / "mistakes/01.png")
    wrong = Mistake(3, "cats/1.jpg", 0, 1, 0.75, 0.25, "mistakes/01.png")
    found = Mistakes(run, ("cats", "dogs"), np.array([[3, 1], [0, 4]]), (wrong,))
    with WandbArtifactStub() as stub:
        if mode == "online":
            for name, text in stub.environment.items():
                monkeypatch.setenv(name, text)
        with opened(run, told, mode, log_model="best", log_code=True) as tracker:
            log_epochs(tracker, 1, value=1)
            tracker.code([run / "git.diff"], {"commit": "abc", "token": "hunter2"})
            facts = {"data": {"name": "cats_dogs", "fingerprint": "f00"}, "epoch": 1}
            tracker.model(run / "model.keras", ["best", "latest"], facts)
            tracker.mistakes(found)
        (run / "model.keras").unlink()  # W&B keeps a copy, inside the run folder
        if mode == "offline":
            sync(stub, tracker.sync_command)
        assert (told, stub.unknown) == ([], [])
        [model], [data], [code] = (stub.of_type(kind) for kind in ("model", "dataset", "code"))
        assert {"best", "latest"} == set(model.aliases) and model.metadata == facts and model.committed
        assert stub.content(model, "model.keras") == b"model"
        assert data.used_by == [tracker.run_id] and "f00" in data.aliases
        assert stub.content(data, "manifest.json") == b"[1]"
        assert code.metadata == {"commit": "abc", "token": "***"}
        assert stub.content(code, "git.diff") == b"-a\n+b\n"
        history = stub.runs[tracker.run_id].history
        assert (history[-1]["mistakes"]["nrows"], history[-1]["confusion_matrix_table"]["nrows"]) == (1, 4)


def test_artifacts_that_fail_leave_the_rows_alone(tmp_path):
    told = []
    with opened(tmp_path / "run", told, log_code=True) as tracker:
        tracker.code([tmp_path / "missing"], {})
        log_epochs(tracker, 1, value=1)
    assert len(told) == 1 and "did not take a file" in told[0]
    assert rows(read_run(tmp_path / "run").history) == [(8, 1, 1)]


class Counts:
    """37 examples in 5 steps of 8."""

    steps_per_epoch, num_train = 5, 37

    def examples_between(self, first_step, next_step):
        return min(37, 8 * next_step) - min(37, 8 * first_step)

    def images_per_second(self):
        return 50.0


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)], [(6, 45), (9, 69), (10, 74)]),
        ([(0, 1), (2, 4)], [(7, 53), (10, 74)]),
        ([(0, 0), (1, 4)], [(6, 45), (10, 74)]),
        ([(0, 4)], [(10, 74)]),
        ([(3, 3), (4, 4)], [(9, 69), (10, 74)]),  # of an epoch that goes on in its middle
    ],
)
def test_rows_of_steps_have_true_numbers_under_any_steps_a_call(calls, expected):
    logged, defined = [], []
    rows = WandbRows(
        lambda *names, **how: defined.append((*names, *how.values())),
        lambda row, step: logged.append((step, row)),
        Counts(),
        every_steps=3,
    )
    rows.on_epoch_begin(1)
    for first, last in calls:
        rows.on_train_batch_begin(first)
        rows.on_train_batch_end(last, {"loss": 0.5 + last})
    rows.on_epoch_end(1, {"loss": 0.25, "learning_rate": 0.1})
    assert ("batch/*", "examples_seen") in defined and ("epoch/*", "epoch/epoch") in defined
    assert all(row.get("batch/step", step) == step for step, row in logged)
    seen = [(step, row["examples_seen"]) for step, row in logged]
    assert seen == expected
    assert logged[-1][1]["epoch/epoch"] == 2 and logged[-1][1]["epoch/loss"] == 0.25
