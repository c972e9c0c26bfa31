"""A run that is killed at any moment goes on as if nothing had happened: to the bit, on a CPU."""

import random
import signal
from pathlib import Path

import numpy as np
import pytest

from manyfit import checkpoint
from manyfit.record import RunRecord
from manyfit.schema.metrics import of_epochs

pytestmark = pytest.mark.slow

SMALL = (
    "data=synthetic", "data.num_train=200", "data.num_validation=40", "model=small_cnn", "epochs=3", "tracker=none",
    "strategy.device=cpu", "strategy.replicas=2", "batch.global_batch_size=16", "checkpoint.every_steps=2",
    "probe=false", "ema.decay=0.9", "metrics=[top_3,auc,f1,calibration_error]", "best_metric=val_auc",
)  # fmt: skip
FROZEN = (
    "data=synthetic", "data.num_train=48", "data.num_validation=16", "data.num_classes=2", "data.image_size=32",
    "data.channels=3", "model=application", "model.name=MobileNetV2", "model.image_size=32",
    "model.weights=none", "epochs=2", "tracker=none", "strategy.device=cpu", "strategy.replicas=2",
    "batch.global_batch_size=16", "model.feature_cache=disk", "probe=false",
)  # fmt: skip
NUMBERS = ("epoch", "learning_rate", *of_epochs(["top_3", "auc", "f1", "calibration_error"]))


@pytest.fixture(scope="module")
def uninterrupted(runner, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert runner.run(*SMALL, f"hydra.run.dir={folder}") == 0
    return folder


def what_was_learned(folder: Path):
    """The last checkpoint's variables, the rows without their times, and the best epoch."""
    record = RunRecord.load(folder).data
    last = checkpoint.load(checkpoint.paths(folder / "checkpoints")[0])
    return last, [{name: row.get(name) for name in NUMBERS} for row in record["epochs"]], record["best"]


def assert_bit_equal(folder: Path, other: Path) -> None:
    one, rows, best = what_was_learned(folder)
    two, other_rows, other_best = what_was_learned(other)
    assert rows == other_rows and best == other_best
    assert one.position == two.position and one.arrays.keys() == two.arrays.keys()
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, two.arrays[name], err_msg=name)


PLACES = [
    ("before the first step", 1),
    ("a checkpoint is being written", 1),
    ("a checkpoint is being written", 4),
    ("a checkpoint is being put in its place", 2),
    ("the best model is being put in its place", 1),
    ("validation", 1),
    ("validation", 1),  # of the epoch that the run then goes on in
    ("before the first step", 2),  # the last epoch
]


def test_killed_at_each_place_it_goes_on_to_the_same_bits(runner, uninterrupted, tmp_path):
    run = (*SMALL, f"hydra.run.dir={tmp_path / 'run'}", "resume=auto")
    for place in PLACES:
        assert runner.run(*run, kill=place) == -signal.SIGKILL, place
    assert runner.run(*run) == 0
    assert_bit_equal(tmp_path / "run", uninterrupted)
    attempts = RunRecord.load(tmp_path / "run").data["attempts"]
    assert [attempt["status"] for attempt in attempts] == ["killed"] * len(PLACES) + ["finished"]


def test_killed_at_random_moments_it_goes_on_to_the_same_bits(runner, uninterrupted, tmp_path):
    chosen, kills = random.Random(11), 0
    whole = RunRecord.load(uninterrupted).data["timing"]["total_seconds"]
    for number in range(3):
        run = (*SMALL, f"hydra.run.dir={tmp_path / str(number)}", "resume=auto")
        for _ in range(4):
            killed = runner.run(*run, kill=("after seconds", chosen.uniform(0.4, 1.0) * whole)) != 0
            kills += killed
            if not killed:  # it was there first: the machine has become faster
                whole *= 0.8
        assert runner.run(*run) == 0
        assert_bit_equal(tmp_path / str(number), uninterrupted)
    assert kills >= 3


def test_killed_while_features_are_kept_it_makes_them_again(runner, tmp_path):
    assert runner.run(*FROZEN, f"hydra.run.dir={tmp_path / 'plain'}", f"data.cache_dir={tmp_path / 'a'}") == 0
    run = (*FROZEN, f"hydra.run.dir={tmp_path / 'run'}", "resume=auto", f"data.cache_dir={tmp_path / 'b'}")
    for count in (1, 2):
        assert runner.run(*run, kill=("features are being kept", count)) == -signal.SIGKILL
    assert runner.run(*run) == 0
    assert_bit_equal(tmp_path / "run", tmp_path / "plain")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 143)])
def test_a_signal_saves_and_the_same_command_goes_on(runner, uninterrupted, tmp_path, number, code):
    run = (*SMALL, "checkpoint.every_steps=null", f"hydra.run.dir={tmp_path / 'run'}", "resume=auto")
    # Both in training and in validation, where the weights may be averages and the metrics are others.
    for place in (("a step", 3), ("validation", 1)):
        assert runner.run(*run, kill=place, signal_number=number) == code
    record = RunRecord.load(tmp_path / "run").data
    assert record["status"] == "stopped" and record["exit_code"] == code
    assert runner.run(*run) == 0
    assert_bit_equal(tmp_path / "run", uninterrupted)


def test_a_time_limit_stops_in_good_order(runner, uninterrupted, tmp_path):
    run = (*SMALL, f"hydra.run.dir={tmp_path / 'run'}", "resume=auto")
    assert runner.run(*run, "max_minutes=0.001") == 75
    record = RunRecord.load(tmp_path / "run").data
    assert record["status"] == "stopped" and "max_minutes" in record["error"]
    assert runner.run(*run) == 0
    assert_bit_equal(tmp_path / "run", uninterrupted)


def test_a_training_that_stands_still_ends_and_goes_on(runner, uninterrupted, tmp_path):
    run = (*SMALL, f"hydra.run.dir={tmp_path / 'run'}", "resume=auto")
    assert runner.run(*run, "watchdog.minutes=0.05", kill=("a step", 6), signal_number=0) == 75
    record, log = RunRecord.load(tmp_path / "run").data, (tmp_path / "run" / "log.txt").read_text()
    assert (record["status"], record["exit_code"]) == ("failed", 75) and "watchdog.minutes" in record["error"]
    assert "kill_worker.py" in log and "epoch_loop.py" in log
    assert runner.run(*run) == 0
    assert_bit_equal(tmp_path / "run", uninterrupted)


def test_another_number_of_replicas_goes_on_to_the_same_numbers(runner, uninterrupted, tmp_path):
    run = (*SMALL, f"hydra.run.dir={tmp_path / 'run'}")
    assert runner.run(*run, kill=("validation", 2)) == -signal.SIGKILL
    for replicas in (4, 1):
        kill = ("validation", 1) if replicas == 4 else None
        code = runner.run(f"resume={tmp_path / 'run'}", f"strategy.replicas={replicas}", kill=kill)
        assert code == (0 if kill is None else -signal.SIGKILL)
    one, rows, _ = what_was_learned(tmp_path / "run")
    two, other_rows, _ = what_was_learned(uninterrupted)
    for row, other in zip(rows, other_rows, strict=True):
        assert row == pytest.approx(other, rel=1e-4)
    for name, array in one.arrays.items():
        if not name.startswith("metric/"):
            np.testing.assert_allclose(array, two.arrays[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_what_cannot_go_on_says_why(runner, uninterrupted, tmp_path):
    def said(*overrides):
        code = runner.run(*overrides)
        return code, runner.log.read_text()

    code, text = said(f"resume={uninterrupted}", "epochs=9", "optimizer.learning_rate=0.5")
    assert code == 2 and "epochs=9 (was 3)" in text and "learning_rate=0.5 (was 0.001)" in text
    code, text = said(f"resume={uninterrupted}")
    assert code == 0 and "nothing is left to do" in text
    code, text = said(f"resume={tmp_path / 'nowhere'}")
    assert code != 0 and "holds no run" in text
    code, text = said("resume=auto")
    assert code == 2 and "hydra.run.dir" in text


def test_a_damaged_newest_checkpoint_is_passed_over(runner, uninterrupted, tmp_path):
    run = (*SMALL, f"hydra.run.dir={tmp_path / 'run'}", "resume=auto")
    assert runner.run(*run, kill=("validation", 2)) == -signal.SIGKILL
    newest = checkpoint.paths(tmp_path / "run" / "checkpoints")[0]
    newest.write_bytes(newest.read_bytes()[:-1000])
    assert runner.run(*run) == 0
    assert "is damaged" in (tmp_path / "run" / "log.txt").read_text()
    assert_bit_equal(tmp_path / "run", uninterrupted)


PHASED = (
    *(word for word in SMALL if not word.startswith("epochs")), "model.batch_norm=true",
    "early_stopping.metric=val_loss", "early_stopping.patience=1", "early_stopping.mode=max",
    "phases=[{epochs:3,trainable:[dense,class_scores],learning_rate:1.0},"
    "{epochs:2,trainable:all,schedule:{name:plateau,patience:1},augment:light}]",
)  # fmt: skip
"""The first phase stops early: its loss falls, which is asked to be no better."""


def phases_of(folder: Path) -> list[dict]:
    timed = ("seconds", "images_per_second")
    found = RunRecord.load(folder).data["phases"]
    return [{key: value for key, value in entry.items() if key not in timed} for entry in found]


def test_killed_in_any_phase_and_between_two_it_goes_on_to_the_same_bits(runner, tmp_path):
    plain, run = tmp_path / "plain", (*PHASED, f"hydra.run.dir={tmp_path / 'run'}", "resume=auto")
    assert runner.run(*PHASED, f"hydra.run.dir={plain}") == 0
    assert [row["phase"] for row in RunRecord.load(plain).data["epochs"]] == [1, 1, 2, 2]
    # In the first phase, at the start of the second, in its validation.
    for place in (("a checkpoint is being put in its place", 3), ("before the first step", 3), ("validation", 1)):
        assert runner.run(*run, kill=place) == -signal.SIGKILL, place
    assert runner.run(*run) == 0
    assert_bit_equal(tmp_path / "run", plain)
    assert phases_of(tmp_path / "run") == phases_of(plain)
