"""`hydra_command`: every mistake on the command line ends in one message, exit code 2 and no trace."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from manyfit.command import hydra_command, repository_root, requested_run_dir
from manyfit.config import _all_keys, check
from manyfit.errors import DataError, TrainingError, UserError
from manyfit.overrides import long_form

SOURCE = repository_root() / "src"
SCRIPT = f"""
import sys
sys.path.insert(0, {str(SOURCE)!r})
from manyfit.command import hydra_command, requested_run_dir
from manyfit.config import check


@hydra_command
def main(composed):
    config = check(composed)
    assert "tensorflow" not in sys.modules
    print(config.epochs, requested_run_dir())


if __name__ == "__main__":
    main()
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(monkeypatch, capsys):
    """Call `task` as a script is called; the exit code and both streams."""

    def run(*arguments, task=lambda composed: check(composed) and None):
        monkeypatch.setattr(sys, "argv", ["src/train.py", *arguments])
        with pytest.raises(SystemExit) as exit_:
            hydra_command(task)()
        return exit_.value.code, *capsys.readouterr()

    return run


BAD = [
    (["optimizer=adm"], "optimizer=adm is not one of its choices", "Did you mean 'adam'? Choices: adam, adamw, sgd."),
    (["data=cat_dogs"], "data=cat_dogs", "Did you mean 'cats_dogs'?"),
    (["optimizer=3"], "optimizer=3", "Choices: adam, adamw, sgd."),
    (["optimizer=null"], "optimizer=null", "Choices: adam, adamw, sgd."),
    (["optimizer=[adam,sgd]"], "gives 2 choices", "Choices: adam, adamw, sgd."),
    (["experiment=missing"], "experiment=missing is not one of its choices", "mnist_tutorial"),
    (["experiment=null"], "experiment=null", "Leave it out."),
    (["optimzer=adam"], "Unknown key: optimzer.", "Did you mean 'optimizer'?"),
    (["optimzer.x=3"], "Unknown key: optimzer.", "Did you mean 'optimizer'?"),
    (["epcohs=3"], "Unknown key: epcohs.", "Did you mean 'epochs'?"),
    (["optimizer.lr=1"], "Unknown key: optimizer.lr.", "Did you mean 'optimizer.learning_rate'?"),
    (["learning_rate=1"], "Unknown key: learning_rate.", "Did you mean 'optimizer.learning_rate'?"),
    (["optimizer.nesterov=true"], "Unknown key: optimizer.nesterov.", "belongs to optimizer=sgd"),
    (["epochs.x=3"], "Unknown key: epochs.x.", "epochs is a single value"),
    (["optimizer@other=adam"], "Unknown key: optimizer@other.", "--cfg job"),
    (["+typo=1"], "Unknown key: typo.", "Choices: "),
    (["++optimizer.lr=1"], "Unknown key: optimizer.lr.", "Did you mean 'optimizer.learning_rate'?"),
    (["+foo/bar=x"], "Unknown key: foo/bar.", "Choices: "),
    (["+epochs=3"], "epochs exists already", "epochs=VALUE"),
    (["+optimizer=sgd"], "chosen, not added", "Write optimizer=sgd"),
    (["++optimizer=sgd"], "chosen, not added", "Write optimizer=sgd"),
    (["~optimizer"], "cannot be taken away", "another value"),
    (["~optimizer.learning_rate"], "cannot be taken away", "another value"),
    (["optimizer=sgd", "optimizer=adam"], "optimizer is given twice: optimizer=sgd and optimizer=adam", "once"),
    (["optimizer=adam,sgd"], "several values", "add --multirun (-m)"),
    (["epochs=1,2"], "several values", "'epochs=[1,2]'"),
    (["epochs=range(1,3)"], "several values", "wandb sweep"),
    (["epochs"], "epochs has no '='", "Write epochs=VALUE."),
    (["mirrored"], "mirrored has no '='", "Write strategy=mirrored."),
    ([""], "has no '='", "KEY=VALUE"),
    (["=3"], "is not a key", "KEY=VALUE"),
    (["strategy.devices[0]=1"], "is not a key", "KEY=VALUE"),
    (["epochs=("], "the value cannot be read", "Quote"),
    (["data.root=/my photos(1)"], "the value cannot be read", "'data.root=\"/my photos(1)\"'"),
    (["hydra.run.di=x"], "hydra.run.di is fixed here", "hydra.run.dir"),
    (["hydra.mode=MULTIRUN"], "hydra.mode is fixed here", "hydra.run.dir"),
    (["hydra.job.chdir=true"], "hydra.job.chdir is fixed here", "hydra.run.dir"),
    (["hydra/job_logging=default"], "is fixed here", "hydra.run.dir"),
    (["hydra.run.dir=${nowhere}"], "nowhere", "--cfg job"),
    (["--epochs", "3"], "--epochs is no flag", "epochs=VALUE"),
    (["--batch-size=3"], "--batch-size=3 is no flag", "batch_size=VALUE"),
    (["epochs=2", "--cfg", "job", "seed=3"], "seed=3 is cut off", "before or after"),
    (["--cfg", "jobs"], "invalid choice", "--cfg job"),
    (["--cfg", "job", "--info"], "--cfg and --info exclude each other", "one of them"),
    (["--resolve"], "--resolve goes with --cfg", "--cfg job --resolve"),
    (["--config-name", "nothing"], "nothing", "--cfg job"),
    (["-m", "epochs=1,2"], "takes no --multirun", "goes with src/train.py"),
    (["-m", "epochs=1,2", "--cfg", "job"], "--multirun and --cfg exclude each other", "one of them"),
    (["hydra.sweep.dir=x"], "is the folder of many runs", "hydra.run.dir=PATH"),
    (["--sweep-parameters"], "has no file", "${args_json_file}"),
    (["--sweep-parameters", "nowhere.json"], "cannot be read", "${args_json_file}"),
    (["epochs=abc"], "epochs=abc has the wrong type", "whole number"),
    (["epochs=0"], "epochs=0 is out of range", ">= 1"),
]


@pytest.mark.parametrize(("arguments", "message", "remedy"), BAD)
def test_a_mistake_is_one_message_and_code_2(call, tmp_path, arguments, message, remedy):
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert message in err.splitlines()[0]
    assert remedy in err.split("\n", 1)[1]
    assert "Traceback" not in err and "HYDRA_FULL_ERROR" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [[], ["epochs=3", "epochs=2"], ["optimizer=sgd", "optimizer=sgd"], ["experiment=[]"]]
)
def test_what_is_right_runs(call, tmp_path, arguments):
    assert call(*arguments) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (75, 75), (143, 143)])
def test_the_exit_code_is_what_the_task_returns(call, returned, code):
    assert call(task=lambda composed: returned)[0] == code


def test_many_runs_are_asked_of_whom_the_script_names(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(sys, "argv", ["src/train.py", "-m", "epochs=1,2", "--config-dir", "more"])
    with pytest.raises(SystemExit) as exit_:
        hydra_command(many=lambda arguments: asked.append(arguments) or 75)(lambda composed: 0)()
    assert exit_.value.code == 75 and capsys.readouterr() == ("", "")
    assert [(one.overrides, one.config_dir) for one in asked] == [(["epochs=1,2"], "more")]


@pytest.mark.parametrize(("error", "code"), [(UserError, 1), (TrainingError, 1), (DataError, 2)])
def test_a_user_error_of_the_task_is_a_message_with_its_code(call, error, code):
    def task(composed):
        raise error("No photo can be read.", "Give data.root=PATH.")

    assert call(task=task) == (code, "", "Error: No photo can be read.\nGive data.root=PATH.\n")


def test_an_interrupt_ends_quietly(call):
    def task(composed):
        raise KeyboardInterrupt

    assert call(task=task) == (130, "", "")


def test_an_unexpected_error_keeps_its_traceback(monkeypatch, capsys):
    def task(composed):
        raise ValueError("a bug")

    monkeypatch.setattr(sys, "argv", ["src/train.py"])
    with pytest.raises(ValueError, match="a bug"):
        hydra_command(task)()
    assert capsys.readouterr().err == ""


def test_the_user_can_ask_for_the_traceback(call, monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    code, _, err = call("epcohs=3")
    assert code == 2
    assert "Traceback" in err and "Did you mean 'epochs'?" in err


@pytest.mark.parametrize("value", [None, "0", "1"])
def test_the_task_sees_the_users_own_environment(call, monkeypatch, value):
    if value is not None:
        monkeypatch.setenv("HYDRA_FULL_ERROR", value)
    seen = []
    call(task=lambda composed: seen.append(os.environ.get("HYDRA_FULL_ERROR")))
    call("epcohs=3")
    assert seen == [value] and os.environ.get("HYDRA_FULL_ERROR") == value


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], None),
        (["hydra.run.dir=a/b"], "a/b"),
        (["hydra.run.dir=/a/b"], "/a/b"),
        (["++hydra.run.dir=a"], "a"),
        (["hydra.run.dir=runs/${model.name}", "model=small_cnn"], "runs/small_cnn"),
    ],
)
def test_the_requested_folder_is_known_and_not_made(call, tmp_path, arguments, expected):
    seen = []
    assert call(*arguments, task=lambda composed: seen.append(requested_run_dir()))[0] == 0
    assert seen == [tmp_path / expected if expected else None]
    assert list(tmp_path.iterdir()) == []


def test_a_home_in_the_requested_folder_is_expanded(call, monkeypatch):
    monkeypatch.setenv("HOME", "/nobody")
    seen = []
    call('hydra.run.dir="~/runs"', task=lambda composed: seen.append(requested_run_dir()))
    assert seen == [Path("/nobody/runs")]


def test_an_experiment_can_name_the_folder_and_its_mistakes_are_explained(call, tmp_path):
    folder = tmp_path / "more/experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("# @package _global_\nepochs: 7\nhydra:\n  run:\n    dir: here\n")
    (folder / "typo.yaml").write_text("# @package _global_\nepcohs: 7\n")
    (folder / "broken.yaml").write_text("epochs: [7\n")
    seen = []
    task = lambda composed: seen.append((composed.epochs, requested_run_dir()))  # noqa: E731
    assert call("--config-dir", "more", "experiment=mine", task=task)[0] == 0
    assert seen == [(7, tmp_path / "here")]
    code, _, err = call("--config-dir", "more", "experiment=typo")
    assert code == 2 and "Did you mean 'epochs'?" in err
    code, _, err = call("--config-dir", "more", "experiment=broken")
    assert code == 2 and "broken.yaml" in err and "Traceback" not in err
    code, _, err = call("--config-dir", "nowhere")
    assert code == 2 and "nowhere" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["more"]


def test_help_shows_the_groups_the_usual_overrides_and_examples(call):
    code, out, _ = call("--help")
    assert code == 0
    for text in ("strategy: default, mirrored, multi_worker, one_device", "data.root=PATH", "Examples:", "--cfg job"):
        assert text in out
    assert out.count("strategy=mirrored") >= 2
    assert max(len(line) for line in out.splitlines()) <= 120


def test_every_override_that_help_names_exists(call):
    _, out, _ = call("--help")
    lines = out.split("Often given")[1].split("Examples:")[0].splitlines()[1:]
    keys = [line.split("=")[0].strip() for line in lines if "=" in line]
    assert len(keys) > 8
    keys = [long_form(f"{key}=").removesuffix("=") for key in keys]
    assert set(keys) - {"hydra.run.dir"} <= set(_all_keys())


def test_flags_answer_without_running(call):
    task = lambda composed: pytest.fail("the task ran")  # noqa: E731
    assert "learning_rate: 0.01" in call("--cfg", "job", "optimizer=sgd", task=task)[1]
    assert "manyfit" in call("--version", task=task)[1]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 0),
        (["--help"], 0),
        (["--cfg", "job"], 0),
        (["--info", "defaults"], 0),
        (["optimizer=adm"], 2),
        (["+typo=1"], 2),
        (["epochs=abc"], 2),
    ],
)
def test_a_script_answers_soon_and_without_tensorflow(tmp_path, arguments, code):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, script, *arguments], cwd=elsewhere, capture_output=True, text=True, timeout=60
    )
    print(f"{' '.join(arguments) or '(nothing)'}: {time.perf_counter() - start:.2f} s")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert bool(done.stderr) == (code != 0)
    assert list(elsewhere.iterdir()) == []


def test_ctrl_c_ends_a_script_with_130_and_nothing_else(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        SCRIPT.replace(
            "    print(config.epochs, requested_run_dir())",
            "    print('ready', flush=True)\n    import time\n    time.sleep(60)",
        )
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")
