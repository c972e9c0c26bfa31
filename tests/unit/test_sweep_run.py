"""The process beside an agent's training: signals, codes, the record, and no training that outlives the agent."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from manyfit.command import repository_root
from manyfit.sweep_run import run_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups")

TRAINER = f"""
import json, os, signal, sys, time
sys.path.insert(0, {str(repository_root() / "src")!r})
from pathlib import Path
from manyfit.record import RunRecord
from manyfit.sweep_run import is_agents_child, run_supervised
if is_agents_child():
    sys.exit(run_supervised(Path("outputs"), None))
folder = Path(sys.argv[-1].partition("=")[2].strip('"'))
folder.mkdir(parents=True)
record = RunRecord.create(folder)
got = []
signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
signal.signal(signal.SIGINT, lambda number, frame: got.append(number))
print(os.getpid(), flush=True)
if sys.argv[1] == "fail":
    print("Error: no luck", file=sys.stderr)
    record.set_status("failed", exit_code=1, error="no luck")
    sys.exit(1)
until = time.monotonic() + 60
while not got and time.monotonic() < until:
    time.sleep(0.02)
record.set_status("stopped", exit_code=128 + got[0])
sys.exit(128 + got[0])
"""


@pytest.fixture
def start(tmp_path):
    """`start("run")` -> the process that an agent would have started, and the id of its training."""
    (tmp_path / "trainer.py").write_text(TRAINER)
    (tmp_path / "parameters.yaml").write_text("wandb_version: 1\n")
    environment = {
        **os.environ,
        "WANDB_SWEEP_ID": "sweep",
        "WANDB_RUN_ID": "run",
        "WANDB_SWEEP_PARAM_PATH": str(tmp_path / "parameters.yaml"),
    }
    started = []

    def run(*words, before=()):
        command = [*before, sys.executable, "trainer.py", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes)
        started.append(process)
        return process, int(process.stdout.readline())

    yield run
    for process in started:
        process.kill()
        process.communicate()


def record(tmp_path):
    return json.loads((tmp_path / "outputs/sweeps/sweep/run/record.json").read_text())


def wait_for_the_end_of(pid):
    until = time.monotonic() + 30
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_training_and_its_code_comes_back(start, tmp_path, number):
    process, _ = start("run")
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert record(tmp_path)["status"] == "stopped"


def test_a_training_that_fails_says_so_through_the_process_beside_it(start, tmp_path):
    process, _ = start("fail")
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (1, "Error: no luck\n")
    assert record(tmp_path)["error"] == "no luck"


def test_a_training_that_is_killed_is_recorded_and_counts_as_failed(start, tmp_path):
    process, trainer = start("run")
    os.kill(trainer, signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 137  # an agent does not count a negative one
    assert err == "Error: The training was ended by SIGKILL (out of memory?).\n"
    found = record(tmp_path)
    assert (found["status"], found["exit_code"]) == ("failed", 137)
    assert found["error"] == "ended by SIGKILL (out of memory?)"


def test_a_training_ends_when_the_process_beside_it_is_killed(start, tmp_path):
    process, trainer = start("run")
    process.kill()
    wait_for_the_end_of(trainer)
    assert record(tmp_path)["status"] == "stopped"


def test_a_training_ends_when_the_agent_is_gone(start, tmp_path):
    # The shell in the place of the agent waits, and is killed.
    agent, trainer = start("run", before=("bash", "-c", '"$@"; true', "agent"))
    [beside] = psutil.Process(agent.pid).children()
    agent.kill()
    agent.wait()
    wait_for_the_end_of(trainer)
    wait_for_the_end_of(beside.pid)
    assert record(tmp_path)["status"] == "stopped"


def test_a_run_that_is_started_again_gets_another_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_SWEEP_ID", "a/b")
    monkeypatch.setenv("WANDB_RUN_ID", "r1")
    first = run_folder(tmp_path)
    assert first == Path(tmp_path / "sweeps/a-b/r1")
    first.mkdir(parents=True)
    assert run_folder(tmp_path) == tmp_path / "sweeps/a-b/r1-2"
