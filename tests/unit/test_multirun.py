"""`-m`: every job in a process of its own, with small scripts in the place of trainings."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from manyfit.command import repository_root
from manyfit.console import Console
from manyfit.errors import ConfigError
from manyfit.multirun import run_many

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups")

TRAIN = repository_root() / "src/train.py"
STAND_IN = f"""
import json, os, sys
from pathlib import Path
sys.path.insert(0, {str(repository_root() / "src")!r})
from manyfit.record import RunRecord
given = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
folder = Path(given["hydra.run.dir"].strip('"'))
folder.mkdir(parents=True)
record = RunRecord.create(folder)
ids = [name for name in os.environ if name in ("WANDB_RUN_ID", "WANDB_SWEEP_ID")]
print(json.dumps([os.getpid(), os.getcwd(), sys.argv[1:], ids]))
if given["seed"] == "1":
    record.set_status("failed", exit_code=1, error="seed 1 has no luck")
    sys.exit(1)
if given["seed"] == "9":
    os.kill(os.getpid(), 9)
if given["seed"] == "60":
    import time
    print("ready", flush=True)
    time.sleep(60)
record.update("best", val_accuracy=0.5, val_loss=0.25, epoch=1)
record.set_status("finished", exit_code=0)
"""


@pytest.fixture
def start(monkeypatch, tmp_path, capsys):
    """`start("seed=0,1")` -> exit code and output; the jobs are run by the stand-in, from an empty folder."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    launch = tmp_path / "launch"
    launch.mkdir()
    monkeypatch.chdir(launch)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "stand_in.py")])

    def run(*overrides, **flags):
        given = {"config_dir": None, "config_path": None, "config_name": None, **flags}
        arguments = argparse.Namespace(overrides=list(overrides), **given)
        code = run_many(arguments, tmp_path / "outputs", console=Console(width=120))
        return code, capsys.readouterr().out

    return run


def jobs(folder):
    """What each stand-in said of itself, in the order of the jobs."""
    logs = sorted(Path(folder).glob("*/run.txt"))
    return [json.loads(log.read_text().splitlines()[1]) for log in logs]


def records(folder):
    return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*/run/record.json"))]


def test_a_failing_job_neither_stops_nor_stains_the_others(start, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "one-for-all")
    monkeypatch.setenv("WANDB_SWEEP_ID", "one-for-all")
    code, out = start("seed=0,1,2", "epochs=3")
    assert code == 1
    folder = out.splitlines()[-1]
    said = jobs(folder)
    assert len({pid for pid, *_ in said} - {os.getpid()}) == 3
    assert [words[0] for _, _, words, _ in said] == ["seed=0", "seed=1", "seed=2"]
    assert all("epochs=3" in words and cwd == os.getcwd() and not ids for _, cwd, words, ids in said)
    group = f"tracker.group={Path(folder).name}"
    assert all(group in words for _, _, words, _ in said)
    assert [record["status"] for record in records(folder)] == ["finished", "failed", "finished"]
    table = out[out.index(" job ") :]
    assert [line.split()[:3] for line in table.splitlines() if "seed=" in line][:3] == [
        ["0", "seed=0", "finished"],
        ["1", "seed=1", "failed"],
        ["2", "seed=2", "finished"],
    ]
    assert "job 1 (seed=1): seed 1 has no luck" in out and "2 of 3 finished (1 failed)." in out


@pytest.mark.slow
def test_every_combination_runs_once_in_hydras_order(start):
    code, out = start("seed=2,3", "optimizer=sgd,adam", "hydra.sweep.dir=here", "tracker=none")
    assert code == 0
    asked = [words[:2] for _, _, words, _ in jobs("here")]
    assert asked == [[f"seed={seed}", f"optimizer={name}"] for seed in (2, 3) for name in ("sgd", "adam")]
    assert out.splitlines()[-1] == str(Path.cwd() / "here") and "4 of 4 finished." in out
    assert not any("tracker.group" in word for _, _, words, _ in jobs("here") for word in words)


@pytest.mark.slow
def test_started_again_it_goes_on(start):
    start("seed=0,1", "hydra.sweep.dir=here")
    code, out = start("seed=0,1", "hydra.sweep.dir=here")
    assert code == 1 and "kept from an earlier start" in out
    assert [path.name for path in sorted(Path("here").glob("*/run*.txt"))] == ["run.txt", "run-2.txt", "run.txt"]


@pytest.mark.slow
def test_two_starts_in_one_second_share_no_folder(start):
    folders = {start("seed=0")[1].splitlines()[-1] for _ in range(2)}
    assert len(folders) == 2


def test_a_job_that_a_signal_ended_is_recorded_as_failed(start):
    code, out = start("seed=9", "hydra.sweep.dir=here")
    assert code == 1 and "ended by SIGKILL (out of memory?)" in out
    [record] = records("here")
    assert (record["status"], record["exit_code"]) == ("failed", 137)
    assert record["error"] == "ended by SIGKILL (out of memory?)"


@pytest.mark.parametrize(
    ("overrides", "message", "remedy"),
    [
        (["epochs=0,3,-1"], "2 of 3 jobs cannot run, so none was started: epochs=0", ">= 1"),
        (["optimizer=adam,sgd", "optimizer.nesterov=true"], "optimizer=adam: Unknown key", "optimizer=sgd"),
        (["optimizer=adam,adm"], "optimizer=adm", "Did you mean 'adam'?"),
        (["seed=0,1", "hydra.run.dir=x"], "hydra.run.dir=x is the folder of one run", "hydra.sweep.dir=PATH"),
        (["seed=0,1", "hydra.sweep.subdir=x"], "hydra.sweep.subdir is fixed here", "hydra.run.dir"),
        (["seed=interval(1,2)"], "seed=interval(1,2) has no countable values", "range(...)"),
        (["seed=0,1", "epochs=("], "the value cannot be read", "Quote"),
        (["~optimizer", "seed=0,1"], "cannot be taken away", "another value"),
    ],
)
def test_a_mistake_in_any_job_is_told_before_the_first_starts(start, tmp_path, overrides, message, remedy):
    with pytest.raises(ConfigError) as refused:
        start(*overrides)
    assert message in refused.value.message and remedy in refused.value.remedy
    assert not (tmp_path / "outputs").exists() and list(Path.cwd().iterdir()) == []


@pytest.mark.slow
def test_choices_can_be_found_by_pattern_and_the_folder_can_name_keys(start):
    code, _ = start("optimizer=glob(ad*)", "hydra.sweep.dir=of_${model.name}", "seed=0")
    assert code == 0
    assert [words[0] for _, _, words, _ in jobs("of_mobilenet_v2")] == ["optimizer=adam", "optimizer=adamw"]


@pytest.mark.slow
def test_a_folder_of_more_choices_reaches_the_jobs(start, tmp_path):
    (tmp_path / "more/experiment").mkdir(parents=True)
    (tmp_path / "more/experiment/mine.yaml").write_text("# @package _global_\nepochs: 7\n")
    code, _ = start("experiment=mine", "seed=0,2", "hydra.sweep.dir=here", config_dir=str(tmp_path / "more"))
    assert code == 0
    assert all(f"--config-dir={tmp_path / 'more'}" in words for _, _, words, _ in jobs("here"))
    with pytest.raises(ConfigError, match="is no folder"):
        start("seed=0,2", config_dir="nowhere")


def test_ctrl_c_leaves_no_job_and_still_shows_the_table(tmp_path):
    script = tmp_path / "many.py"
    script.write_text(
        STAND_IN.replace("import json", "import json, argparse").replace(
            "given = dict",
            "if '-m' in sys.argv:\n"
            "    from manyfit.command import hydra_command\n"
            "    from manyfit.multirun import run_many\n"
            "    hydra_command(many=lambda arguments: run_many(arguments, Path('outputs')))(lambda config: None)()\n"
            "given = dict",
        )
    )
    words = [sys.executable, str(script), "-m", "seed=0,60,2", f"hydra.sweep.dir={tmp_path / 'here'}"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    log = tmp_path / "here" / "1_seed=60" / "run.txt"
    until = time.monotonic() + 60
    while time.monotonic() < until and not (log.exists() and "ready" in log.read_text()):
        time.sleep(0.05)
    pid = json.loads(log.read_text().splitlines()[1])[0]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert "not run" in out and "1 of 3 finished" in out
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
