"""`src/sweep.py local`: W&B's three methods without a server, with a small script in the place of trainings."""

import io
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from itertools import pairwise

import pytest
import yaml
from rich.console import Console as RichConsole

from manyfit.command import repository_root
from manyfit.errors import ConfigError, UserError
from manyfit.locks import FileLock
from manyfit.report.sweep import SweepRun, ranked, sweep_tables
from manyfit.sweep_file import SweepFile
from manyfit.sweep_local import LocalSweep, default_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups")

STAND_IN = f"""
import json, signal, sys, time
from pathlib import Path
sys.path.insert(0, {str(repository_root() / "src")!r})
from manyfit.record import RunRecord
given = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
folder = Path(given["hydra.run.dir"].strip('"'))
folder.mkdir(parents=True)
record = RunRecord.create(folder)

def stop(*_):
    record.set_status("stopped", exit_code=143, error="stopped by SIGTERM")
    sys.exit(143)

signal.signal(signal.SIGTERM, stop)
rate = float(given.get("optimizer.learning_rate", 1.0))
goodness = 1 - abs(rate - 0.3)
if given.get("seed") == "13":
    sys.exit("Error: 13 has no luck")
for epoch in range(int(given.get("epochs", 2))):
    record.add_epoch({{"epoch": epoch + 1, "val_accuracy": goodness - 0.1 / (epoch + 1), "val_loss": 1 - goodness}})
    time.sleep(float(given.get("data.cache_gb", 0)))
record.update("best", val_accuracy=goodness)
record.set_status("finished", exit_code=0)
"""

FILE = {
    "program": "src/train.py",
    "metric": {"name": "epoch/val_accuracy", "goal": "maximize"},
    "command": ["${env}", "${interpreter}", "${program}", "model=small_cnn", "--sweep-parameters", "${args_json_file}"],
}
RATE = {"optimizer.learning_rate": {"min": 0.0, "max": 1.0}}


@pytest.fixture
def search(tmp_path):
    """`search(method, parameters, ...)`: a search whose runs are the stand-in's."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)

    def make(method, parameters, *more, name="sweep", folder="runs", **keys):
        content = {**FILE, "method": method, "parameters": parameters, **keys}
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return LocalSweep(SweepFile.read(path), tmp_path / folder, list(more), program=tmp_path / "stand_in.py")

    return make


def asked(search):
    """The parameters of every run in order."""
    return [run.parameters for run in search.runs()]


def words(search, number):
    [folder] = search.folder.glob(f"{number:03d}_*")
    return json.loads((folder / "point.json").read_text())["overrides"]


def test_a_grid_runs_every_combination_in_order(search):
    grid = search(
        "grid", {"seed": {"values": [1, 2]}, "optimizer": {"values": ["adam", "sgd"]}, "epochs": {"value": 1}}
    )
    assert grid.run(count=None) == 4
    combinations = [(1, "adam"), (1, "sgd"), (2, "adam"), (2, "sgd")]
    assert asked(grid) == [{"seed": seed, "optimizer": name, "epochs": 1} for seed, name in combinations]
    assert words(grid, 1) == ["model=small_cnn", "tracker.group=runs", "seed=1", "optimizer=sgd", "epochs=1"]
    assert [run.value for run in grid.runs()] == pytest.approx([0.2] * 4)
    written = json.loads((grid.folder / "sweep.json").read_text())
    assert [run["status"] for run in written["runs"]] == ["finished"] * 4 and written["sweep"]["method"] == "grid"


@pytest.mark.slow
def test_values_keep_their_types_and_overrides_win(search):
    kinds = {"class_weight": {"values": [None, [1.0, 2.0]]}, "jit_compile": {"values": [False]}, "epochs": {"value": 1}}
    grid = search("grid", kinds, "epochs=3", "model=mobilenet_v2", "tracker=none")
    grid.run(count=None)
    assert [run.parameters["class_weight"] for run in grid.runs()] == [None, [1.0, 2.0]]
    tail = ["jit_compile=false", "epochs=3", "model=mobilenet_v2", "tracker=none"]
    assert words(grid, 0) == ["class_weight=null", *tail]
    assert words(grid, 1) == ["class_weight=[1.0,2.0]", *tail]


@pytest.mark.slow
def test_a_search_goes_on_and_never_draws_the_same_again(search):
    assert search("random", RATE).run(count=2) == 2
    said = []
    again = search("random", RATE)
    assert again.run(count=5, show=said.append) == 5
    rates = [one["optimizer.learning_rate"] for one in asked(again)]
    assert len(set(rates)) == 5 and all(0 <= rate <= 1 for rate in rates)
    assert said[0] == "going on after 2 runs" and sum(line.startswith("run ") for line in said) == 3
    assert search("random", RATE).run(count=5) == 5


def test_a_grid_goes_on_where_it_was(search):
    parameters = {"seed": {"values": [1, 2, 3]}}
    search("grid", parameters).run(count=2)
    again = search("grid", parameters)
    assert again.run(count=None) == 3
    assert asked(again) == [{"seed": 1}, {"seed": 2}, {"seed": 3}]


@pytest.mark.slow
def test_bayes_learns_where_the_optimum_is(search):
    bayes = search("bayes", RATE, run_cap=20)
    bayes.run(count=None)
    rates = [one["optimizer.learning_rate"] for one in asked(bayes)]
    assert len(rates) == 20
    early, late = ([abs(rate - 0.3) for rate in part] for part in (rates[:6], rates[-8:]))
    assert statistics.median(late) < statistics.median(early) / 2
    best = ranked(bayes.runs(), maximises=True)[0]
    assert best.parameters["optimizer.learning_rate"] == pytest.approx(0.3, abs=0.05)


@pytest.mark.slow
def test_bayes_minimises_where_less_is_better(search):
    bayes = search("bayes", RATE, metric={"name": "epoch/val_loss", "goal": "minimize"})
    bayes.run(count=14, workers=4)
    best = ranked(bayes.runs(), maximises=False)[0]
    assert best.value == min(run.value for run in bayes.runs()) < 0.1


@pytest.mark.slow
def test_a_run_in_its_last_epoch_is_not_stopped_any_more(search, tmp_path):
    path = tmp_path / "stand_in.py"
    said_last = "(folder / 'config.yaml').write_text('epochs: ' + given['epochs'])\nfor epoch in range"
    path.write_text(STAND_IN.replace("for epoch in range", said_last, 1))
    grid = search(
        "grid",
        {"optimizer.learning_rate": {"values": [0.3, 0.9]}, "epochs": {"value": 2}, "data.cache_gb": {"value": 1}},
        early_terminate={"type": "hyperband", "min_iter": 2, "eta": 2},
    )
    grid.run(count=None)
    assert [run.status for run in grid.runs()] == ["finished", "finished"]


@pytest.mark.slow
def test_early_termination_stops_the_worse_half(search):
    rates = [0.3, 0.9, 0.35, 0.8]
    stop = {"type": "hyperband", "min_iter": 2, "eta": 2}
    grid = search(
        "grid",
        {"optimizer.learning_rate": {"values": rates}, "epochs": {"value": 6}, "data.cache_gb": {"value": 0.6}},
        early_terminate=stop,
    )
    said = []
    grid.run(count=None, workers=1, show=said.append)
    runs = grid.runs()
    assert [run.status for run in runs] == ["finished", "stopped", "stopped", "stopped"]
    assert "  run 1 stopped: after epoch 2 it was not among the best" in said
    [folder] = grid.folder.glob("001_*/run")
    record = json.loads((folder / "record.json").read_text())
    assert record["status"] == "stopped" and 2 <= len(record["epochs"]) < 6
    assert (
        search(
            "grid",
            {"optimizer.learning_rate": {"values": rates}, "epochs": {"value": 6}, "data.cache_gb": {"value": 0.6}},
            early_terminate=stop,
        ).run(count=None)
        == 4
    )  # those that were stopped stay so


def test_a_run_that_fails_does_not_end_the_search(search):
    said = []
    grid = search("grid", {"seed": {"values": [1, 13, 2]}})
    grid.run(count=None, show=said.append)
    assert [run.status for run in grid.runs()] == ["finished", "failed", "finished"]
    assert grid.runs()[1].said == "13 has no luck"
    assert any(line.startswith("  run 1 failed: 13 has no luck; see ") for line in said)


def test_a_search_in_which_everything_fails_is_given_up(search):
    grid = search("grid", {"seed": {"value": 13}, "epochs": {"values": [1, 2, 3, 4, 5]}})
    with pytest.raises(UserError, match="The first 3 runs all failed: 13 has no luck"):
        grid.run(count=None)
    assert len(grid.runs()) == 3


def test_a_folder_belongs_to_one_search(search):
    search("random", RATE).run(count=1)
    with pytest.raises(ConfigError, match="holds the runs of another sweep"):
        search("random", RATE, "epochs=3").run(count=1)
    file = search("random", RATE).file
    folder = default_folder(repository_root() / "outputs", file, [])
    assert folder == default_folder(repository_root() / "outputs", file, []) and folder.name.startswith("sweep-")
    assert folder != default_folder(repository_root() / "outputs", file, ["epochs=3"])


def test_two_processes_do_not_search_in_one_folder(search):
    lock = FileLock(search("random", RATE).folder / ".lock")
    assert lock.take(exclusive=True)
    with pytest.raises(ConfigError, match="is being searched by another process"):
        search("random", RATE).run(count=1)
    lock.release()
    assert search("random", RATE).run(count=1) == 1


def test_more_runs_are_the_same_search_and_none_of_them_is_no_run(search):
    first = search("random", RATE, run_cap=1)
    assert first.runs() == []
    first.run(count=None)
    assert search("random", RATE, run_cap=2, name="other").run(count=None) == 2


def test_a_search_without_end_is_refused(search):
    with pytest.raises(ConfigError, match="method: random has no end"):
        search("random", RATE).run(count=None)


@pytest.mark.slow
def test_a_search_that_is_killed_leaves_no_run_and_takes_the_cut_off_one_up(search, tmp_path):
    slow = {"seed": {"values": [1, 2]}, "data.cache_gb": {"value": 30}}
    grid = search("grid", slow)
    code = f"""
import sys
sys.path.insert(0, {str(repository_root() / "src")!r})
from pathlib import Path
from manyfit.sweep_file import SweepFile
from manyfit.sweep_local import LocalSweep
LocalSweep(SweepFile.read(Path(sys.argv[1])), Path(sys.argv[2]), program=Path(sys.argv[3])).run(count=None)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(grid.file.path), str(grid.folder), str(grid.program)], stderr=subprocess.PIPE
    )
    until = time.monotonic() + 60
    while time.monotonic() < until and not list(grid.folder.glob("000_*/run/epochs.jsonl")):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    [path] = grid.folder.glob("000_*/run/record.json")
    assert json.loads(path.read_text())["status"] == "stopped"
    again = search("grid", slow)
    again._fixed = lambda: ["data.cache_gb=0"]  # the stand-in takes the last one
    (tmp_path / "stand_in.py").write_text(STAND_IN.replace('given.get("data.cache_gb", 0)', "0"))
    with pytest.raises(ConfigError, match="belongs to another study"):
        again.run(count=None)
    again = search("grid", slow)
    assert again.run(count=None) == 2
    assert [run.status for run in again.runs()] == ["finished", "finished"]
    assert again.runs()[0].folder.endswith("run-2")
    assert os.path.isdir(again.runs()[0].folder)


def test_the_table_ranks_runs_and_names_the_best():
    runs = [
        SweepRun("a=1", {"x.a": 1, "b": None}, "finished", 0.5, "/runs/0", 2.0),
        SweepRun("a=2", {"x.a": 2, "b": None}, "failed", None, "/runs/1", 1.0, "no luck"),
        SweepRun("a=3", {"x.a": 3, "b": None}, "stopped", 0.9, "/runs/2", 1.0, "early"),
        SweepRun("a=4", {"x.a": 4, "b": None}, "finished", 0.75, "/runs/3", 61.0),
    ]
    assert [run.name for run in ranked(runs, maximises=True)] == ["a=4", "a=1", "a=3", "a=2"]
    assert [run.name for run in ranked(runs, maximises=False)] == ["a=1", "a=4", "a=3", "a=2"]
    console = RichConsole(width=100, record=True, file=io.StringIO())
    for part in sweep_tables(runs, "epoch/val_accuracy", maximises=True):
        console.print(part)
    text = console.export_text()
    rows = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    assert [row[:3] for row in rows] == [
        ["1", "0.7500", "4"],
        ["2", "0.5000", "1"],
        ["3", "(0.9000)", "3"],
        ["4", "-", "2"],
    ]
    assert "failed: a=2: no luck" in text
    assert "Best: a=4 (epoch/val_accuracy 0.7500), in /runs/3" in text
    assert all(text.index(a) < text.index(b) for a, b in pairwise(("0.7500", "0.5000", "(0.9000)")))
