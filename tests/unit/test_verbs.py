"""`manyfit.run` and `manyfit.compare`, with a small script in the place of the training."""

import html
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

import manyfit
from manyfit import verbs
from manyfit.command import repository_root
from manyfit.errors import ConfigError, TrainingError, UserError
from manyfit.record import RunRecord

SOURCE = repository_root() / "src"
STAND_IN = f"""
import json, os, signal, sys, time
from pathlib import Path
sys.path.insert(0, {str(SOURCE)!r})
from manyfit.record import RunRecord
given = dict(word.split("=", 1) for word in sys.argv[1:])
seed = given.get("seed", "0")
if seed == "2":
    print("Error: That cannot be had: received 2.\\nGive another.", file=sys.stderr)
    sys.exit(2)
folder = Path(os.environ["STAND_IN_OUTPUTS"]) / f"run-{{seed}}"
folder.mkdir(parents=True)
record = RunRecord.create(folder, command=json.dumps(sys.argv[1:]))
print(f"run folder: {{folder}}")
print("said", sorted(set(os.environ) & {{"FORCE_COLOR", "WANDB_SERVICE", "WANDB_RUN_ID", "KEPT"}}))
print("grün: a notice", file=sys.stderr)
sys.stdout.flush()
if seed == "1":
    raise RuntimeError("no luck")
if seed == "9":
    os.kill(os.getpid(), 9)
if seed in ("60", "61"):
    def stop(number, frame):
        record.set_status("stopped", exit_code=130)
        sys.exit(130)
    signal.signal(signal.SIGINT, stop if seed == "60" else signal.SIG_IGN)
    print("ready", flush=True)
    time.sleep(60)
stopped = seed == "75"
record.update("best", val_accuracy=0.5, val_loss=0.25, epoch=1)
record.set_status("stopped" if stopped else "finished", exit_code=75 if stopped else 0)
print(folder)
sys.exit(75 if stopped else 0)
"""


@pytest.fixture
def outputs(monkeypatch, tmp_path):
    """Where the stand-in, which is started in the place of src/train.py, puts its runs."""
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(verbs, "TRAIN", script)
    monkeypatch.setenv("STAND_IN_OUTPUTS", str(tmp_path / "outputs"))
    return tmp_path / "outputs"


@pytest.fixture
def nothing_starts(monkeypatch):
    """Fails a test in which a process is started."""

    def refuse(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(verbs, "start_process", refuse)


def test_the_package_is_light_until_a_verb_is_used():
    code = (
        "import sys, manyfit; "
        "print(sorted({'hydra', 'omegaconf', 'rich', 'plotly', 'tensorflow', 'keras', 'wandb'} & set(sys.modules))); "
        "manyfit.run, manyfit.compare; print({'tensorflow', 'keras', 'wandb'} & set(sys.modules)); "
        "print('run' in dir(manyfit), hasattr(manyfit, 'no_such_verb'))"
    )
    environ = {"PYTHONPATH": str(SOURCE), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\nset()\nTrue False\n", "")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("data=mnist epochs=2", "Give a list: ['data=mnist', 'epochs=2']"),
        (["data=mnist", 3], "3 is no override"),
        (["datum=mnist"], "Unknown key: datum"),
        (["epochs=0"], "epochs=0"),
        (["seed=0,1"], "gives several values, but a run takes one"),
        (["model=small_cnn", "model.trainable=3"], "Unknown key: model.trainable"),
        ({"epochs": "many"}, "epochs=many has the wrong type"),
        (["resume=/no/such/run"], "holds no run"),
    ],
)
def test_a_mistake_is_an_exception_before_anything_starts(overrides, said, nothing_starts):
    with pytest.raises(UserError) as error:
        manyfit.run(overrides)
    assert said in str(error.value) and error.value.remedy


def test_a_folder_in_use_is_refused(nothing_starts, tmp_path):
    RunRecord.create(tmp_path)
    with pytest.raises(ConfigError, match="already holds a run"):
        manyfit.run([f"hydra.run.dir={tmp_path}"])


def test_a_finished_run_that_goes_on_is_returned(nothing_starts, made_runs, tmp_path, capsys):
    made_runs.make_run(tmp_path / "run")
    record = manyfit.run([f"resume={tmp_path / 'run'}"])
    assert record.folder == tmp_path / "run" and record.data["status"] == "finished"
    assert "nothing is left to do" in capsys.readouterr().out


def test_the_record_comes_back_and_the_output_is_passed_on(outputs, monkeypatch, capsys):
    for name in ("FORCE_COLOR", "WANDB_SERVICE", "WANDB_RUN_ID", "KEPT"):
        monkeypatch.setenv(name, "1")
    record = manyfit.run(["seed=0", "data=mnist"])
    assert record.folder == outputs / "run-0"
    assert record.data["best"]["val_accuracy"] == 0.5 and record.data["status"] == "finished"
    assert json.loads(record.data["command"]) == ["seed=0", "data=mnist"]
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [f"run folder: {record.folder}", "said ['KEPT']", str(record.folder)]
    assert printed.err == "grün: a notice\n"
    assert "val accuracy: 0.5000" in repr(record)
    assert "<td" in record._repr_html_() and str(record.folder) in record._repr_html_()


def test_values_of_python_arrive_in_hydras_grammar(outputs, capsys):
    asked = {
        "seed": 0,
        "data": "mnist",
        "data.root": "my photos, 2024",
        "strategy.devices": [0, 2],
        "max_minutes": None,
    }
    record = manyfit.run(asked, show=False)
    assert json.loads(record.data["command"]) == [
        "seed=0",
        "data=mnist",
        'data.root="my photos, 2024"',
        "strategy.devices=[0,2]",
        "max_minutes=null",
    ]
    assert capsys.readouterr() == ("", "")


def test_a_run_that_stopped_in_good_order_is_returned(outputs):
    record = manyfit.run(["seed=75"], show=False)
    assert record.data["status"] == "stopped" and record.data["exit_code"] == 75


def test_what_the_training_refuses_is_the_same_exception(outputs, capsys):
    with pytest.raises(ConfigError) as error:
        manyfit.run(["seed=2"])
    assert (error.value.message, error.value.remedy) == ("That cannot be had: received 2.", "Give another.")
    assert error.value.exit_code == 2
    assert capsys.readouterr().err == ""  # the exception says it


def test_a_training_that_fails_says_where_its_folder_is(outputs, capsys):
    with pytest.raises(TrainingError, match="ended with code 1: RuntimeError: no luck") as error:
        manyfit.run(["seed=1"])
    assert error.value.__notes__ == [f"The run folder is {outputs / 'run-1'}."]
    assert "Traceback" in capsys.readouterr().err


def test_a_training_that_is_killed_leaves_a_closed_record(outputs):
    with pytest.raises(TrainingError, match="was ended by SIGKILL") as error:
        manyfit.run(["seed=9"], show=False)
    assert error.value.exit_code == 137
    assert RunRecord.load(outputs / "run-9").data["status"] == "failed"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(("seed", "times", "status"), [(60, 1, "stopped"), (61, 2, "failed")])
def test_an_interrupt_stops_the_training_in_good_order_and_a_second_one_at_once(outputs, seed, times, status):
    lines = []

    class Out:
        def write(self, text):
            lines.append(text)
            if "ready" in text:
                for count in range(times):
                    threading.Timer(0.3 + count, os.kill, (os.getpid(), signal.SIGINT)).start()

        def flush(self):
            pass

    before = sys.stdout
    sys.stdout = Out()
    try:
        with pytest.raises(KeyboardInterrupt):
            manyfit.run([f"seed={seed}"])
    finally:
        sys.stdout = before
    assert RunRecord.load(outputs / f"run-{seed}").data["status"] == status


def test_the_notebooks_own_hydra_is_left_alone(outputs, tmp_path):
    with initialize_config_dir(str(tmp_path), version_base=None):
        theirs = GlobalHydra.instance().hydra
        manyfit.run(["seed=0"], show=False)
        assert GlobalHydra.instance().hydra is theirs and theirs is not None
    assert not GlobalHydra.instance().is_initialized()


def test_a_comparison_shows_its_page_and_says_its_verdict(made_runs, tmp_path):
    for name, replicas, speed in (("one", 1, 500.0), ("four", 4, 1800.0)):
        made_runs.make_run(tmp_path / name, replicas=replicas, speed=speed)
    shown = manyfit.compare(tmp_path / "one", RunRecord.load(tmp_path / "four"))
    done = subprocess.run(
        [sys.executable, str(SOURCE / "compare.py"), str(tmp_path / "one"), str(tmp_path / "four")]
        + ["--json", str(tmp_path / "all.json")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "all.json").read_text())
    assert shown.verdict == told["verdict"] and shown.verdict in repr(shown)
    assert shown.claims[0].speed_up.value == pytest.approx(3.6)
    assert json.loads(json.dumps(shown.as_dict(), default=str))["claims"][0]["scaling"] == told["claims"][0]["scaling"]
    assert shown.verdict.split()[0] in shown.markdown()
    found = re.fullmatch(r'<iframe [^>]*srcdoc="([^"]*)"></iframe>', shown._repr_html_(), re.DOTALL)
    assert found, shown._repr_html_()[:300]
    page = html.unescape(found[1])
    assert page.startswith("<!doctype html>") and "Plotly" in page and html.escape(shown.verdict) in page


def test_a_comparison_takes_a_list_a_baseline_and_a_price(made_runs, tmp_path):
    for name, replicas in (("one", 1), ("two", 2), ("four", 4)):
        made_runs.make_run(tmp_path / name, replicas=replicas)
    shown = manyfit.compare([tmp_path / "one", str(tmp_path / "four")], baseline=tmp_path / "two", price_per_hour=3.0)
    assert len(shown.runs) == 3 and shown.baseline.first.num_replicas == 2
    assert all(cost is not None for cost in shown.costs.values())


def test_a_comparison_of_nothing_is_refused(tmp_path):
    with pytest.raises(UserError, match="No run was given"):
        manyfit.compare()
    with pytest.raises(UserError, match="holds no run"):
        manyfit.compare(Path(tmp_path))
