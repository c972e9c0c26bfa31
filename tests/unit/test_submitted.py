"""`hydra/launcher=submitit_*` without Slurm: what is refused, and jobs on this machine; the rest is in tests/e2e."""

import argparse
import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

from manyfit.console import Console
from manyfit.errors import ConfigError
from manyfit.launcher import LOCAL, SLURM, Launcher
from manyfit.multirun import run_many
from manyfit.overrides import check_overrides, launcher_overrides

STAND_IN = """
import json, os, sys
from pathlib import Path
given = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
print(json.dumps([sys.argv[1:], os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("WANDB_RUN_ID")]))
if given["seed"] == "9":
    os.kill(os.getpid(), 9)
sys.exit(int(given["seed"]))
"""


@pytest.fixture
def start(monkeypatch, tmp_path, capsys):
    """`start("seed=0,1", ...)` -> exit code and output."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "stand_in.py")])

    def run(*overrides):
        arguments = argparse.Namespace(overrides=list(overrides), config_dir=None, config_path=None, config_name=None)
        code = run_many(arguments, tmp_path / "outputs", console=Console(width=120))
        return code, capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("overrides", "message", "remedy"),
    [
        (["hydra/launcher=joblib"], "hydra/launcher=joblib starts no jobs", "submitit_slurm, submitit_local"),
        (["hydra/launcher=basic"], "hydra/launcher=basic starts no jobs", "Leave it out"),
        (["hydra.launcher.nodes=2"], "a launcher that was not chosen", "hydra/launcher=submitit_slurm as well"),
        (["hydra/launcher=submitit_slurm,submitit_local"], "all jobs are started in the same way", "one value"),
        (["hydra/launcher=submitit_local", "hydra.launcher.nodes=1,2"], "hydra.launcher.nodes=1,2", "one value"),
        (["hydra/launcher=submitit_slurm", "hydra.launcher.partion=x"], "Unknown key: hydra.launcher.partion", "parti"),
        (["hydra/launcher=submitit_slurm", "hydra.launcher.nodes=two"], "two", ""),
        (["hydra/launcher=submitit_local", "epochs=0"], "2 of 2 jobs cannot run, so none was started", ">= 1"),
        (["hydra/launcher=submitit_local", "hydra.launcher.tasks_per_node=2"], "strategy=mirrored", "multi_worker"),
        (["hydra/launcher=submitit_local", "hydra.launcher.tasks_per_node=2", "strategy=multi_worker"],
         "nothing of each other", "strategy.local_workers=N"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_before_anything_starts(start, tmp_path, monkeypatch, overrides, message, remedy):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(ConfigError) as refused:
        start("seed=0,1", "tracker=none", *overrides)
    assert message in refused.value.message and remedy in refused.value.remedy
    assert not (tmp_path / "outputs").exists()


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as refused:
        launcher_overrides(["seed=0,1", "hydra/launcher=submitit_slurm"])
    assert "hydra-submitit-launcher" in refused.value.message and "uv sync --extra slurm" in refused.value.remedy


def test_without_slurm_the_error_says_what_there_is(start, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="no srun on the PATH"):
        start("seed=0,1", "hydra/launcher=submitit_slurm")


def test_without_multirun_there_is_nothing_to_launch():
    conf = Path(__file__).resolve().parents[2] / "conf"
    for text in ("hydra/launcher=submitit_slurm", "hydra.launcher.nodes=2"):
        with pytest.raises(ConfigError) as refused:
            check_overrides([text], conf)
        assert "--multirun (-m)" in refused.value.remedy


def test_several_tasks_are_for_several_workers():
    Launcher(SLURM, {"nodes": 1, "tasks_per_node": 1}).check(["mirrored"])
    asked = Launcher(SLURM, {"nodes": 2, "tasks_per_node": 1})
    with pytest.raises(ConfigError, match="2 tasks"):
        asked.check(["multi_worker", "mirrored"])
    assert (asked.tasks, Launcher(LOCAL, {"nodes": 1, "tasks_per_node": None}).tasks) == (2, 1)


@pytest.mark.slow
def test_on_this_machine_all_jobs_run_at_a_time_each_in_its_process(start, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")  # submitit alone would hide every GPU
    monkeypatch.setenv("WANDB_RUN_ID", "one-for-all")
    code, out = start("seed=0,3,9", "hydra/launcher=submitit_local", "hydra.sweep.dir=here", "tracker=none")
    assert code == 1 and "1 of 3 finished (2 failed)." in out
    assert "ended by SIGKILL (out of memory?)" in out
    told = [json.loads(path.read_text().splitlines()[1]) for path in sorted(Path("here").glob("*/run.txt"))]
    assert [words[0] for words, _, _ in told] == ["seed=0", "seed=3", "seed=9"]
    assert all("resume=auto" in words for words, _, _ in told)
    assert [told_of for _, *told_of in told] == [["0,1", None]] * 3
    assert not list(Path("here").glob("*/run/*")) and Path("here/.submitit").is_dir()

    code, out = start("seed=0,3,9", "hydra/launcher=submitit_local", "hydra.sweep.dir=here", "tracker=none")
    assert code == 1 and "kept from an earlier start" in out
    assert [len(list(Path("here").glob(f"*seed={seed}/run*.txt"))) for seed in (0, 3, 9)] == [1, 2, 2]
