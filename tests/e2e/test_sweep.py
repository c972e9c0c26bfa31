"""Sweeps with the unmodified `wandb sweep`, `wandb agent` and `wandb sync`, against a server on loopback."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from manyfit.command import repository_root
from manyfit.schema.metrics import WORDS
from manyfit.sweep_file import EPOCH_METRICS, METRICS
from wandb_stub import WandbStub

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="process groups")]

SECONDS = 300
ODD = "a b, c = {d} (e) 'g' \"h\" \\ i"
FOREVER = 1_000_000
COMMAND = [
    *("${env}", "${interpreter}", "${program}", "strategy.device=cpu", "data=synthetic", "data.num_train=64"),
    *("data.num_validation=16", "data.image_size=10", "model=small_cnn", "model.filters=2", "probe=false"),
    *("batch.per_replica_batch_size=8", "--sweep-parameters", "${args_json_file}"),
]
TINY = [word for word in COMMAND if "=" in word]
PARAMETERS = {
    "optimizer": {"value": "sgd"},
    "optimizer.learning_rate": {"values": [0.01, 1e30]},
    "epochs": {"values": [2, FOREVER]},
    "tracker.notes": {"value": ODD},
    "tracker.tags": {"value": ["a b", "c,d"]},
    "class_weight": {"value": None},
    "model": {"parameters": {"units": {"value": 4}}},
}


def wandb(stub, folder, *words, **more):
    """The arguments of a process that runs W&B's command, from the repository as its users do."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    places = {"WANDB_DIR": str(folder), "MANYFIT_OUTPUTS": str(folder / "outputs")}
    return {
        "args": [sys.executable, "-c", "from wandb.cli.cli import cli; cli()", *map(str, words)],
        "env": {**os.environ, **stub.environment, "PATH": path, **places, **more},
        "cwd": repository_root(),
        "text": True,
    }


@pytest.fixture(scope="module")
def start_agent():
    """`start_agent(stub, folder, sweep, ...)`: a running agent; none of them outlives the tests."""
    started = []

    def start(stub, folder, sweep, *words):
        agent = wandb(stub, folder, "agent", *words, f"tester/stub/{sweep}")
        started.append(subprocess.Popen(**agent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        return started[-1]

    yield start
    for agent in started:
        if agent.poll() is None:
            agent.kill()
            print(agent.communicate()[0])


def finish(agent):
    out, _ = agent.communicate(timeout=SECONDS)
    print(out)
    return out


def make_sweep(stub, folder, parameters):
    """`wandb sweep FILE`; the name of the sweep."""
    content = {"program": "src/train.py", "method": "grid", "parameters": parameters, "command": COMMAND}
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    done = subprocess.run(**wandb(stub, folder, "sweep", path), capture_output=True, timeout=SECONDS)
    found = re.search(r"wandb agent \S+/stub/(\w+)", done.stderr)
    assert done.returncode == 0 and found, done.stderr
    return found[1]


def left_over(folder):
    """Processes that train in a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            found += [process.pid] if any(str(folder) in word for word in process.cmdline()) else []
        except psutil.Error:
            continue
    return found


def value(run, key):
    return run.config[key]["value"]


@dataclass
class Grid:
    stub: WandbStub
    folder: Path
    sweep: str
    outputs: list

    def run(self, rate, epochs):
        [found] = [
            run
            for run in self.stub.runs.values()
            if (value(run, "optimizer.learning_rate"), value(run, "epochs")) == (rate, epochs)
        ]
        return found

    def record(self, run):
        return json.loads((self.folder / "outputs/sweeps" / self.sweep / run.name / "record.json").read_text())


@pytest.fixture(scope="module")
def grid(start_agent, tmp_path_factory):
    """Two agents at once on a grid of four runs: one finishes, one is stopped by the server, two fail."""
    folder = tmp_path_factory.mktemp("grid")
    with WandbStub() as stub:
        answered = iter([500, 500])  # a server that stumbles

        def fails(method, what):
            return next(answered, None) if what == "file_stream" else None

        stub.fails = fails
        stub.stops = lambda run: value(run, "epochs") == FOREVER and len(run.values("epoch/val_accuracy")) > 1
        sweep = make_sweep(stub, folder, PARAMETERS)
        agents = [start_agent(stub, folder, sweep) for _ in range(2)]
        outputs = [finish(agent) for agent in agents]
        assert [agent.returncode for agent in agents] == [0, 0]
        yield Grid(stub, folder, sweep, outputs)


def test_two_agents_share_a_grid_and_end_with_it(grid):
    runs = list(grid.stub.runs.values())
    assert len(runs) == 4 and len({run.agent for run in runs}) == 2
    assert not grid.stub.sweeps[grid.sweep].waiting
    assert left_over(grid.folder) == []


@pytest.mark.parametrize(
    ("rate", "epochs", "code", "status"),
    [(0.01, 2, 0, "finished"), (0.01, FOREVER, 143, "stopped"), (1e30, 2, 1, "failed"), (1e30, FOREVER, 1, "failed")],
)
def test_server_and_record_say_how_a_run_ended(grid, rate, epochs, code, status):
    run = grid.run(rate, epochs)
    record = grid.record(run)
    assert (run.exit_code, run.complete, record["exit_code"], record["status"]) == (code, True, code, status)
    assert run.stopped == (code == 143)
    assert run.facts["notes"].startswith(ODD)
    if status == "failed":
        assert "The loss is not a finite number" in record["error"]
        assert "\n\nFailed: The loss is not a finite number" in run.facts["notes"]


def test_every_kind_of_parameter_is_what_trained_and_what_wandb_holds(grid):
    for run in grid.stub.runs.values():
        for name in ("optimizer", "optimizer.learning_rate", "epochs", "tracker.notes", "tracker.tags", "class_weight"):
            wanted = PARAMETERS[name]
            assert value(run, name) in wanted.get("values", [wanted.get("value")])
        assert value(run, "optimizer.name") == "sgd" and value(run, "optimizer.momentum") == 0.0
        assert value(run, "model")["units"] == 4 and value(run, "model")["filters"] == 2
        assert value(run, "tracker")["notes"] == value(run, "tracker.notes") == ODD
        assert {"a b", "c,d"} <= set(run.facts["tags"])
        folder = grid.folder / "outputs/sweeps" / grid.sweep / run.name
        config = yaml.safe_load((folder / "config.yaml").read_text())
        assert config["optimizer"]["learning_rate"] == value(run, "optimizer.learning_rate")
        assert (config["optimizer"]["name"], config["epochs"]) == ("sgd", value(run, "epochs"))
        assert (config["class_weight"], config["model"]["units"]) == (None, 4)
        assert (config["tracker"]["notes"], config["tracker"]["tags"]) == (ODD, ["a b", "c,d"])


def test_a_stumbling_server_gets_every_row(grid):
    run = grid.run(0.01, 2)
    record = grid.record(run)
    for name in EPOCH_METRICS:
        expected = [row[name] for row in record["epochs"] if row.get(name) is not None]
        assert run.values(f"epoch/{name}") == expected, name
    asked_for = [word for word in WORDS if word != "accuracy"]
    counted = {name for name in METRICS if not any(word in name for word in asked_for)}
    assert len(counted) > 10
    assert counted <= {*run.summary, *(key for row in run.history for key in row)}
    assert run.events and run.lines and "wandb-metadata.json" in run.files


def test_a_bad_configuration_fails_at_once_and_says_why_in_wandb(start_agent, tmp_path):
    with WandbStub() as stub:
        sweep = make_sweep(stub, tmp_path, {"epochs": {"values": [0]}})
        out = finish(start_agent(stub, tmp_path, sweep, "--count", "1"))
        [run] = stub.runs.values()
        assert "Error: epochs=0 is out of range." in out and "Traceback" not in out
        assert (run.exit_code, run.complete) == (2, True)
        assert run.facts["notes"].startswith("epochs=0 is out of range.\nGive a number >= 1.")
        assert not (tmp_path / "outputs").exists()


def test_no_training_outlives_its_agent_and_one_that_is_killed_is_closed(start_agent, tmp_path):
    with WandbStub() as stub:
        sweep = make_sweep(stub, tmp_path, {"epochs": {"value": FOREVER}, "seed": {"values": [1, 2]}})
        agents = [start_agent(stub, tmp_path, sweep, "--count", "1") for _ in range(2)]
        runs = stub.runs
        stub.wait_for(lambda: len(runs) == 2 and all(run.values("epoch/val_accuracy") for run in runs.values()))
        folders = {name: tmp_path / "outputs/sweeps" / sweep / name for name in runs}
        killed, ended = runs
        # The trainings themselves: each agent started a process that started one.
        [trainer] = [pid for pid in left_over(folders[killed]) if "wandb-core" not in psutil.Process(pid).name()]
        os.kill(trainer, signal.SIGKILL)
        [agent_of_ended] = [agent for agent in agents if is_above(agent.pid, folders[ended])]
        agent_of_ended.send_signal(signal.SIGTERM)
        outputs = {agent: finish(agent) for agent in agents}
        stub.wait_for(lambda: all(run.complete for run in runs.values()))
        stub.wait_for(lambda: not left_over(tmp_path))
        records = {name: json.loads((folder / "record.json").read_text()) for name, folder in folders.items()}
        assert (records[ended]["status"], records[ended]["exit_code"], runs[ended].exit_code) == ("stopped", 143, 143)
        assert outputs.pop(agent_of_ended).count("The agent is gone: the training stops.") == 1
        cause = "ended by SIGKILL (out of memory?)"
        assert (records[killed]["status"], records[killed]["exit_code"]) == ("failed", 137)
        assert records[killed]["error"] == cause
        assert (runs[killed].exit_code, runs[killed].facts["notes"]) == (137, f"The training was {cause}.")
        [out] = outputs.values()
        assert f"Error: The training was {cause}." in out


def is_above(pid, folder):
    """Whether a process is among those that started what trains in a folder."""
    return any(pid in [parent.pid for parent in psutil.Process(one).parents()] for one in left_over(folder))


def test_a_server_that_dies_half_way_costs_nothing_and_can_be_synced(script, tmp_path):
    posts = []

    def dies(method, what):
        if what == "file_stream":
            posts.append(what)
        return 0 if len(posts) > 1 else None

    arguments = [*TINY, "epochs=150", f"hydra.run.dir={tmp_path / 'run'}"]
    with WandbStub() as stub:
        stub.fails = dies
        started = time.monotonic()
        done = script("train.py", *arguments, **stub.environment, WANDB_FINISH_TIMEOUT="5")
        print(f"{time.monotonic() - started:.1f} s, {len(posts)} posts")
        assert done.returncode == 0, done.stderr
        [run] = stub.runs.values()
        assert not run.complete and len(run.values("epoch/loss")) < 150
    record = json.loads((tmp_path / "run/record.json").read_text())
    assert (record["status"], len(record["epochs"])) == ("finished", 150)
    assert any("W&B" in notice for notice in record["notices"])
    assert done.stdout.count("W&B stopped working") == 1
    command = re.search(r"  wandb sync (.*)", done.stdout)
    with WandbStub() as again:
        sync = subprocess.run(
            **wandb(again, tmp_path, "sync", *shlex.split(command[1])), capture_output=True, timeout=SECONDS
        )
        assert sync.returncode == 0, sync.stderr
        [synced] = again.runs.values()
        assert synced.values("epoch/loss") == [row["loss"] for row in record["epochs"]]


RESUMED = """
import sys, wandb
with wandb.init(id=sys.argv[1], resume="must", project="stub", dir=sys.argv[2]) as run:
    run.log({"epoch/epoch": run.summary["epoch/epoch"] + 1})
wandb.teardown()
"""


def test_an_offline_run_is_synced_whole_and_can_be_resumed(trained, tmp_path):
    [offline] = (trained.folder / "wandb").glob("offline-run-*")
    with WandbStub() as stub:
        done = subprocess.run(**wandb(stub, tmp_path, "sync", offline), capture_output=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr
        [run] = stub.runs.values()
        assert (run.exit_code, run.complete) == (0, True)
        for name in ("loss", "val_accuracy", "learning_rate"):
            assert run.values(f"epoch/{name}") == [row[name] for row in trained.record["epochs"]]
        assert value(run, "optimizer")["learning_rate"] == 0.004
        assert run.summary["best/val_accuracy"] == trained.record["best"]["val_accuracy"]
        assert "e2e" in run.facts["tags"] and run.facts["groupName"] == "tests"
        rows = len(run.history)
        words = [sys.executable, "-c", textwrap.dedent(RESUMED), run.name, str(tmp_path)]
        subprocess.run(words, env={**os.environ, **stub.environment}, check=True, timeout=SECONDS, capture_output=True)
        assert len(run.history) == rows + 1
        assert run.values("epoch/epoch") == [1, 2, 3, 4]
