"""`src/show.py`: what is in a run folder, whatever its state, without TensorFlow."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from manyfit import checkpoint
from manyfit.checkpoint import Checkpoint, Position
from manyfit.command import repository_root
from manyfit.console import Console
from manyfit.errors import UserError
from manyfit.locks import FileLock
from manyfit.record import LOCK_NAME
from manyfit.show import run_command


@pytest.fixture
def told(capsys):
    def tell(folder, **keywords):
        sheet = run_command(folder, Console(width=200), **keywords)
        return sheet, capsys.readouterr().out

    return tell


def section(sheet, heading):
    return dict(dict(sheet.sections)[heading])


def test_a_finished_run(made_runs, tmp_path, told):
    folder = made_runs.make_run(tmp_path / "run", replicas=2, tracker={"sync_command": "wandb sync wandb/x"})
    (folder / "model.keras").write_bytes(b"x" * 1500)
    sheet, text = told(folder)
    assert sheet.title == "run: finished"
    assert section(sheet, "in the folder")["model.keras"].startswith("1.5 kB")
    assert section(sheet, "result")["best epoch"] == "5 of 5"
    commands = dict(sheet.commands)
    assert (
        commands["train it for more epochs"] == f"python src/train.py resume={folder} epochs=10 'resume.allow=[epochs]'"
    )
    assert commands["upload it to W&B"] == "wandb sync wandb/x"
    assert commands["export its model"].startswith(f"python src/export.py {folder} --format")
    for part in ("2 replicas", "tensorflow 2.21.0", "src/compare.py", "src/predict.py", "src/evaluate.py"):
        assert part in text


def test_an_unfinished_run_says_how_to_go_on_and_from_where(made_runs, tmp_path, told):
    folder = made_runs.make_run(
        tmp_path / "a run", epochs=2, status="stopped", error="stopped by SIGTERM", exit_code=143
    )
    for position in (Position(1, 0), Position(2, 7)):
        checkpoint.save(folder / checkpoint.FOLDER_NAME, Checkpoint(position, {"w": np.zeros(3)}))
    sheet, _ = told(folder)
    rows = section(sheet, "checkpoints")
    assert rows["1"].startswith("in epoch 3, after step 7") and rows["2"].startswith("after epoch 1 (")
    assert dict(sheet.commands)["go on with it"] == f"python src/train.py resume='{folder}'"
    assert section(sheet, "how it went")["error"] == "stopped by SIGTERM"
    assert "evaluate its model" not in dict(sheet.commands)  # it holds no model


def test_without_a_checkpoint_it_starts_again(made_runs, tmp_path, told):
    sheet, _ = told(made_runs.make_run(tmp_path / "run", epochs=0, status="failed"))
    assert any(purpose.startswith("go on with it (from its start") for purpose, _ in sheet.commands)


def test_attempts_are_listed_where_there_is_more_than_one(made_runs, tmp_path, told):
    one = {"started": "2026-01-01T00:00:00+00:00", "ended": None, "status": "killed", "from_epoch": 1, "from_step": 0}
    two = {**one, "status": "finished", "from_epoch": 3, "from_step": 4, "num_replicas": 4, "host": "box"}
    folder = made_runs.make_run(tmp_path / "run", attempts=[one, two])
    rows = section(told(folder)[0], "attempts")
    assert rows["1"] == "killed 2026-01-01 00:00:00 UTC to -, from epoch 1, step 0, ? replicas"
    assert rows["2"].endswith("from epoch 3, step 4, 4 replicas, on box")
    record = json.loads((folder / "record.json").read_text())
    del record["attempts"]  # as an older version wrote it
    (folder / "record.json").write_text(json.dumps(record))
    assert "attempts" not in dict(told(folder)[0].sections)


def test_a_run_that_was_killed_is_not_called_running(made_runs, tmp_path, told):
    folder = made_runs.make_run(tmp_path / "run", status="running")
    assert section(told(folder)[0], "how it went")["status"] == "running"
    lock = FileLock(folder / LOCK_NAME)
    assert lock.take(exclusive=True)
    assert section(told(folder)[0], "how it went")["status"] == "running"
    lock.release()
    assert "no process is at it" in section(told(folder)[0], "how it went")["status"]


def test_a_rehearsal_and_its_notices(made_runs, tmp_path, told):
    folder = made_runs.make_run(tmp_path / "run", rehearsal=True, notices=["The pictures are drawn by code."])
    sheet, text = told(folder)
    assert sheet.title == "run: finished, a rehearsal"
    assert "The pictures are drawn by code." in text


def test_json_is_one_object(made_runs, tmp_path, told):
    _, text = told(made_runs.make_run(tmp_path / "run"), as_json=True)
    assert json.loads(text)["sections"]["how it went"]["status"] == "finished"


def test_no_run(tmp_path, told):
    with pytest.raises(UserError, match="holds no run"):
        told(tmp_path)


def test_the_script_answers_without_tensorflow(made_runs, tmp_path):
    folder = made_runs.make_run(tmp_path / "run")
    blocked = "import sys; sys.modules['tensorflow'] = sys.modules['keras'] = None; sys.argv = sys.argv[1:]; "
    script = repository_root() / "src" / "show.py"
    code = f"{blocked}import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    environ = {"PYTHONPATH": str(script.parent), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code, str(script), str(folder)], env=environ, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("run: finished")
    shutil.rmtree(folder)
    done = subprocess.run(
        [sys.executable, "-c", code, str(script), str(folder)], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "holds no run" in done.stderr
