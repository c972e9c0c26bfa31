"""RunRecord on the disk, the run folder, and what is said about code and machine."""

import json
import math
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyfit import record as record_module
from manyfit.errors import ConfigError, TrainingError, UserError
from manyfit.files import to_json, to_plain, write_atomically
from manyfit.record import SECTIONS, RunRecord, environment, make_run_folder

ROW = {"epoch": 0, "loss": 0.5, "accuracy": 0.75}


def on_disk(folder):
    return json.loads((folder / "record.json").read_text(), parse_constant=pytest.fail)


def rows_on_disk(folder):
    return [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]


def test_a_new_record_is_running_and_complete(tmp_path):
    RunRecord.create(tmp_path, rehearsal=True, data={"name": "mnist", "num_train": 5})
    data = on_disk(tmp_path)
    assert (data["schema"], data["status"], data["rehearsal"]) == (1, "running", True)
    assert data["data"] == {"name": "mnist", "num_train": 5}
    assert set(SECTIONS) <= set(data)
    assert (data["epochs"], data["notices"], data["exit_code"], data["error"]) == ([], [], None, None)
    assert data["started"].endswith("+00:00")


def test_what_is_loaded_is_what_was_written(tmp_path):
    record = RunRecord.create(tmp_path, model={"name": "small_cnn"})
    record.add_epoch(ROW)
    assert RunRecord.load(tmp_path).data == record.data == on_disk(tmp_path)


def test_update_merges_and_writes(tmp_path):
    record = RunRecord.create(tmp_path, timing={"startup_seconds": 1.5})
    record.update("timing", total_seconds=9.0)
    record.update("anything", count=2)
    assert on_disk(tmp_path)["timing"] == {"startup_seconds": 1.5, "total_seconds": 9.0}
    assert on_disk(tmp_path)["anything"] == {"count": 2}


def test_status_ends_the_record(tmp_path):
    record = RunRecord.create(tmp_path, timing={"startup_seconds": 1.5})
    record.set_status("failed", exit_code=1, error="boom", timing={"total_seconds": 3})
    data = on_disk(tmp_path)
    assert (data["status"], data["exit_code"], data["error"]) == ("failed", 1, "boom")
    assert data["timing"] == {"startup_seconds": 1.5, "total_seconds": 3}
    assert data["ended"] >= data["started"]
    record.set_status("running")
    assert on_disk(tmp_path)["ended"] is None


def test_an_unknown_status_is_a_programming_error(tmp_path):
    with pytest.raises(ValueError, match="done"):
        RunRecord.create(tmp_path).set_status("done")


def test_a_notice_is_kept_once(tmp_path):
    record = RunRecord.create(tmp_path)
    record.notice("one CPU replica")
    record.notice("one CPU replica")
    assert on_disk(tmp_path)["notices"] == ["one CPU replica"]


def test_each_epoch_is_a_row_and_a_line(tmp_path):
    record = RunRecord.create(tmp_path)
    for epoch in range(3):
        record.add_epoch({**ROW, "epoch": epoch})
    assert [row["epoch"] for row in on_disk(tmp_path)["epochs"]] == [0, 1, 2]
    assert rows_on_disk(tmp_path) == on_disk(tmp_path)["epochs"]
    assert sum('"epoch":' in line for line in (tmp_path / "record.json").read_text().splitlines()) == 3


@pytest.mark.parametrize("left_over", ['{"epoch": 0, "lo', json.dumps(ROW) + "\n" + json.dumps(ROW) + "\n", ""])
def test_rows_agree_with_the_record_after_a_crash(tmp_path, left_over):
    RunRecord.create(tmp_path).add_epoch(ROW)
    (tmp_path / "epochs.jsonl").write_text(left_over)
    RunRecord.load(tmp_path).add_epoch({**ROW, "epoch": 1})
    assert [row["epoch"] for row in rows_on_disk(tmp_path)] == [0, 1]


def test_numbers_that_are_not_finite_become_null(tmp_path):
    record = RunRecord.create(tmp_path, best={"val_loss": math.nan})
    record.add_epoch({"loss": np.float32("inf"), "accuracy": np.array([0.5, -np.inf])})
    record.data["best"]["val_accuracy"] = math.inf
    record.write()
    assert on_disk(tmp_path)["epochs"] == [{"loss": None, "accuracy": [0.5, None]}]
    assert on_disk(tmp_path)["best"] == {"val_loss": None, "val_accuracy": None}
    assert rows_on_disk(tmp_path) == on_disk(tmp_path)["epochs"]


@dataclass
class Point:
    place: Path
    size: np.int64


class Tensor:
    def numpy(self):
        return np.float32(0.5)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (np.float64(0.25), 0.25),
        ((1, 2.0, None, "x"), [1, 2.0, None, "x"]),
        ({2: "a"}, {"2": "a"}),
        ({3, 1}, [1, 3]),
        (Point(Path("a/b"), np.int64(2)), {"place": "a/b", "size": 2}),
        (Tensor(), 0.5),
        (1 + 2j, "(1+2j)"),
    ],
)
def test_values_become_plain(value, expected):
    assert to_plain(value) == expected
    assert json.loads(to_json(value)) == expected


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_like_value_survives_the_disk(value):
    plain = to_plain(value)
    assert json.loads(to_json(value)) == plain
    assert to_plain(plain) == plain


def test_names_in_any_script_and_in_no_encoding_are_kept(tmp_path):
    names = ["café", "猫", os.fsdecode(b"odd-\xff.jpg"), 'quote" and\nbreak', "\u2028"]
    RunRecord.create(tmp_path, data={"class_names": names})
    assert RunRecord.load(tmp_path).data["data"]["class_names"] == names
    assert "猫" in (tmp_path / "record.json").read_text()


def test_a_run_is_never_overwritten(tmp_path):
    RunRecord.create(tmp_path)
    before = (tmp_path / "record.json").read_bytes()
    with pytest.raises(ConfigError, match="never overwritten"):
        RunRecord.create(tmp_path)
    assert (tmp_path / "record.json").read_bytes() == before


def test_a_failed_write_leaves_the_old_record(tmp_path, monkeypatch):
    record = RunRecord.create(tmp_path)
    before = (tmp_path / "record.json").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrainingError, match="No space left"):
        record.update("timing", total_seconds=1)
    assert (tmp_path / "record.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_a_folder_that_cannot_take_its_first_record_stays_empty(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TrainingError):
        RunRecord.create(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_record_without_its_folder_says_so(tmp_path):
    with pytest.raises(TrainingError, match="cannot be written"):
        RunRecord.create(tmp_path / "missing")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not readable JSON"),
        (b'{"schema": 1, "status": "runn', "not readable JSON"),
        (b"\xff\xfe\x00garbage", "not readable JSON"),
        (b"[" * 100_000, "not readable JSON"),
        (b"[1, 2]", "not the record of a run"),
        (b"null", "not the record of a run"),
        (b'{"loss": 1}', "not the record of a run"),
        (b'{"schema": 2}', "schema 2, expected 1"),
        (b'{"schema": {"a": 1}}', "expected 1"),
        (b'{"schema": 1}', "lacks or garbles"),
    ],
)
def test_a_file_that_is_no_record_is_refused_with_a_remedy(tmp_path, content, said):
    (tmp_path / "record.json").write_bytes(content)
    with pytest.raises(UserError, match=said) as caught:
        RunRecord.load(tmp_path)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("section", "value"),
    [("epochs", {}), ("epochs", [1]), ("epochs", None), ("data", []), ("status", 3), ("status", "?"), ("notices", "x")]
    + [("system", []), ("phases", {}), ("phases", [1])],
)
def test_a_section_of_another_type_is_refused(tmp_path, section, value):
    record = RunRecord.create(tmp_path)
    (tmp_path / "record.json").write_text(json.dumps({**record.data, section: value}))
    with pytest.raises(UserError, match=section):
        RunRecord.load(tmp_path)


def test_a_folder_without_a_record_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UserError, match="holds no run"):
            RunRecord.load(folder)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="holds no run"):
        RunRecord.load(tmp_path / "file")
    (tmp_path / "record.json").mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        RunRecord.load(tmp_path)


def test_readers_never_meet_half_a_record(tmp_path):
    record = RunRecord.create(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [record.add_epoch({**ROW, "epoch": epoch}) for epoch in range(50)])
        seen = 0
        while not writing.done():
            seen = max(seen, len(RunRecord.load(tmp_path).data["epochs"]))
        writing.result()
    assert 0 <= seen <= len(RunRecord.load(tmp_path).data["epochs"]) == 50


def test_a_killed_writer_leaves_a_whole_record(tmp_path):
    code = (
        "import sys; from pathlib import Path; from manyfit.record import RunRecord\n"
        "record = RunRecord.create(Path(sys.argv[1]))\n"
        "print('ready', flush=True)\n"
        "while True: record.add_epoch({'epoch': len(record.data['epochs'])})"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(record_module.__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], env=environ, stdout=subprocess.PIPE) as writer:
        assert writer.stdout and writer.stdout.readline()
        time.sleep(0.2)
        writer.kill()
    record = RunRecord.load(tmp_path)
    record.add_epoch({"epoch": len(record.data["epochs"])})
    assert rows_on_disk(tmp_path) == record.data["epochs"]


def test_a_thousand_epochs_stay_cheap(tmp_path):
    record = RunRecord.create(tmp_path)
    record.data["epochs"] = [{f"metric_{index}": epoch / 7 for index in range(10)} for epoch in range(1000)]
    start = time.perf_counter()
    record.add_epoch(record.data["epochs"][-1])
    seconds = time.perf_counter() - start
    print(f"a write with 1,000 epochs: {seconds * 1000:.0f} ms")
    assert seconds < 5


def test_an_atomic_write_replaces_the_whole_file(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, "a long first text")
    write_atomically(path, "short")
    assert path.read_text() == "short"
    assert list(tmp_path.iterdir()) == [path]


def test_the_default_folder_is_dated_and_named(tmp_path):
    folder = make_run_folder(None, tmp_path / "outputs", "mnist_small_cnn_mirrored-x4")
    assert folder.is_dir() and folder.is_absolute()
    assert re.fullmatch(
        r"outputs/\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d_mnist_small_cnn_mirrored-x4", str(folder.relative_to(tmp_path))
    )


def test_runs_started_together_share_no_folder(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: make_run_folder(None, tmp_path, "run"), range(24)))
    assert len(set(folders)) == 24


def test_a_name_cannot_leave_the_outputs(tmp_path):
    folder = make_run_folder(None, tmp_path, "../../my model/é")
    assert folder.parent.parent == tmp_path
    assert folder.name.endswith("_..-..-my-model-é")


def test_the_explicit_folder_is_made_exactly(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert make_run_folder(Path("a/b"), tmp_path / "outputs", "x") == tmp_path / "a/b"
    assert (tmp_path / "a/b").is_dir() and not (tmp_path / "outputs").exists()
    assert make_run_folder(tmp_path / "a/b", tmp_path / "outputs", "x") == tmp_path / "a/b"


def test_an_explicit_folder_in_use_is_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"not empty: it holds notes\.txt"):
        make_run_folder(tmp_path, tmp_path, "x")
    RunRecord.create(tmp_path)
    with pytest.raises(ConfigError, match="already holds a run"):
        make_run_folder(tmp_path, tmp_path, "x")


def test_an_explicit_path_that_cannot_be_a_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(ConfigError, match="cannot be made") as caught:
            make_run_folder(path, tmp_path, "x")
        assert "hydra.run.dir=PATH" in caught.value.remedy


def test_the_environment_names_versions_host_and_command(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["src/train.py", "data.root=/my photos"])
    found = environment()
    assert found["versions"]["python"].startswith("3.")
    assert found["versions"]["hydra-core"].startswith("1.3")
    assert found["host"]["cpu_count"] >= 1 and found["host"]["memory_bytes"] > 2**20
    assert found["command"].endswith("src/train.py 'data.root=/my photos'")
    assert set(found["git"]) == {"commit", "dirty"}
    json.dumps(found)


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, "-C", folder, *arguments], check=True, capture_output=True)


def test_git_is_the_commit_and_state_of_the_code(tmp_path):
    git(tmp_path, "init", "-q")
    code = tmp_path / "src"
    code.mkdir()
    assert record_module._git(code) == {"commit": None, "dirty": None}
    (code / "a.py").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    found = record_module._git(code)
    assert re.fullmatch("[0-9a-f]{40}", found["commit"]) and found["dirty"] is False
    (code / "a.py").write_text("2")
    assert record_module._git(code) == {"commit": found["commit"], "dirty": True}


def test_git_outside_a_repository_and_without_a_binary_is_null(tmp_path, monkeypatch):
    assert record_module._git(tmp_path) == {"commit": None, "dirty": None}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert record_module._git(Path(record_module.__file__).parent) == {"commit": None, "dirty": None}


def test_code_that_a_repository_does_not_track_has_no_commit(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text(".venv\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    installed = tmp_path / ".venv"
    installed.mkdir()
    (installed / "a.py").touch()
    assert record_module._git(installed) == {"commit": None, "dirty": None}


def test_a_package_that_is_not_installed_has_no_version():
    assert record_module._version("no-such-distribution-here") is None
