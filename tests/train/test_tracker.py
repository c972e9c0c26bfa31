"""The tracker: what lands in an offline W&B run, and that nothing of W&B can end a training."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest

from manyfit.config import TrackerConfig, WandbConfig
from manyfit.errors import ConfigError
from manyfit.tracker import NullTracker, exit_code_of, short_tags
from manyfit.tracker_opening import open_tracker
from manyfit.wandb_file import files_in, is_complete, read, read_run
from manyfit.wandb_session import resolve_mode
from manyfit.wandb_tracker import WandbTracker


@pytest.fixture(autouse=True)
def no_account(monkeypatch, tmp_path):
    """No key, no settings and no home of the machine that runs the tests."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NETRC", str(home / ".netrc"))
    return home


class Counts:
    """One step an epoch, of eight examples."""

    steps_per_epoch, num_train = 1, 8

    def examples_between(self, first_step, next_step):
        return 8 * (next_step - first_step)

    def images_per_second(self):
        return 100.0


def opened(folder, config=None, told=None, **changes):
    options = {
        "run_name": "a run",
        "config_dict": {"optimizer": {"learning_rate": 0.1}, "data": {"root": Path("/photos")}},
        "derived": {"num_replicas": 2},
        "tags": ["rehearsal"],
        **changes,
    }
    config = config or WandbConfig(mode="offline", system_metrics_seconds=0.5)
    return open_tracker(config, folder=folder, notify=(told if told is not None else []).append, **options)


def fit(*callbacks, epochs=3):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.125), "mse", metrics=["mae"])
    examples = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
    model.fit(*examples, epochs=epochs, verbose=0, validation_data=examples, callbacks=list(callbacks))


def wandb_command(*arguments):
    code = "from wandb.cli.cli import cli; cli()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True).stdout


def summary_of(tracker):
    return json.loads(wandb_command("leet", "inspect", "--summary", "--json", str(tracker.folder)))


def test_an_offline_run_holds_config_rows_summary_and_exit_code(tmp_path, no_account):
    told = []
    with opened(tmp_path, told=told, run_name="n" * 200, tags=["rehearsal", "t" * 80, " "]) as tracker:
        assert (tracker.mode, tracker.url) == ("offline", None)
        assert tracker.path == f"manyfit/{tracker.run_id}"
        fit(*tracker.callbacks(Counts()))
        tracker.log({"lone": np.float32(1.5)})
        tracker.summary({"best/val_accuracy": np.float64(0.75)})
        tracker.write_log("a line of the log")
    assert told == []
    assert tracker.sync_command == f"wandb sync {tracker.folder}"
    found = summary_of(tracker)
    assert found["exit_code"] == 0
    assert found["config"]["optimizer"] == {"learning_rate": 0.1}
    assert found["config"]["derived"] == {"num_replicas": 2}
    assert found["tags"] == ["rehearsal", "t" * 64]
    assert found["name"] == "n" * 128
    assert found["summary"]["epoch/learning_rate"] == 0.125
    assert found["summary"]["best/val_accuracy"] == 0.75
    records = [
        json.loads(line) for line in wandb_command("leet", "inspect", "--json", str(tracker.folder)).splitlines()
    ]
    rows = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert [row.get("epoch/epoch") for row in rows] == [1, 2, 3, None]
    assert all("epoch/loss" in row and "epoch/val_loss" in row for row in rows[:3])
    assert [(row["_step"], row.get("examples_seen")) for row in rows] == [(1, 8), (2, 16), (3, 24), (4, None)]
    assert any(record["type"] == "stats" for record in records)
    # Our own reader finds what W&B's does.
    [path] = files_in(tmp_path)
    ours = read(path)
    assert (ours.run["name"], ours.run["tags"], ours.run["run_id"]) == (found["name"], found["tags"], tracker.run_id)
    assert ours.config == {key: value for key, value in found["config"].items() if key != "_wandb"}
    assert (ours.history, ours.exit_code, ours.notes) == (rows, 0, [])
    assert {key: ours.summary[key] for key in ("epoch/loss", "best/val_accuracy", "lone")} == {
        key: found["summary"][key] for key in ("epoch/loss", "best/val_accuracy", "lone")
    }
    samples = [record["stats"] for record in records if record["type"] == "stats"]
    assert len(ours.system) == len(samples)
    # Everything W&B wrote is in the run folder, and its environment is gone.
    assert [path for path in no_account.rglob("*") if "wandb" in path.name] == []
    assert [name for name in os.environ if name.startswith("WANDB_")] == []


def test_large_values_fill_blocks_that_both_readers_understand(tmp_path):
    texts = {str(number): "x" * (number * 7919 % 50_000) for number in range(12)}
    with opened(tmp_path, config_dict={"texts": texts}) as tracker:
        for step in range(300):
            tracker.log({"step": step, "text": "y" * (step * 37 % 500)})
    ours = read(files_in(tmp_path)[0])
    assert (ours.notes, ours.exit_code, ours.config["texts"]) == ([], 0, texts)
    assert [(row["step"], len(row["text"])) for row in ours.history] == [(step, step * 37 % 500) for step in range(300)]


@pytest.mark.slow
def test_wandb_samples_the_gpus_of_the_run_alone(tmp_path, nvml_stub):
    code = f"""
        import time
        from pathlib import Path
        from manyfit.config import WandbConfig
        from manyfit.tracker_opening import open_tracker
        from manyfit.wandb_file import files_in, read
        for indices, seconds in (((1, 3), 0.2), ((), 0.2), ((0,), None)):
            folder = Path({str(tmp_path)!r}) / str(len(indices)) / str(seconds)
            folder.mkdir(parents=True)
            with open_tracker(WandbConfig(mode="offline", system_metrics_seconds=seconds), folder=folder, run_name="x",
                              config_dict={{}}, derived={{}}, tags=[], notify=print, gpu_indices=indices):
                time.sleep(1.5)
            system = read(files_in(folder)[0]).system
            print(sorted({{name for sample in system for name in sample if name.endswith(".gpu")}}), len(system) > 0)
    """
    environment = {**os.environ, **nvml_stub.environment()}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['gpu.1.gpu', 'gpu.3.gpu'] True", "[] True", "[] False"]


def test_an_exception_is_recorded_and_passed_on(tmp_path):
    with pytest.raises(RuntimeError, match="boom"), opened(tmp_path) as tracker:
        raise RuntimeError("boom")
    assert summary_of(tracker)["exit_code"] == 1


@pytest.mark.slow
def test_a_run_that_was_stopped_from_outside_is_marked(tmp_path):
    for name, stopped in (("stopped", True), ("ended", False)):
        with opened(tmp_path / name) as tracker:
            if stopped:
                tracker.preempted()
        assert read_run(tmp_path / name).preempting is stopped


@pytest.mark.slow
def test_two_runs_in_one_process_stay_apart(tmp_path):
    with opened(tmp_path / "a") as first:
        first.log({"x": 1})
    told = []
    left_open = opened(tmp_path / "b", told=told)
    left_open.log({"x": 2})
    with opened(tmp_path / "c", told=told) as third:
        third.log({"x": 3})
    assert len({first.run_id, left_open.run_id, third.run_id}) == 3
    assert [text for text in told if "still open" in text] != []
    assert [summary_of(tracker)["summary"]["x"] for tracker in (first, left_open, third)] == [1, 2, 3]
    left_open.finish()


@pytest.mark.slow
def test_a_killed_helper_process_ends_nothing(tmp_path):
    # In a process of its own, whose exit code counts: W&B's exit hooks run there as well.
    code = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import keras, psutil
        from pathlib import Path
        from test_tracker import Counts, fit, opened

        class Killer(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                if epoch == 1:
                    [helper] = [child for child in psutil.Process().children(True) if "wandb-core" in child.name()]
                    helper.kill()
                    psutil.wait_procs([helper], timeout=5)

        told, folder = [], Path({str(tmp_path)!r})
        epochs = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print("epoch", epoch))
        with opened(folder, told=told) as tracker:
            fit(Killer(), *tracker.callbacks(Counts()), epochs, epochs=4)
            tracker.log({{"x": 1}})
            tracker.summary({{"y": 1}})
            tracker.write_log("text")
        print(len(told), told)
        with opened(folder / "next", told=told) as tracker:
            print("next", tracker.mode, len(told))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *epochs, told, following = done.stdout.splitlines()
    assert epochs == [f"epoch {epoch}" for epoch in range(4)]
    assert told.startswith('1 ["W&B stopped working')
    assert following == "next offline 1"


def test_a_log_that_raises_is_told_once(tmp_path, monkeypatch):
    told = []
    with opened(tmp_path, told=told) as tracker:
        assert isinstance(tracker, WandbTracker)
        monkeypatch.setattr(type(tracker._run), "log", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full")))
        tracker.log({"x": 1})
        tracker.log({"x": 2})
    assert len(told) == 1
    assert "full" in told[0]
    assert summary_of(tracker)["exit_code"] == 0


def test_a_file_that_was_cut_is_told(tmp_path):
    told = []
    with opened(tmp_path, told=told) as tracker:
        tracker.log({"x": 1})
    path = tracker.folder / f"run-{tracker.run_id}.wandb"
    assert is_complete(path, 1)
    assert not is_complete(path, 2)
    path.write_bytes(path.read_bytes()[:-20])
    assert not is_complete(path, 1)
    assert not is_complete(tmp_path / "missing", 0)


def test_a_start_that_fails_falls_back(tmp_path, monkeypatch):
    import wandb

    asked = []

    def init(mode, **options):
        asked.append(mode)
        raise wandb.errors.CommError(f"no {mode}")

    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(wandb, "init", init)
    told = []
    with opened(tmp_path, WandbConfig(mode="online"), told) as tracker:
        tracker.log({"x": 1})
    assert asked == ["online", "offline"]
    assert isinstance(tracker, NullTracker)
    assert tracker.mode == "disabled"
    assert ["tracked offline" in told[0], "run folder alone" in told[1]] == [True, True]
    assert [name for name in os.environ if name.startswith("WANDB_")] == ["WANDB_API_KEY"]


@pytest.mark.slow
def test_a_server_that_cannot_be_reached_means_offline(tmp_path, monkeypatch):
    monkeypatch.setattr("manyfit.wandb_session.INIT_SECONDS", 3.0)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    told = []
    with opened(tmp_path, WandbConfig(), told) as tracker:
        tracker.log({"x": 1})
    assert tracker.mode == "offline"
    assert "could not start online" in told[0]
    assert summary_of(tracker)["exit_code"] == 0


@pytest.mark.parametrize(
    ("mode", "environment", "expected", "notices"),
    [
        ("auto", {}, "offline", 1),
        ("auto", {"WANDB_MODE": "offline"}, "offline", 0),
        ("auto", {"WANDB_MODE": "dryrun"}, "offline", 0),
        ("auto", {"WANDB_MODE": "disabled"}, "disabled", 0),
        ("auto", {"WANDB_MODE": "nonsense"}, "offline", 1),
        ("auto", {"WANDB_API_KEY": "0" * 40}, "online", 0),
        ("auto", {"WANDB_API_KEY": "short"}, "offline", 1),
        ("auto", {"WANDB_API_KEY": "0" * 40, "WANDB_MODE": "offline"}, "offline", 0),
        ("online", {}, "offline", 1),
        ("offline", {"WANDB_API_KEY": "0" * 40, "WANDB_MODE": "online"}, "offline", 0),
        ("disabled", {"WANDB_MODE": "online"}, "disabled", 0),
    ],
)
def test_the_mode_is_resolved_once(monkeypatch, mode, environment, expected, notices):
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    told = []
    assert resolve_mode(WandbConfig(mode=mode), told.append) == expected
    assert len(told) == notices


def test_a_key_in_netrc_counts(no_account):
    netrc = no_account / ".netrc"
    netrc.write_text(f"machine api.wandb.ai\n  login user\n  password {'0' * 40}\n")
    netrc.chmod(0o600)
    assert resolve_mode(WandbConfig(), lambda text: None) == "online"


def test_no_tracker_tells_nobody(tmp_path):
    for config in (TrackerConfig(), WandbConfig(mode="disabled")):
        with opened(tmp_path, config) as tracker:
            assert tracker.callbacks(Counts()) == []
            tracker.log({"x": 1})
            tracker.summary({})
            tracker.write_log("text")
        assert tracker.sync_command is None
    assert list(tmp_path.iterdir()) == [tmp_path / "home"]


def test_tensorboard_comes_with_either_tracker(tmp_path):
    with opened(tmp_path / "none", TrackerConfig(tensorboard=True)) as tracker:
        fit(*tracker.callbacks(Counts()))
    with opened(tmp_path / "wandb", WandbConfig(mode="offline", tensorboard=True)) as tracker:
        assert len(tracker.callbacks(Counts())) == 2
    assert list((tmp_path / "none" / "tensorboard" / "validation").glob("events*"))


def test_tensorboard_that_cannot_write_ends_nothing(tmp_path):
    (tmp_path / "tensorboard").write_text("a file in the way")
    told = []
    with opened(tmp_path, TrackerConfig(tensorboard=True), told) as tracker:
        fit(*tracker.callbacks(Counts()))
    assert len(told) == 1
    assert "TensorBoard" in told[0]


def test_exit_codes():
    errors = [
        None,
        RuntimeError(),
        ConfigError("x"),
        SystemExit(143),
        SystemExit(),
        SystemExit("x"),
        KeyboardInterrupt(),
    ]
    assert [exit_code_of(error) for error in errors] == [0, 1, 2, 143, 0, 1, 130]


def test_tags_are_short_and_single():
    assert short_tags([" a ", "", "a", "b" * 70]) == ["a", "b" * 64]


@pytest.mark.slow
def test_a_process_that_is_killed_keeps_what_it_logged(tmp_path):
    code = f"""
        import os, signal, time
        from pathlib import Path
        from manyfit.config import WandbConfig
        from manyfit.tracker_opening import open_tracker
        tracker = open_tracker(WandbConfig(mode="offline"), folder=Path({str(tmp_path)!r}), run_name="killed",
                               config_dict={{}}, derived={{}}, tags=[], notify=print)
        tracker.log({{"x": 7}})
        time.sleep(3)
        print(tracker.folder, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == -9
    found = json.loads(wandb_command("leet", "inspect", "--summary", "--json", done.stdout.split()[0]))
    assert found["summary"]["x"] == 7
