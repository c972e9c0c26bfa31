"""`run_study` with small commands in the place of trainings: order, resuming, failures, and no process left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from manyfit.command import repository_root
from manyfit.errors import ConfigError
from manyfit.record import RunRecord
from manyfit.study import FAILED, FINISHED, KEPT, STOPPED, Point, interleaved, override, run_study, train_command

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups")

WRITE_RECORD = """
import sys
from pathlib import Path
from manyfit.record import RunRecord
folder = Path(sys.argv[1])
folder.mkdir()
print("trained", *sys.argv[2:])
RunRecord.create(folder).set_status("finished", exit_code=0)
"""


def python(code, *, needs_package=False):
    """A command that runs `code` with the run folder and the overrides."""

    def command(point, folder):
        start = f"import sys; sys.path.insert(0, {str(repository_root() / 'src')!r})\n" if needs_package else ""
        return [sys.executable, "-c", start + code, str(folder), *point.overrides]

    return command


def statuses(results):
    return [(result.point.label, result.status) for result in results]


def test_each_point_has_a_folder_a_log_and_a_record(tmp_path):
    points = [Point("a", ("epochs=1",)), Point("b c/d", ("epochs=2",))]
    started, ended = [], []
    results = run_study(
        points,
        tmp_path,
        command=python(WRITE_RECORD, needs_package=True),
        on_start=lambda point: started.append(point.name),
        on_end=lambda result: ended.append(result.point.name),
    )
    assert statuses(results) == [("a", FINISHED), ("b-c-d", FINISHED)]
    assert started == ended == ["a", "b c/d"]
    for result, text in zip(results, ("epochs=1", "epochs=2"), strict=True):
        assert result.record is not None and result.record["status"] == "finished"
        assert result.folder == tmp_path / result.point.label / "run"
        command, said = result.log.read_text().splitlines()
        assert command.startswith("$ ") and text in command
        assert said == f"trained {text}"
    assert json.loads((tmp_path / "a" / "point.json").read_text())["overrides"] == ["epochs=1"]


def test_what_is_finished_is_kept_and_what_failed_is_tried_again(tmp_path):
    code = "import sys, pathlib; print('no', 'luck'); sys.exit(0 if pathlib.Path(sys.argv[2]).exists() else 3)"
    good, bad = Point("good", (str(tmp_path),)), Point("bad", (str(tmp_path / "later"),))
    first = run_study([bad, good], tmp_path / "study", command=python(code))
    assert statuses(first) == [("bad", FAILED), ("good", FINISHED)]
    assert (first[0].exit_code, first[0].error) == (3, "no luck")
    (tmp_path / "later").touch()
    second = run_study([bad, good], tmp_path / "study", command=python(code))
    assert statuses(second) == [("bad", FINISHED), ("good", KEPT)]
    assert second[0].folder.name == "run-2"
    assert first[0].log.read_text() != "" and second[0].log.name == "run-2.txt"
    assert statuses(run_study([bad, good], tmp_path / "study", command=python(code))) == [("bad", KEPT), ("good", KEPT)]


def test_a_record_that_failed_is_not_finished_whatever_the_exit_code(tmp_path):
    code = WRITE_RECORD.replace('"finished", exit_code=0', '"failed", error="the loss is not finite\\nmore"')
    [result] = run_study([Point("a")], tmp_path, command=python(code, needs_package=True))
    assert (result.status, result.error) == (FAILED, "the loss is not finite")


def test_a_run_that_was_cut_off_is_not_kept(tmp_path):
    folder = tmp_path / "a" / "run"
    folder.mkdir(parents=True)
    RunRecord.create(folder)
    folder.with_name("run.txt").write_text("$ train\n")
    [result] = run_study([Point("a")], tmp_path, command=python(WRITE_RECORD, needs_package=True))
    assert (result.status, result.folder.name) == (FINISHED, "run-2")


def test_a_folder_of_another_study_is_refused(tmp_path):
    run_study([Point("a", ("x=1",))], tmp_path, command=python(""))
    with pytest.raises(ConfigError, match="was asked x=1, now x=2"):
        run_study([Point("a", ("x=2",))], tmp_path, command=python(""))
    with pytest.raises(ValueError, match="one name"):
        run_study([Point("a b"), Point("a-b")], tmp_path, command=python(""))


def test_a_user_error_is_the_reason_that_is_given(tmp_path):
    code = "import sys; print('Error: no such key.', file=sys.stderr); print('Did you mean epochs?'); sys.exit(2)"
    [result] = run_study([Point("a")], tmp_path, command=python(code))
    assert result.error == "no such key."


def test_an_iterator_is_asked_for_the_next_point_by_the_results_so_far(tmp_path):
    seen = []

    def points():
        for number in range(3):
            yield Point(f"{number}", (f"epochs={number}",))
            assert [result.point.name for result in seen] == [str(one) for one in range(number + 1)]

    results = run_study(points(), tmp_path, command=python("import sys"), on_end=seen.append)
    assert statuses(results) == [("0", FINISHED), ("1", FINISHED), ("2", FINISHED)]
    with pytest.raises(ValueError, match="one name"):
        run_study(iter([Point("a"), Point("a")]), tmp_path / "other", command=python("import sys"))


def test_a_point_that_is_stopped_early_stays_so(tmp_path):
    def stop_early(point, folder):
        return "not worth it" if point.name == "slow" and folder.with_suffix(".txt").stat().st_size else None

    points = [Point("slow"), Point("quick", ("quick",))]
    command = python("import sys, time\nif sys.argv[2:] != ['quick']: time.sleep(60)")
    slow, quick = run_study(points, tmp_path, command=command, workers=2, stop_early=stop_early)
    assert (slow.status, slow.stopped, slow.error, slow.succeeded) == (STOPPED, "not worth it", None, True)
    assert (quick.status, quick.stopped) == (FINISHED, None)
    again, _ = run_study(points, tmp_path, command=command)
    assert (again.status, again.stopped, again.exit_code) == (KEPT, "not worth it", -signal.SIGTERM)


def test_the_record_of_a_run_that_was_killed_says_so(tmp_path):
    begin = WRITE_RECORD.replace('.set_status("finished", exit_code=0)', "\nimport os\nos.kill(os.getpid(), 9)")
    [result] = run_study([Point("a")], tmp_path, command=python(begin, needs_package=True))
    assert (result.status, result.error) == (FAILED, "ended by SIGKILL (out of memory?)")
    record = RunRecord.load(result.folder).data
    assert (record["status"], record["exit_code"], record["error"]) == ("failed", 137, result.error)


def test_points_share_no_wandb_run(tmp_path, monkeypatch):
    for name in ("WANDB_RUN_ID", "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH", "WANDB_PROJECT"):
        monkeypatch.setenv(name, "x")
    code = (
        "import os; print(sorted(name for name in os.environ if name.startswith('WANDB_') and os.environ[name] == 'x'))"
    )
    [result] = run_study([Point("a")], tmp_path, command=python(code))
    assert result.log.read_text().splitlines()[-1] == "['WANDB_PROJECT']"


def test_workers_run_side_by_side(tmp_path):
    # Each waits for the other's file: one after the other, they would wait for ever.
    code = (
        "import sys, time, pathlib\n"
        "mine, other = (pathlib.Path(sys.argv[1]).parents[1] / name for name in sys.argv[2:4])\n"
        "mine.touch()\n"
        "while not other.exists(): time.sleep(0.02)\n"
    )
    points = [Point("a", ("one", "two")), Point("b", ("two", "one"))]
    assert statuses(run_study(points, tmp_path, command=python(code), workers=2)) == [("a", FINISHED), ("b", FINISHED)]


def test_repeats_are_interleaved():
    labels = [point.label for point in interleaved([Point("a"), Point("b")], 3)]
    assert labels == ["a", "b", "a.2", "b.2", "a.3", "b.3"]


@pytest.mark.parametrize(
    "value", ["plain", "/a/b.c", "my photos, 2024", "a=b", 'say "so"', "back\\", 'both\\"', "(1)", ""]
)
def test_an_override_is_read_back_as_it_was(value):
    assert OverridesParser.create().parse_override(override("key", value)).value() == value


def test_a_point_trains_with_the_script_into_its_folder(tmp_path):
    command = train_command(Point("a", ("epochs=1",)), tmp_path / "run")
    assert command == [
        sys.executable,
        str(repository_root() / "src" / "train.py"),
        "epochs=1",
        f"hydra.run.dir={tmp_path}/run",
    ]


# --- the end of a study is the end of its processes -------------------------------------------------------------------

STUDY = f"""
import signal, sys
# A test session in the background may have been told to ignore them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.path.insert(0, {str(repository_root() / "src")!r})
from pathlib import Path
from manyfit.study import Point, run_study
code = '''
import os, pathlib, signal, subprocess, sys, time
folder = pathlib.Path(sys.argv[1]).parent
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
def stop(number, frame):
    (folder / "told").write_text(signal.Signals(number).name)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
(folder / "pids.part").write_text(f"{{os.getpid()}} {{grandchild.pid}}")
os.replace(folder / "pids.part", folder / "pids")
time.sleep(300)
'''
points = [Point("a"), Point("b")]
run_study(points, Path(sys.argv[1]), command=lambda point, run: [sys.executable, "-c", code, str(run)])
"""


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL])
def test_no_process_outlives_its_study(tmp_path, number):
    study = subprocess.Popen([sys.executable, "-c", STUDY, str(tmp_path)], stderr=subprocess.PIPE, text=True)
    try:
        wait_for((tmp_path / "a" / "pids").exists)
        child, grandchild = (int(pid) for pid in (tmp_path / "a" / "pids").read_text().split())
        study.send_signal(number)
        _, said = study.communicate(timeout=60)
        expected = {signal.SIGINT: -signal.SIGINT, signal.SIGKILL: -signal.SIGKILL}
        assert study.returncode == expected.get(number, 128 + number), said
        wait_for(lambda: not is_running(child))
        assert (tmp_path / "a" / "told").read_text() == "SIGTERM"
        assert not (tmp_path / "b" / "run.txt").exists()
        if number != signal.SIGKILL:
            wait_for(lambda: not is_running(grandchild))
    finally:
        study.kill()
        for path in tmp_path.glob("*/pids"):
            for pid in path.read_text().split():
                if is_running(pid):
                    os.kill(int(pid), signal.SIGKILL)
