"""`fit.run` in this process, on one CPU device: what a run leaves behind, and how it ends where it cannot go on."""

import io
import json
import os
import re
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from manyfit import fit, preparation
from manyfit.callbacks.learning_rate import EpochLearningRate
from manyfit.config import (
    BatchConfig,
    DataConfig,
    EMAConfig,
    MobileNetV2Config,
    PrecisionConfig,
    RunConfig,
    SGDConfig,
    SmallCNNConfig,
    StrategyConfig,
    SyntheticConfig,
    TrackerConfig,
    from_yaml,
)
from manyfit.console import Console
from manyfit.errors import ConfigError, DataError, TrainingError, UserError
from manyfit.record import RunRecord

# Keras' own saving, NumPy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

NUM_TRAIN, NUM_VALIDATION = 37, 11
HTML = b"<!DOCTYPE html><html><body>404</body></html>"


def config(**changes) -> RunConfig:
    """Small pictures, a small network, one CPU device, two epochs."""
    asked = {
        "data": SyntheticConfig(num_train=NUM_TRAIN, num_validation=NUM_VALIDATION, num_classes=3, image_size=9),
        "model": SmallCNNConfig(filters=2, units=4),
        "strategy": StrategyConfig(name="one_device", device="cpu"),
        "batch": BatchConfig(per_replica_batch_size=8),
        "tracker": TrackerConfig(log_mistakes=0),  # auto depends on how fast the machine is
        "epochs": 2,
    }
    return RunConfig(**(asked | changes))


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return False


def run(asked: RunConfig, tmp_path, *, folder="run") -> tuple[RunRecord, str]:
    """The record of a run, and what it showed."""
    screen = Screen()
    console = Console(stdout=screen, stderr=screen)
    folder = tmp_path / folder if folder else None
    return fit.run(asked, outputs=tmp_path / "outputs", folder=folder, console=console), screen.getvalue()


def refused(asked: RunConfig, tmp_path) -> UserError:
    """The error of a run that is refused before it leaves anything behind."""
    with pytest.raises((ConfigError, DataError)) as caught:
        run(asked, tmp_path)
    assert caught.value.exit_code == 2
    assert caught.value.remedy
    assert not (tmp_path / "run").exists() and not (tmp_path / "outputs").exists()
    return caught.value


def pictures(folder, num_files: int, grey: int = 0) -> None:
    """Small JPEG files `0.jpg`, `1.jpg` ... in a new folder."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(grey)
    for index in range(num_files):
        levels = rng.integers(grey, grey + 60, (10, 12, 3)).astype(np.uint8)
        (folder / f"{index}.jpg").write_bytes(tf.io.encode_jpeg(levels).numpy())


@pytest.fixture(autouse=True)
def float32_afterwards():
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that nothing went wrong with, in a folder that it named itself, and what it showed."""
    return run(config(), tmp_path_factory.mktemp("finished"), folder=None)


# --- what a run leaves behind ---------------------------------------------------------------------------------------


def test_the_default_folder_is_named_after_what_runs(finished):
    record, _ = finished
    assert record.folder.parents[1].name == "outputs"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record.folder.parent.name)
    assert re.fullmatch(r"\d\d-\d\d-\d\d_synthetic_small_cnn_one_device-x1", record.folder.name)


def test_the_folder_holds_everything_and_the_record_is_on_disk(finished):
    record, _ = finished
    names = {path.name for path in record.folder.iterdir()} - {"git.diff"}  # there where the code is not committed
    assert names == {
        "config.yaml",
        "record.json",
        "epochs.jsonl",
        "manifest.json",
        "model.keras",
        "log.txt",
        "system.jsonl",
        "checkpoints",
        ".lock",
    }
    assert RunRecord.load(record.folder).data == record.data
    assert record.data["status"] == "finished" and record.data["exit_code"] == 0
    rows = [json.loads(line) for line in (record.folder / "epochs.jsonl").read_text().splitlines()]
    assert rows == record.data["epochs"]
    assert [row["epoch"] for row in rows] == [1, 2]


def test_the_saved_config_checks_to_what_was_asked(finished):
    record, _ = finished
    assert from_yaml((record.folder / "config.yaml").read_text()) == config()


def test_the_record_counts_what_was_trained_on(finished):
    data = finished[0].data
    assert (data["data"]["num_train"], data["data"]["num_validation"]) == (NUM_TRAIN, NUM_VALIDATION)
    assert data["batch"]["global_batch_size"] == data["batch"]["per_replica_batch_size"] == 8
    assert (data["batch"]["steps_per_epoch"], data["batch"]["padding_rows"]) == (5, 3)
    assert data["model"]["num_parameters"] == data["model"]["num_trainable_parameters"] > 0
    best = max(data["epochs"], key=lambda row: (row["val_accuracy"], -row["val_loss"]))
    assert data["best"] == {name: best[name] for name in ("epoch", "val_accuracy", "val_loss")}


def test_the_times_add_up(finished):
    data = finished[0].data
    epochs = sum(row["train_seconds"] + row["validation_seconds"] for row in data["epochs"])
    timing = data["timing"]
    assert timing["first_step_seconds"] > 0
    assert timing["startup_seconds"] + epochs <= timing["total_seconds"] <= timing["startup_seconds"] + epochs + 30


def test_the_saved_model_is_the_best_one(finished):
    record, _ = finished
    network = keras.saving.load_model(record.folder / "model.keras", compile=False)
    assert type(network) is keras.Model or type(network).__module__.startswith("keras.")
    from manyfit.data.synthetic import make_synthetic

    split = make_synthetic(config().data).validation
    logits = network(split.images)
    losses = keras.losses.sparse_categorical_crossentropy(split.labels, logits, from_logits=True)
    assert float(np.mean(losses)) == pytest.approx(record.data["best"]["val_loss"], rel=1e-5)
    accuracy = np.mean(np.argmax(logits, axis=-1) == split.labels)
    assert accuracy == pytest.approx(record.data["best"]["val_accuracy"], abs=1e-6)


def test_header_rows_and_closing_table_are_shown_and_logged(finished):
    record, shown = finished
    for said in (
        "data: synthetic",
        "37 train, 11 validation",
        "strategy: one_device, 1 replica",
        "batch: 8 in all, 8 a replica, 5 steps an epoch",
        "learning rate 0.001",
        "  1/2  ",
        "  2/2  ",
        "--- run finished ---",
        f"best epoch: {record.data['best']['epoch']} of 2",
        f"run folder: {record.folder}",
    ):
        assert said in shown
        assert said in (record.folder / "log.txt").read_text()


def test_the_same_run_again_gives_the_same_numbers(finished, tmp_path):
    again, _ = run(config(epochs=1), tmp_path)
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert again.data["epochs"][0][name] == pytest.approx(finished[0].data["epochs"][0][name], rel=1e-6)
    assert again.data["data"]["fingerprint"] == finished[0].data["data"]["fingerprint"]


@pytest.mark.slow
def test_averaged_weights_are_validated_and_saved(tmp_path):
    record, _ = run(config(ema=EMAConfig(decay=0.5), optimizer=SGDConfig(learning_rate=0.3), epochs=3), tmp_path)
    from manyfit.evaluation import evaluate_run

    evaluation = evaluate_run(record.folder, device="cpu")
    assert evaluation.loss == pytest.approx(record.data["best"]["val_loss"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_trains_and_says_that_it_is_slow_here(tmp_path, policy):
    record, shown = run(config(precision=PrecisionConfig(policy), epochs=1), tmp_path)
    assert np.isfinite(record.data["epochs"][0]["loss"])
    assert f"precision={policy} is usually slower than float32 on a CPU" in shown


def test_dropping_the_remainder_trains_fewer_steps(tmp_path):
    batch = BatchConfig(per_replica_batch_size=8, remainder="drop")
    record, _ = run(config(batch=batch, epochs=1), tmp_path)
    assert (record.data["batch"]["steps_per_epoch"], record.data["batch"]["padding_rows"]) == (4, 0)


# --- what is refused, before anything is touched --------------------------------------------------------------------


@pytest.fixture
def untouched(monkeypatch):
    """No data may be loaded."""

    def load(asked):
        raise AssertionError("the data were touched")

    monkeypatch.setattr(preparation.data_sets, "load", load)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"replicas": 4}, "Asked for 4 GPU replicas, found no GPU"),
        ({"devices": [0, 2]}, "Asked for 2 GPU replicas, found no GPU"),
        ({"device": "gpu"}, "found no GPU"),
        ({"device": "cpu", "cross_device_ops": "nccl"}, "nccl needs GPUs"),
    ],
)
def test_devices_that_are_not_there_are_refused_before_the_data(untouched, monkeypatch, tmp_path, asked, said):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["CPU:0"] if kind == "CPU" else [])
    assert said in str(refused(config(strategy=StrategyConfig(**asked)), tmp_path))


def test_xla_on_several_replicas_is_refused():
    with pytest.raises(ConfigError, match=r"jit_compile=true does not work with strategy.replicas=2") as caught:
        config(jit_compile=True, strategy=StrategyConfig(device="cpu", replicas=2))
    assert "jit_compile=false" in caught.value.remedy


def test_xla_on_the_gpus_that_auto_found_is_refused_before_the_data(untouched, monkeypatch, tmp_path):
    class TwoGPUs(preparation.strategy.Place):
        num_replicas = 2

    gpus = TwoGPUs("mirrored", tf.distribute.get_strategy(), ("G",))
    monkeypatch.setattr(preparation.strategy, "make", lambda asked, **_: gpus)
    assert "the 2 replicas of strategy.replicas=auto" in str(refused(config(jit_compile=True), tmp_path))


def test_a_folder_that_holds_a_run_is_refused_before_the_data(untouched, finished, tmp_path):
    record, _ = finished
    before = {path: path.stat().st_mtime_ns for path in record.folder.rglob("*")}
    with pytest.raises(ConfigError, match="already holds a run, which is never overwritten") as caught:
        fit.run(config(), outputs=tmp_path, folder=record.folder)
    assert "hydra.run.dir=PATH" in caught.value.remedy
    assert {path: path.stat().st_mtime_ns for path in record.folder.rglob("*")} == before


@pytest.mark.parametrize(
    ("batch", "said", "remedy"),
    [
        ({"global_batch_size": 38}, "makes steps of 38 examples, but the training split has 37", "=37 or less"),
        ({"per_replica_batch_size": 50}, "makes steps of 50 examples", "per_replica_batch_size=37 or less"),
    ],
)
def test_batches_larger_than_the_split_are_refused_with_a_size_that_works(tmp_path, batch, said, remedy):
    error = refused(config(batch=BatchConfig(**batch)), tmp_path)
    assert said in error.message
    assert remedy in error.remedy


def test_a_batch_that_does_not_divide_is_refused_with_the_nearest_sizes():
    from manyfit.batch import BatchPlan

    with pytest.raises(ConfigError, match="global_batch_size=30 does not split evenly over 4 replicas") as caught:
        BatchPlan.make(BatchConfig(global_batch_size=30), num_train=100, num_validation=10, num_replicas=4)
    assert "28 or 32" in caught.value.remedy


def test_as_many_class_weights_as_classes(tmp_path):
    error = refused(config(class_weight=[1.0, 2.0]), tmp_path)
    assert "has 2 factors; the data has 3 classes" in error.message
    assert "class_0, class_1, class_2" in error.remedy


def folder_config(root, **changes) -> RunConfig:
    keys = {"on_bad_image": changes.pop("on_bad_image", "skip")}
    return config(
        **{
            "data": DataConfig(name="image_folder", root=str(root), validation_fraction=0.3, **keys),
            "model": SmallCNNConfig(image_size=9, filters=2, units=4),
            "batch": BatchConfig(),
            "epochs": 1,
            **changes,
        }
    )


def missing(root):
    return "does not exist"


def empty_class(root):
    pictures(root / "cats", 3)
    (root / "dogs").mkdir()
    return "dogs is empty"


def one_class(root):
    pictures(root / "cats", 3)
    return "one class folder only"


def no_readable_picture(root):
    pictures(root / "cats", 3)
    pictures(root / "dogs", 1)
    (root / "dogs" / "0.jpg").write_bytes(HTML)
    return "dogs holds no picture that can be used"


@pytest.mark.parametrize("make", [missing, empty_class, one_class, no_readable_picture])
def test_folders_that_cannot_be_trained_on_are_refused(tmp_path, make):
    root = tmp_path / "photos"
    said = make(root)
    message = str(refused(folder_config(root), tmp_path))
    assert str(root) in message and said in message


def test_real_data_without_imagenet_weights_are_refused(tmp_path):
    pictures(tmp_path / "photos" / "cats", 6)
    pictures(tmp_path / "photos" / "dogs", 6, grey=150)
    error = refused(folder_config(tmp_path / "photos", model=MobileNetV2Config(image_size=96)), tmp_path)
    assert "ImageNet weights of MobileNetV2 are not in Keras' cache" in error.message
    assert "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_96_no_top.h5" in error.remedy


# --- pictures that cannot be read -----------------------------------------------------------------------------------


@pytest.fixture
def odd_photos(tmp_path):
    """12 good pictures a class and, among the cats, three that cannot be read, a hidden file and a system file."""
    root = tmp_path / "photos"
    pictures(root / "cats", 12)
    pictures(root / "dogs", 12, grey=150)
    (root / "cats" / "PAGE.JPG").write_bytes(HTML)
    (root / "cats" / "empty.png").touch()
    (root / "cats" / "cut.jpg").write_bytes((root / "cats" / "0.jpg").read_bytes()[:200])
    (root / "cats" / ".hidden.jpg").write_bytes(b"x")
    (root / "cats" / "Thumbs.db").write_bytes(b"x")
    (root / "dogs" / "png_inside.JPG").write_bytes(tf.io.encode_png(np.full((1, 1, 1), 200, np.uint8)).numpy())
    return root


def test_kept_and_skipped_make_found_and_the_steps_follow_the_kept(odd_photos, tmp_path):
    record, shown = run(folder_config(odd_photos, batch=BatchConfig(per_replica_batch_size=2)), tmp_path)
    manifest = json.loads((record.folder / "manifest.json").read_text())
    found = {name: sum(split[name]["found"] for split in manifest["splits"].values()) for name in ("cats", "dogs")}
    kept = {name: sum(split[name]["kept"] for split in manifest["splits"].values()) for name in ("cats", "dogs")}
    assert (found, kept) == ({"cats": 17, "dogs": 13}, {"cats": 12, "dogs": 13})
    for split in manifest["splits"].values():
        assert all(row["kept"] + row["skipped"] == row["found"] for row in split.values())
    reasons = {os.path.basename(file["path"]): file["reason"] for file in manifest["skipped"]}
    assert set(reasons) == {"PAGE.JPG", "empty.png", "cut.jpg", ".hidden.jpg", "Thumbs.db"}
    assert all(reasons.values())
    data = record.data["data"]
    assert data["num_skipped"] == 5
    assert data["num_train"] + data["num_validation"] == 25
    assert data["class_names"] == ["cats", "dogs"]
    assert record.data["batch"]["steps_per_epoch"] == -(-data["num_train"] // 2)
    assert "5 of 30 files cannot be used and are skipped" in shown


def test_bad_pictures_can_be_an_error(odd_photos, tmp_path):
    error = refused(folder_config(odd_photos, on_bad_image="error"), tmp_path)
    for name in ("PAGE.JPG", "empty.png", "cut.jpg"):
        assert name in error.message
    assert "Thumbs.db" not in error.message
    assert "data.on_bad_image=skip" in error.remedy


# --- runs that do not finish ----------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_ends_the_run_with_advice(tmp_path):
    asked = config(optimizer=SGDConfig(learning_rate=1e30))
    with pytest.raises(TrainingError, match=r"not a finite number at step \d of epoch 1 .*learning rate 1e\+30") as e:
        run(asked, tmp_path)
    assert e.value.exit_code == 1
    assert "optimizer.learning_rate" in e.value.remedy and "NCCL_P2P_DISABLE=1" in e.value.remedy
    record = RunRecord.load(tmp_path / "run")
    assert (record.data["status"], record.data["exit_code"]) == ("failed", 1)
    assert record.data["error"] == str(e.value)
    assert "not a finite number" in (record.folder / "log.txt").read_text()
    assert not (record.folder / "model.keras").exists()


def test_steps_that_are_not_finite_can_be_skipped_and_are_counted(tmp_path):
    asked = config(optimizer=SGDConfig(learning_rate=1e30), on_non_finite="skip", epochs=1)
    record, shown = run(asked, tmp_path)
    assert record.data["status"] == "finished"
    assert record.data["timing"]["skipped_steps"] >= 1
    assert "No epoch had finite metrics" in shown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_run_with_its_record_closed(tmp_path, monkeypatch, number):
    begin = EpochLearningRate.on_epoch_begin

    def begin_and_be_stopped(self, epoch, logs=None):
        begin(self, epoch, logs)
        if epoch == 1:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(EpochLearningRate, "on_epoch_begin", begin_and_be_stopped)
    handler = signal.getsignal(number)
    record, shown = run(config(epochs=50), tmp_path)
    assert signal.getsignal(number) is handler
    assert (record.data["status"], record.data["exit_code"]) == ("stopped", 128 + number)
    assert len(record.data["epochs"]) == 1
    assert f"stopped by {number.name}" in record.data["error"]
    assert (record.folder / "model.keras").exists()
    assert "--- run stopped ---" in shown


def test_a_signal_before_the_first_step_is_not_lost(tmp_path, monkeypatch):
    header = Console.header

    def header_and_be_stopped(self, *arguments, **keywords):
        header(self, *arguments, **keywords)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Console, "header", header_and_be_stopped)
    record, _ = run(config(), tmp_path)
    assert (record.data["status"], record.data["exit_code"], record.data["epochs"]) == ("stopped", 143, [])


def test_an_unexpected_error_is_in_record_and_log(tmp_path, monkeypatch):
    def break_down(self, epoch, logs=None):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(EpochLearningRate, "on_epoch_begin", break_down)
    with pytest.raises(ZeroDivisionError):
        run(config(), tmp_path)
    record = RunRecord.load(tmp_path / "run")
    assert (record.data["status"], record.data["exit_code"]) == ("failed", 1)
    assert record.data["error"] == "ZeroDivisionError: a bug"
    assert "Traceback" in (record.folder / "log.txt").read_text()
