"""Rows, best model, progress, TensorBoard and guard, driven as `fit` drives them, with a clock of our own."""

import io
import json
import math
import os
import signal
import threading
import time
from unittest.mock import Mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from manyfit.callbacks.best_model import BestModel
from manyfit.callbacks.early_stop import EarlyStopping
from manyfit.callbacks.guarded import Guarded
from manyfit.callbacks.progress import EpochProgress
from manyfit.callbacks.stop import StopOnSignal, Stopped
from manyfit.callbacks.tensorboard import TensorBoardRows
from manyfit.callbacks.throughput import EpochRows
from manyfit.callbacks.watchdog import Watchdog
from manyfit.config import EarlyStoppingConfig
from manyfit.console import Console
from manyfit.errors import ConfigError, TrainingError
from manyfit.processes import process_seconds
from manyfit.record import RunRecord

NAN = float("nan")


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Screen(io.StringIO):
    def __init__(self, terminal: bool):
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def record(tmp_path):
    return RunRecord.create(tmp_path)


def rows_of(record, clock, **changes):
    sizes = {"num_train": 37, "steps_per_epoch": 5, "global_batch_size": 8, **changes}
    return EpochRows(record, clock=clock, elapsed=lambda: clock.now - 50, **sizes)


def run_epoch(callbacks, clock, epoch, calls, logs, validation_seconds=None):
    """One epoch: `calls` are (first step, last step, seconds)."""
    callbacks.on_epoch_begin(epoch)
    for first, last, elapsed in calls:
        callbacks.on_train_batch_begin(first)
        clock.now += elapsed
        callbacks.on_train_batch_end(last, {"loss": 1.0, "accuracy": 0.5})
    if validation_seconds is not None:
        callbacks.on_test_begin()
        clock.now += validation_seconds
        callbacks.on_test_end()
    callbacks.on_epoch_end(epoch, logs)


def listed(*callbacks, epochs=2):
    return keras.callbacks.CallbackList(list(callbacks), epochs=epochs, steps=5)


LOGS = {"loss": 0.5, "accuracy": 0.75, "val_loss": 0.6, "val_accuracy": 0.7, "learning_rate": 0.01}


def test_speed_counts_real_examples_without_warm_up_and_validation(record):
    clock = Clock()
    rows = rows_of(record, clock)
    callbacks = listed(rows)
    callbacks.on_train_begin()
    clock.now += 1.0
    run_epoch(callbacks, clock, 0, [(0, 1, 10.0), (2, 3, 2.0), (4, 4, 1.0)], LOGS, validation_seconds=5.0)
    run_epoch(callbacks, clock, 1, [(0, 1, 2.0), (2, 3, 2.0), (4, 4, 1.0)], LOGS, validation_seconds=4.0)
    callbacks.on_train_end()
    first, second = record.data["epochs"]
    # 16 of the 37 real examples went through the warm-up; the short last step holds 5, not 8.
    assert first["images_per_second"] == pytest.approx((37 - 16) / 3.0)
    assert second["images_per_second"] == pytest.approx(37 / 5.0)
    assert (first["train_seconds"], first["validation_seconds"]) == (13.0, 5.0)
    assert (second["train_seconds"], second["validation_seconds"]) == (5.0, 4.0)
    assert record.data["timing"]["first_step_seconds"] == 11.0
    assert {name: second[name] for name in LOGS} == LOGS
    assert [row["epoch"] for row in rows.rows] == [1, 2]
    assert list(first) == [
        "epoch",
        "loss",
        "accuracy",
        "val_loss",
        "val_accuracy",
        "learning_rate",
        "train_seconds",
        "validation_seconds",
        "images_per_second",
        "elapsed_seconds",
    ]
    assert (first["elapsed_seconds"], second["elapsed_seconds"]) == (69.0, 78.0)
    assert rows.num_trained == 2 * 37


def test_an_epoch_of_one_warm_up_call_has_no_speed_and_unknown_is_null(record, tmp_path):
    clock = Clock()
    callbacks = listed(rows_of(record, clock))
    callbacks.on_train_begin()
    run_epoch(callbacks, clock, 0, [(0, 4, 10.0)], {"loss": NAN, "accuracy": 0.5})
    run_epoch(callbacks, clock, 1, [(0, 4, 2.0)], {"loss": float("inf")})
    lines = [json.loads(line) for line in (tmp_path / "epochs.jsonl").read_text().splitlines()]
    assert [line["images_per_second"] for line in lines] == [None, 18.5]
    assert lines[0]["loss"] is lines[1]["loss"] is lines[0]["val_loss"] is lines[0]["validation_seconds"] is None
    assert lines[1]["learning_rate"] is None


def test_a_run_that_goes_on_within_an_epoch_counts_its_own_steps(record):
    clock = Clock()
    rows = rows_of(record, clock)
    callbacks = listed(rows)
    callbacks.on_train_begin()
    run_epoch(callbacks, clock, 3, [(2, 2, 10.0), (3, 4, 2.0)], LOGS)
    assert rows.num_trained == 37 - 16
    callbacks.on_epoch_begin(4)
    callbacks.on_train_batch_begin(0)
    callbacks.on_train_batch_end(1)
    assert rows.num_trained == 37 - 16 + 16
    assert record.data["epochs"][0]["images_per_second"] == pytest.approx((37 - 24) / 2.0)
    assert record.data["epochs"][0]["epoch"] == 4


def test_later_callbacks_get_the_measured_values_in_logs(record):
    clock, seen = Clock(), []
    callbacks = listed(
        rows_of(record, clock), keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(dict(logs)))
    )
    callbacks.on_train_begin()
    run_epoch(callbacks, clock, 0, [(0, 1, 1.0), (2, 4, 1.0)], LOGS, validation_seconds=1.0)
    row = record.data["epochs"][0]
    assert seen == [{name: value for name, value in row.items() if name != "epoch"}]


def test_the_learning_rate_is_the_optimizers(record):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.125), "mse")
    rows = rows_of(record, Clock())
    rows.set_model(model)
    rows.on_epoch_end(0, {"loss": 1.0})
    assert rows.rows[0]["learning_rate"] == 0.125


# --- best model -----------------------------------------------------------------------------------------------------


def best_of(record, tmp_path, epochs, state=None, **options):
    """The epochs at which a model was saved, and the callback."""
    saved = []
    best = BestModel(record, tmp_path / "model.keras", lambda path: path.write_text("model"), **options)
    if state is not None:
        best.set_state(state)
    best.on_train_begin()
    for epoch, logs in enumerate(epochs):
        (tmp_path / "model.keras").unlink(missing_ok=True)
        best.on_epoch_end(epoch, logs)
        if (tmp_path / "model.keras").exists():
            saved.append(epoch + 1)
    best.on_train_end()
    assert [path.name for path in tmp_path.iterdir() if "model" in path.name] in ([], ["model.keras"])
    return saved, best


def metrics(val_accuracy, val_loss):
    return {"loss": 1.0, "accuracy": 0.5, "val_accuracy": val_accuracy, "val_loss": val_loss}


def test_best_is_the_highest_accuracy_and_of_equals_the_lower_loss(record, tmp_path):
    epochs = [metrics(0.5, 1.0), metrics(0.75, 0.9), metrics(0.75, 0.9), metrics(0.75, 0.8), metrics(0.6, 0.1)]
    saved, _ = best_of(record, tmp_path, epochs)
    assert saved == [1, 2, 4]
    assert record.data["best"] == {"epoch": 4, "val_accuracy": 0.75, "val_loss": 0.8}


def test_best_is_by_the_metric_that_was_asked_for(record, tmp_path):
    errors = [(0.9, 0.3), (0.5, 0.1), (0.95, 0.2), (0.4, 0.1), (0.99, NAN)]
    epochs = [metrics(accuracy, 1.0) | {"val_calibration_error": error} for accuracy, error in errors]
    asked = {"metric": "val_calibration_error", "more": ["val_calibration_error"]}
    saved, _ = best_of(record, tmp_path, epochs, **asked)
    assert saved == [1, 2]  # low is good
    assert record.data["best"] == {"epoch": 2, "val_accuracy": 0.5, "val_loss": 1.0, "val_calibration_error": 0.1}
    saved, _ = best_of(record, tmp_path, epochs, metric="val_accuracy", more=["val_calibration_error"])
    assert saved == [1, 3, 5] and record.data["best"]["val_calibration_error"] is None


def test_what_is_not_finite_is_never_best(record, tmp_path):
    saved, _ = best_of(
        record, tmp_path, [metrics(0.9, NAN), metrics(NAN, 0.1), metrics(0.5, 1.0), metrics(1.0, math.inf)]
    )
    assert saved == [3]
    assert record.data["best"]["epoch"] == 3


def test_no_finite_epoch_is_told(record, tmp_path):
    told = []
    saved, _ = best_of(record, tmp_path, [metrics(0.9, NAN)], notify=told.append)
    assert saved == []
    assert told == ["No epoch had finite metrics, so model.keras was not written."]


def test_without_validation_the_last_epoch_counts(record, tmp_path):
    saved, _ = best_of(record, tmp_path, [{"loss": 1.0}, {"loss": 2.0}, {"loss": NAN}])
    assert saved == [1, 2]
    assert record.data["best"] == {"epoch": 2, "val_accuracy": None, "val_loss": None}


def test_a_run_that_goes_on_keeps_its_earlier_best(record, tmp_path):
    earlier = {"epoch": 1, "val_accuracy": 0.8, "val_loss": 0.5}
    saved, _ = best_of(record, tmp_path, [metrics(0.7, 0.4), metrics(0.9, 0.4)], state={"best": earlier})
    assert saved == [2]


def test_a_failed_save_leaves_the_old_model_whole(record, tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("old")

    def save(temporary):
        temporary.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(TrainingError, match="No space left"):
        BestModel(record, path, save).on_epoch_end(0, metrics(0.9, 0.1))
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.glob("*model*")] == ["model.keras"]
    assert record.data["best"] == {}


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras' own saving, NumPy 2
def test_a_real_model_is_saved_whole(record, tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    BestModel(record, tmp_path / "model.keras", model.save).on_epoch_end(0, metrics(0.9, 0.1))
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


# --- progress -------------------------------------------------------------------------------------------------------


def progress_on(screen, record, tmp_path, width=80):
    clock = Clock()
    console = Console(stdout=screen, stderr=screen, width=width)
    rows = rows_of(record, clock)
    best = BestModel(record, tmp_path / "model.keras", lambda path: path.write_text("model"))
    progress = EpochProgress(console, rows, best, clock=clock)
    return clock, progress, listed(rows, best, progress)


def train_two_epochs(clock, callbacks):
    callbacks.on_train_begin()
    calls = [(0, 1, 1.0), (2, 3, 1.0), (4, 4, 1.0)]
    run_epoch(callbacks, clock, 0, calls, metrics(0.8, 0.5), validation_seconds=1.0)
    run_epoch(callbacks, clock, 1, calls, {**metrics(0.7, 0.6), "loss": 123456.0}, validation_seconds=1.0)
    callbacks.on_train_end()


def test_piped_progress_is_one_line_an_epoch(record, tmp_path):
    screen = Screen(terminal=False)
    clock, _, callbacks = progress_on(screen, record, tmp_path)
    train_two_epochs(clock, callbacks)
    assert screen.getvalue().splitlines() == [
        "building the training function, then the first epoch ...",
        "epoch      loss  accuracy  val_loss  val_accuracy      seconds  images/s",
        "  1/2    1.0000    0.5000    0.5000        0.8000      3.0+1.0        10  best",
        "  2/2  1.23e+05    0.5000    0.6000        0.7000      3.0+1.0        12",
    ]


def test_a_terminal_gets_a_bar_that_goes_away(record, tmp_path, monkeypatch):
    for name in ("CI", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Screen(terminal=True)
    clock, progress, callbacks = progress_on(screen, record, tmp_path)
    train_two_epochs(clock, callbacks)
    shown = screen.getvalue()
    assert "building the training function" in shown
    assert "epoch 1/2" in shown and "images/s" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 2  # the cursor is hidden and shown again
    assert shown.splitlines()[-1].endswith("3.0+1.0        12")
    progress.close()


def test_closing_in_the_middle_of_an_epoch_gives_the_cursor_back(record, tmp_path, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Screen(terminal=True)
    _, progress, callbacks = progress_on(screen, record, tmp_path)
    callbacks.on_train_begin()
    callbacks.on_epoch_begin(0)
    progress.close()
    progress.close()
    assert screen.getvalue().count("\x1b[?25l") == screen.getvalue().count("\x1b[?25h") == 1


# --- TensorBoard and guard ------------------------------------------------------------------------------------------


def test_tensorboard_gets_both_curves_of_a_real_fit(record, tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = EpochRows(record, num_train=8, steps_per_epoch=2, global_batch_size=4)
    examples = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
    callbacks = [rows, TensorBoardRows(tmp_path / "tensorboard")]
    model.fit(*examples, batch_size=4, epochs=2, verbose=0, validation_data=examples, callbacks=callbacks)
    found = {}
    for path in (tmp_path / "tensorboard").rglob("events*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found.setdefault((path.parent.name, value.tag), []).append(event.step)
    assert found[("train", "epoch_loss")] == found[("validation", "epoch_loss")] == [1, 2]
    assert {("train", "epoch_learning_rate"), ("train", "epoch_images_per_second")} <= set(found)


def test_a_guarded_callback_fails_once_and_is_left_out():
    calls, failures = [], []

    class Broken(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            calls.append(epoch)

        def on_epoch_end(self, epoch, logs=None):
            raise ConnectionResetError("gone")

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    guarded = Guarded(Broken, failures.append)
    history = model.fit(np.ones((8, 3)), np.ones((8, 1)), epochs=3, verbose=0, callbacks=[guarded])
    assert len(history.history["loss"]) == 3
    assert calls == [0]
    assert [type(failure) for failure in failures] == [ConnectionResetError]


def test_a_callback_that_cannot_be_made_is_left_out():
    failures = []

    def make():
        raise RuntimeError("no run")

    guarded = Guarded(make, failures.append)
    guarded.on_train_begin()
    guarded.on_epoch_end(0, {})
    assert [str(failure) for failure in failures] == ["no run"]


def test_a_guard_lets_an_interrupt_through():
    class Interrupted(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guarded(Interrupted, lambda error: None).on_epoch_end(0, {})


def test_the_cost_of_a_step_is_small(record, tmp_path):
    clock, _, callbacks = progress_on(Screen(terminal=False), record, tmp_path)
    callbacks.on_train_begin()
    callbacks.on_epoch_begin(0)
    began = time.process_time()
    for step in range(2000):
        callbacks.on_train_batch_begin(step)
        callbacks.on_train_batch_end(step, {"loss": 1.0, "accuracy": 0.5})
    assert (time.process_time() - began) / 2000 < 1e-3


# --- ends that nobody asked for, and those that somebody did ----------------------------------------------------------


class Model:
    stop_training = False


def stopping(values, metric="val_loss", **options):
    """The epoch after which a training with these values of a metric stops; None if it does not."""
    told = []
    stop = EarlyStopping(EarlyStoppingConfig(metric=metric, **options), told.append)
    stop.set_model(Model())
    for epoch, value in enumerate(values):
        stop.on_epoch_end(epoch, {metric: value})
        if stop.model.stop_training:
            assert len(told) == 1
            return epoch + 1
    return None


def test_early_stopping_counts_the_epochs_since_the_best():
    assert stopping([3.0, 2.0, 2.5, 2.5, 1.0], patience=2) == 4
    assert stopping([3.0, 2.0, 2.5, 1.9, 2.5, 2.5], patience=2) == 6
    assert stopping([3.0, 2.0, 1.95, 1.91], patience=2, min_delta=0.1) == 4
    assert stopping([1.0, 2.0, 3.0], patience=2, mode="max") is None
    assert stopping([0.3, 0.2, 0.1], metric="val_calibration_error", patience=1) is None
    assert stopping([0.3, 0.2, 0.1], metric="val_f1", patience=1) == 2
    assert stopping([NAN, NAN], patience=2) is None
    assert stopping([NAN, NAN, NAN], patience=2) == 3


def test_early_stopping_goes_on_from_its_state():
    first = EarlyStopping(EarlyStoppingConfig(metric="val_loss", patience=2), lambda text: None)
    first.set_model(Model())
    first.on_epoch_end(0, {"val_loss": 1.0})
    first.on_epoch_end(1, {"val_loss": 2.0})
    second = EarlyStopping(EarlyStoppingConfig(metric="val_loss", patience=2), lambda text: None)
    second.set_model(Model())
    second.set_state(first.get_state())
    second.on_epoch_end(2, {"val_loss": 2.0})
    assert second.model.stop_training


def test_early_stopping_refuses_a_metric_that_no_epoch_has():
    stop = EarlyStopping(EarlyStoppingConfig(metric="val_acc"), lambda text: None)
    with pytest.raises(ConfigError, match="Choices: loss, accuracy, val_loss, val_accuracy"):
        stop.check(["loss", "accuracy"])


def test_the_watchdog_ends_what_stands_still_and_says_where():
    told, left = [], threading.Event()
    with Watchdog(0.3 / 60 / 3, lambda *words: told.append(words), leave=lambda code: left.set()):
        assert left.wait(10)
    reason, where = told[0]
    assert "watchdog.minutes" in reason
    assert "test_the_watchdog_ends_what_stands_still_and_says_where" in where


def test_the_watchdog_lets_what_moves_go_on():
    left = threading.Event()
    with Watchdog(0.5 / 60, lambda *words: None, leave=lambda code: left.set()) as watchdog:
        for batch in range(12):
            watchdog.on_train_batch_end(batch)
            time.sleep(0.1)
    assert not left.is_set()


def test_a_time_limit_stops_at_the_end_of_a_call():
    seconds = iter([50.0, 61.0])
    stop = StopOnSignal(1.0, elapsed=lambda: next(seconds))
    stop.on_train_batch_end(0)
    with pytest.raises(Stopped, match="max_minutes=1") as caught:
        stop.on_train_batch_end(1)
    assert caught.value.exit_code == 75


def test_two_sigterms_at_once_are_one_and_a_later_one_ends(monkeypatch):
    """Slurm sends both when it preempts a job; the second must not end the run before it has saved."""
    with StopOnSignal() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped, match="SIGTERM") as caught:
            stop.on_train_batch_end(0)
        assert caught.value.exit_code == 143
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL  # a Ctrl-C ends at once
        ended = Mock()
        monkeypatch.setattr(signal, "raise_signal", ended)
        monkeypatch.setattr(time, "monotonic", lambda: float("inf"))
        os.kill(os.getpid(), signal.SIGTERM)
        ended.assert_called_once_with(signal.SIGTERM)


def test_a_clock_that_is_set_moves_nothing(monkeypatch):
    before = process_seconds()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0 <= process_seconds() - before < 60
    StopOnSignal(1e6).check()
