"""What the user reads: at 80 and 200 columns, piped, and in the log file."""

import io
import re
import subprocess
import sys

import pytest

from manyfit.console import Console, header_rows, mean_images_per_second, plural, seconds, summary_rows
from manyfit.errors import ConfigError

RECORD = {
    "status": "finished",
    "rehearsal": True,
    "data": {
        "name": "cats_dogs",
        "source": "sample",
        "num_train": 18610,
        "num_validation": 4652,
        "num_skipped": 3,
        "class_names": ["cat", "dog"],
    },
    "model": {
        "name": "mobilenet_v2",
        "weights": "imagenet",
        "num_parameters": 2914881,
        "num_trainable_parameters": 656897,
    },
    "strategy": {
        "name": "mirrored",
        "num_replicas": 4,
        "devices": [f"/job:localhost/replica:0/task:0/device:CPU:{index}" for index in range(4)],
    },
    "batch": {"global_batch_size": 32, "per_replica_batch_size": 8, "steps_per_epoch": 582},
    "tracker": {"mode": "offline", "path": "manyfit/abc12345", "url": None},
    "epochs": [
        {"epoch": 1, "images_per_second": 500.0},
        {"epoch": 2, "images_per_second": 1000.0},
    ],
    "best": {"epoch": 2, "val_accuracy": 0.9125, "val_loss": 0.31},
    "timing": {"total_seconds": 93.2, "startup_seconds": 12.1, "first_step_seconds": 1.6},
}
FOLDER = "/data/outputs/2026-11-16/12-34-56_cats_dogs_mobilenet_v2_mirrored-x4_with_a_long_name"
SYNC = f"wandb sync {FOLDER}/wandb/offline-run-20261116_123456-abc12345"


class Screen(io.StringIO):
    def __init__(self, terminal: bool):
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def show_everything(terminal: bool, width: int | None = None) -> tuple[str, str]:
    screen, errors = Screen(terminal), Screen(terminal)
    console = Console(stdout=screen, stderr=errors, width=width)
    console.notice("No GPU was found, so the run takes one CPU replica. [not markup] strategy.device=cpu asks for it.")
    console.header(RECORD, folder=FOLDER, facts={"precision": "float32", "optimizer": "adam, learning rate 0.001"})
    console.summary(RECORD, folder=FOLDER, sync_command=SYNC)
    console.error(ConfigError("strategy.replicas=8 cannot be had: 4 GPUs were found.", "Give strategy.replicas=4."))
    return screen.getvalue(), errors.getvalue()


@pytest.mark.parametrize("width", [80, 200])
def test_fits_the_terminal(width):
    shown, errors = show_everything(terminal=True, width=width)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.splitlines()]
    # Paths and commands are left to the terminal to break, so that they can be copied.
    assert all(len(line) <= width for line in lines if FOLDER not in line)
    assert f"  {SYNC}" in lines
    assert lines[-1] == f"run folder: {FOLDER}"
    text = "\n".join(lines)
    for expected in ("18,610 train", "2 (cat, dog)", "CPU:0, CPU:1, CPU:2, CPU:3", "[not markup]", "0.9125"):
        assert expected in text
    assert text.count("REHEARSAL") == 2
    assert "error" in errors and "Give strategy.replicas=4." in errors


def test_piped_output_has_no_control_codes_and_whole_lines():
    shown, errors = show_everything(terminal=False)
    assert "\x1b" not in shown + errors
    assert "\r" not in shown
    assert f"  {SYNC}\n" in shown
    assert shown.endswith(f"run folder: {FOLDER}\n")
    assert "batch: 32 in all, 8 a replica, 582 steps an epoch\n" in shown
    assert "notice: No GPU was found" in shown
    assert errors == "error: strategy.replicas=8 cannot be had: 4 GPUs were found.\nGive strategy.replicas=4.\n"


@pytest.mark.parametrize(
    ("terminal", "variables", "live"),
    [(True, {}, True), (True, {"CI": "true"}, False), (True, {"TERM": "dumb"}, False), (False, {}, False)],
)
def test_bars_move_on_a_real_terminal_only(monkeypatch, terminal, variables, live):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Console(stdout=Screen(terminal), stderr=Screen(terminal)).live is live


def test_tee_writes_plain_lines_with_times_and_what_came_before(tmp_path):
    console = Console(stdout=Screen(True), stderr=Screen(True), width=80)
    console.notice("before the folder is known")
    told = []
    console.sinks.append(told.append)
    console.tee(tmp_path / "log.txt")
    console.print("a line")
    console.log("Traceback:\n  deep")
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert [line[21:] for line in lines] == ["notice: before the folder is known", "a line", "Traceback:", "  deep"]
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", line) for line in lines)
    assert told == ["a line", "Traceback:\n  deep"]


def test_a_log_that_cannot_be_written_is_told_once(tmp_path):
    screen = Screen(False)
    console = Console(stdout=screen, stderr=Screen(False))
    console.tee(tmp_path / "missing" / "log.txt")
    console.print("first")
    console.print("second")
    assert screen.getvalue().count("cannot be written") == 1
    assert "second" in screen.getvalue()


def test_a_narrow_encoding_does_not_raise():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    Console(stdout=stream, stderr=Screen(False)).print("classes: 猫, 犬")
    stream.flush()
    assert b"\\u732b" in stream.buffer.getvalue()


def test_a_record_with_missing_parts_is_shown():
    assert header_rows({}) == []
    rows = dict(summary_rows({"epochs": [], "status": "failed"}))
    assert rows["epochs"] == "none was finished"
    assert rows["time"] == "-"
    assert dict(summary_rows({"epochs": [{"epoch": 1, "images_per_second": None}]}))["images/s"].startswith("-")
    assert "GPUs" not in dict(summary_rows({"epochs": [], "system": {"gpu": None, "phases": {}}}))
    sampled = {"gpu": "2 x A100", "phases": {"train": {}}, "energy_watt_hours": None, "joules_per_image": None}
    assert dict(summary_rows({"epochs": [], "system": sampled}))["GPUs"] == "2 x A100"


def test_many_classes_are_shortened():
    record = {"data": {**RECORD["data"], "class_names": [str(number) for number in range(47)]}}
    assert dict(header_rows(record))["classes"] == "47 (0, 1, 2, 3, 4, 5, 6, 7, 8 ... 46)"


def test_mean_speed_leaves_the_first_epoch_out_where_there_are_others():
    assert mean_images_per_second(RECORD["epochs"]) == 1000.0
    assert mean_images_per_second(RECORD["epochs"][:1]) == 500.0
    assert mean_images_per_second([{"images_per_second": None}, {"images_per_second": 8.0}]) == 8.0
    assert mean_images_per_second([]) is None
    rates = [{"images_per_second": rate} for rate in (1.0, 100.0, 300.0)]
    assert mean_images_per_second(rates) == pytest.approx(150.0)


def test_words_and_durations():
    assert [plural(n, noun) for n, noun in ((1, "replica"), (4, "replica"), (2, "class"))] == [
        "1 replica",
        "4 replicas",
        "2 classes",
    ]
    assert [seconds(value) for value in (4.25, 59.97, 75.0, 3725.0, None)] == [
        "4.2 s",
        "1 min 0 s",
        "1 min 15 s",
        "1 h 2 min",
        "-",
    ]


def test_imports_neither_tensorflow_nor_wandb():
    code = "import manyfit.console, manyfit.tracker, sys; print({'tensorflow', 'keras', 'wandb'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
