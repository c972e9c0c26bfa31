"""`src/sweep.py check`: every mistake in a sweep file with its line, and nothing in those of sweeps/."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from manyfit import sweep_check
from manyfit.command import repository_root
from manyfit.errors import ConfigError
from manyfit.sweep_check import mistakes
from manyfit.sweep_command import checked
from manyfit.sweep_file import RANGES, Parameter, SweepFile

ROOT = repository_root()
SWEEPS = sorted((ROOT / "sweeps").glob("*.yaml"))

GOOD = """\
program: src/train.py
method: random
metric: {name: epoch/val_accuracy, goal: maximize}
parameters:
  epochs:
    values: [2, 3]
  optimizer:
    values: [adam, sgd]
  optimizer.learning_rate:
    values: [1.0e-3, 0.01]
command:
  - ${env}
  - ${interpreter}
  - ${program}
  - data=mnist
  - model=small_cnn
  - --sweep-parameters
  - ${args_json_file}
"""

NESTED = "optimizer:\n    parameters: {learning_rate: {value: 1.0}}"
STOP = "early_terminate: {type: hyperband, min_iter: 1}"

STRUCTURE = [
    ("method: random", "method: rundom", 2, "method: rundom is none.", "grid, random, bayes"),
    ("src/train.py", "src/trian.py", 1, "src/trian.py is not there", "src/train.py"),
    ("program:", "programme:", 1, "programme is no key", "Did you mean 'program'?"),
    ("epoch/val_accuracy", "val_accuracy", 3, "val_accuracy is never logged", "Did you mean 'epoch/val_accuracy'?"),
    ("maximize", "maximise", 3, "goal: maximise is none", "maximize"),
    ("maximize", "minimize", 3, "The goal of epoch/val_accuracy is to minimize.", "goal: maximize"),
    (", goal: maximize", "", 3, "is to minimize, as W&B takes it where none is given", "goal: maximize"),
    ("name: epoch/val_accuracy", "name: epoch/loss", 3, "The goal of epoch/loss is to maximize", "goal: minimize"),
    ("epoch/val_accuracy", "epoch/val_calibration_error", 3, "is to maximize", "goal: minimize"),
    ("epoch/val_accuracy", "epoch/val_top_k", 3, "epoch/val_top_k is never logged", "Did you mean 'epoch/val_top_"),
    ("[2, 3]", "[]", 6, "values: [] is no list", "[FIRST, SECOND]"),
    ("values: [2, 3]", "{value: 2, values: [3]}", 5, "epochs has value and values", "Give one of"),
    ("values: [2, 3]", "vlaues: [2, 3]", 6, "vlaues is no key of a parameter", "Did you mean 'values'?"),
    ("\n    values: [2, 3]", " 3", 5, "epochs: 3 is no mapping", "{value: 3}"),
    ("[1.0e-3, 0.01]", "[1e-3, 0.01]", 10, "1e-3 is text", "Write 1.0e-03, without quotes."),
    ("[1.0e-3, 0.01]", "['0.1', 0.01]", 10, "0.1 is text", "Write 0.1, without quotes."),
    ("\n    values: [1.0e-3, 0.01]", " {min: 1e-5, max: 0.1}", 9, "are not two whole numbers or two", "Write both"),
    ("  epochs:\n", "  optimizer: {value: sgd}\n  epochs:\n", 8, "optimizer is given twice", "once"),
    ("optimizer:\n    values: [adam, sgd]", NESTED, 4, "optimizer.learning_rate is given dotted and nested", "once"),
    ("data=mnist", "hydra.run.dir=x", 15, "all runs would share one folder", "Leave it out"),
    ("  - --sweep-parameters\n  - ${args_json_file}", "  - ${args}", 17, "${args} loses null", "--sweep-parameters"),
    ("  - --sweep-parameters\n", "", 11, "The command is", "Overrides go before the flag"),
    ("${interpreter}", "${python}", 13, "${python} is replaced by nothing", "${interpreter}"),
    ("command:", "comand:", 11, "comand is no key", "Did you mean 'command'?"),
    ("method: random", "method: bayes\nrun_cap: 0", 3, "run_cap: 0 is no number of runs", ">= 1"),
    ("metric: {name: epoch/val_accuracy, goal: maximize}", STOP, None, "no metric", "name and goal"),
]
# Each with its line; all in one file, since composing takes most of the time.
COMPOSED = [
    ("epochs: {values: [2, 0]}", "epochs=0 is out of range", ">= 1"),
    ("seed: {values: [2, 2.5]}", "seed=2.5 has the wrong type", "whole number"),
    ("optimizer: {values: [adam, adm]}", "optimizer=adm is not one of its choices", "Did you mean 'adam'?"),
    ("optimzer: {value: adam}", "Unknown key: optimzer.", "Did you mean 'optimizer'?"),
    ("optimizer.lr: {value: 0.1}", "Unknown key: optimizer.lr.", "Did you mean 'optimizer.learning_rate'?"),
    ("optimizer.momentum: {value: 0.1}", "Unknown key: optimizer.momentum.", "belongs to optimizer=sgd"),
    ("optimizer.learning_rate: {min: -0.1, max: 0.1}", "learning_rate=-0.1 is out of range", "> 0"),
    ("data.prefetch: {values: [yes, 'no']}", "data.prefetch=the text 'no'", "type of its key"),
    ("model.feature_cache: {values: [off, auto]}", "feature_cache=False", "quote them"),
    ("+epochs: {value: 1}", "'+epochs' is not a key", "without +"),
    ("hydra.run.dir: {value: x}", "is Hydra's own", "folder of its own"),
    ("tracker: {parameters: {notes: {value: '${x}'}}}", "tracker.notes", "without '${'"),
]
STOPS = [
    ("{type: median, min_iter: 1}", "type: median is none", "hyperband"),
    ("{type: hyperband}", "takes either min_iter or max_iter", "one of the two"),
    ("{type: hyperband, min_iter: 0}", "min_iter: 0 is out of range", "whole number"),
    ("{type: hyperband, min_iter: 1, etta: 3}", "etta is no key", "Did you mean 'eta'?"),
    ("3", "early_terminate: 3 is no mapping", "min_iter"),
]
SPECS = [
    ("{min: 1.0, max: 0.5}", "min: 1.0 is not below max: 0.5"),
    ("{min: 0.0, max: 0.5, distribution: log_uniform_values}", "a logarithm needs min > 0"),
    ("{min: 1e-5, max: 1e-2, distribution: log_uniform_values}", "1e-5 is text"),
    ("{min: 1.0e-3, distribution: uniform}", "needs min and max"),
    ("{mu: 0.1, distribution: normal}", "needs mu and sigma"),
    ("{mu: 0.1, sigma: -1, distribution: normal}", "sigma: -1 is not above 0"),
    ("{min: 0.1, max: .inf}", "max: inf is no number"),
    ("{min: 1.0e-3, max: 0.1, distribution: log}", "log is unknown"),
    ("{values: [0.1, 0.2], probabilities: [0.5, 0.6]}", "do not fit"),
    ("{values: [0.1, 0.2], distribution: categorical_w_probabilities}", "has no probabilities"),
]


def found_in(tmp_path, text, **keywords):
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    return mistakes(SweepFile.read(path), ROOT, **keywords)


def changed(old, new):
    assert old in GOOD
    return GOOD.replace(old, new, 1)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
@pytest.mark.slow
def test_the_shipped_files_are_right_and_say_how_they_are_run(path):
    assert [mistake.shown(path) for mistake in mistakes(SweepFile.read(path), ROOT)] == []
    header = path.read_text().split("program:")[0]
    assert all(line.startswith("#") for line in header.splitlines())
    name = f"sweeps/{path.name}"
    assert f"wandb sweep {name}" in header and f"uv run src/sweep.py local {name}" in header
    assert "# Answers: " in header and "# Costs: " in header


def test_the_files_that_are_promised_are_there():
    assert {path.stem for path in SWEEPS} == {"learning_rate", "batch_size", "head", "scaling", "emnist"}


def test_a_right_file_has_no_mistakes(tmp_path):
    assert found_in(tmp_path, GOOD) == []


def test_a_metric_by_word_has_to_be_asked_for(tmp_path):
    wanted = changed("epoch/val_accuracy", "epoch/val_top_7")
    [mistake] = found_in(tmp_path, wanted)
    assert mistake.line == 3 and "epoch/val_top_7 is not counted" in mistake.message
    assert mistake.remedy == "Add metrics=[top_7] to the command."
    assert found_in(tmp_path, wanted.replace("  - data=mnist", "  - data=mnist\n  - metrics=[auc,top_7]")) == []


@pytest.fixture
def without_hydra(monkeypatch):
    """Composing takes most of the time, and says nothing of the file's structure."""
    monkeypatch.setattr(sweep_check, "_composition", lambda *arguments: [])


@pytest.mark.usefixtures("without_hydra")
@pytest.mark.parametrize(("old", "new", "line", "message", "remedy"), STRUCTURE, ids=lambda value: str(value)[:30])
def test_a_mistake_of_structure_is_found_with_its_line(tmp_path, old, new, line, message, remedy):
    found = found_in(tmp_path, changed(old, new))
    [mistake, *_] = [mistake for mistake in found if message in mistake.message]
    assert remedy in mistake.remedy and mistake.line == line


def test_what_hydra_would_refuse_is_found_with_its_line(tmp_path):
    head, rest = GOOD.split("parameters:\n")
    lines = "".join(f"  {line}\n" for line, *_ in COMPOSED)
    text = head + "parameters:\n" + lines + rest[rest.index("command:") :]
    text = text.replace("data=mnist", "data=mnits").replace("model=small_cnn", "epochs=7")
    found = found_in(tmp_path, text)
    for line, (_, message, remedy) in enumerate(COMPOSED, start=5):
        [mistake] = [mistake for mistake in found if mistake.line == line]
        assert message in mistake.message and remedy in mistake.remedy
    [choice, twice] = found[len(COMPOSED) :]
    assert "data=mnits is not one of its choices" in choice.message and "Did you mean 'mnist'?" in choice.remedy
    assert "epochs is a parameter, and the command gives it as well" in twice.message


@pytest.mark.usefixtures("without_hydra")
@pytest.mark.parametrize(("stop", "message", "remedy"), STOPS)
def test_early_termination_that_cannot_be(tmp_path, stop, message, remedy):
    [mistake] = found_in(tmp_path, changed("metric:", f"early_terminate: {stop}\nmetric:"))
    assert (mistake.line, message in mistake.message, remedy in mistake.remedy) == (3, True, True)


@pytest.mark.slow
def test_early_termination_after_the_end_or_by_a_number_of_the_end(tmp_path):
    text = changed("metric:", "early_terminate: {type: hyperband, min_iter: 9}\nmetric:")
    text = text.replace("  epochs:\n    values: [2, 3]\n", "").replace("data=mnist", "epochs=9")
    [mistake] = found_in(tmp_path, text)
    assert "min_iter: 9 with epochs=9 stops nothing" in mistake.message
    [mistake] = found_in(tmp_path, text.replace("min_iter: 9", "min_iter: 1").replace("epoch/val", "best/val"))
    assert "known at the end of a run only" in mistake.message


@pytest.mark.usefixtures("without_hydra")
@pytest.mark.parametrize(("spec", "message"), SPECS)
def test_a_range_that_cannot_be(tmp_path, spec, message):
    text = changed("\n    values: [1.0e-3, 0.01]", f" {spec}")
    found = found_in(tmp_path, text)
    assert [mistake.line for mistake in found if message in mistake.message] == [9]


@pytest.mark.usefixtures("without_hydra")
def test_a_grid_cannot_hold_a_range(tmp_path):
    text = changed("\n    values: [1.0e-3, 0.01]", " {min: 0.1, max: 0.5}").replace("random", "grid")
    [mistake] = found_in(tmp_path, text)
    assert mistake.line == 9 and "a grid cannot hold" in mistake.message
    assert found_in(tmp_path, text.replace("0.5}", "0.5, distribution: q_uniform, q: 0.1}")) == []


def test_values_that_only_clash_together_are_found_in_a_grid(tmp_path):
    text = changed(
        "  optimizer:", "  jit_compile: {values: [false, true]}\n  strategy.replicas: {values: [1, 2]}\n  seed:"
    )
    text = text.replace("[adam, sgd]", "[0]").replace("[2, 3]", "[2]").replace("[1.0e-3, 0.01]", "[0.01]")
    [mistake] = found_in(tmp_path, text.replace("method: random", "method: grid"))
    assert "jit_compile=true does not work with strategy.replicas=2" in mistake.message


def test_parameters_that_only_fit_together_are_no_mistake(tmp_path):
    extra = "  schedule.boundaries: {value: [1, 2, 3]}\n  schedule.factors: {value: [0.5, 0.2, 0.1]}\n  epochs:\n"
    assert found_in(tmp_path, changed("  epochs:\n", extra).replace("data=mnist", "schedule=step")) == []


def test_every_mistake_is_listed_in_one_error(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(GOOD.replace("random", "rundom").replace("[2, 3]", "[2, 0, -1]").replace("adam, sgd", "adm, sgd"))
    with pytest.raises(ConfigError) as refused:
        checked(path, ROOT, [])
    assert refused.value.exit_code == 2 and "has 4 mistakes." in refused.value.message
    lines = re.findall(rf"^{re.escape(str(path))}:(\d+): ", refused.value.remedy, re.MULTILINE)
    assert lines == ["2", "6", "6", "8"]


@pytest.mark.slow
def test_a_mistake_of_the_command_line_is_not_the_files(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(GOOD)
    with pytest.raises(ConfigError, match="Unknown key: data.rot"):
        checked(path, ROOT, ["data.rot=x"])
    assert checked(path, ROOT, ["epochs=7", "data.root=x"]).fixed == ["data=mnist", "model=small_cnn"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method: [", ":1: not YAML"),
        ("- 1\n", "holds no sweep"),
        ("", "holds no sweep"),
        (None, "cannot be read"),
        ("method: grid\n", "program: None is not there"),
        ("parameters: 3\nmethod: grid\nmetric: 3\ncommand: 3\n", "There are no parameters"),
        ("parameters: {1: {value: 1}, 2: 3}\nmetric: {}\n", "2: 3 is no mapping"),
    ],
)
def test_whatever_the_file_holds_ends_in_one_error(tmp_path, text, message):
    path = tmp_path / "sweep.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        checked(path, ROOT, [])
    assert message in str(refused.value)


class Ends:
    """An Optuna trial that draws the smallest, or the largest."""

    def __init__(self, largest):
        self.largest = largest

    def suggest_float(self, name, low, high, *, log=False):
        return high if self.largest else low

    suggest_int = suggest_float

    def suggest_categorical(self, name, choices):
        return choices[-1 if self.largest else 0]


@pytest.mark.parametrize("distribution", RANGES)
def test_the_ends_of_a_range_are_what_is_checked_and_drawn(distribution):
    spec = {"distribution": distribution, "min": 1, "max": 3, "mu": 0.5, "sigma": 0.1, "q": 0.5}
    parameter = Parameter.of("x", spec)
    drawn = [parameter.suggest(Ends(largest)) for largest in (False, True)]
    assert parameter.examples() == drawn and drawn[0] < drawn[1]
    if distribution.startswith("q_"):
        assert all((value / 0.5).is_integer() for value in drawn)
    if distribution == "log_uniform":
        assert drawn == pytest.approx([2.71828, 20.0855], rel=1e-4)
    if distribution == "log_uniform_values":
        assert drawn == [1.0, 3.0]
    if distribution == "normal":
        assert drawn == pytest.approx([0.5 - 0.309, 0.5 + 0.309], abs=1e-3)


def test_steps_of_a_tenth_are_tenths():
    parameter = Parameter.of("x", {"distribution": "q_uniform", "min": 0.0, "max": 0.7, "q": 0.1})
    assert parameter._quantised(0.3000001) == 0.3 and parameter._quantised(0.69) == 0.7


def test_the_script_answers_soon_and_lists_mistakes(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(GOOD.replace("adam", "adm"))
    ask = [sys.executable, ROOT / "src/sweep.py"]
    done = subprocess.run([*ask, "check", path], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{path}:8: optimizer=adm is not one of its choices." in done.stderr and "Traceback" not in done.stderr
    done = subprocess.run([*ask, "--help"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "--workers N" in done.stdout
    done = subprocess.run([*ask, "local", path, "--wrkers", "2"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and "--wrkers is no flag" in done.stderr
    assert sorted(entry.name for entry in Path(tmp_path).iterdir()) == ["sweep.yaml"]


def test_lines_are_those_of_the_keys(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(GOOD)
    file = SweepFile.read(path)
    assert (file.line("parameters", "epochs"), file.line("parameters", "epochs", "values", 1)) == (5, 6)
    assert file.line("parameters", "epochs", "nothing") == 5 and file.line("nothing") is None
    assert yaml.safe_load(GOOD) == file.content
