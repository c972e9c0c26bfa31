"""Evaluation in this process, on one CPU device: exact, and one readable message where it cannot be had."""

import json
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from manyfit import fit
from manyfit.config import (
    BatchConfig,
    DataConfig,
    RunConfig,
    SmallCNNConfig,
    StrategyConfig,
    SyntheticConfig,
    TrackerConfig,
)
from manyfit.console import as_text
from manyfit.errors import ConfigError, DataError, UserError
from manyfit.evaluation import Evaluation, cross_entropy, evaluate_run, evaluate_runs
from manyfit.report.classification import Scored
from manyfit.report.evaluation import evaluation_tables, several_tables
from manyfit.report.evaluation_pairs import pairs_of

# Keras' own saving, NumPy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def draw(folder: Path, num_files: int, grey: int) -> None:
    """Small noisy PNG files of about one grey level."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(grey + num_files)
    for index in range(num_files):
        levels = rng.integers(grey, grey + 100, (10, 12, 3)).astype(np.uint8)
        (folder / f"{index}.png").write_bytes(tf.io.encode_png(levels).numpy())


def train(folder: Path, data: DataConfig, **changes) -> dict:
    asked = {
        "model": SmallCNNConfig(image_size=8, filters=2, units=4),
        "strategy": StrategyConfig(name="one_device", device="cpu"),
        "batch": BatchConfig(per_replica_batch_size=4),
        "tracker": TrackerConfig(),
        "epochs": 2,
    }
    return fit.run(RunConfig(data=data, **(asked | changes)), outputs=folder, folder=folder).data


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for split, num_files in (("train", 9), ("validation", 4)):
        draw(root / split / "cats", num_files, grey=10)
        draw(root / split / "dogs", num_files + 1, grey=120)
    return root


@pytest.fixture(scope="module")
def two_classes(tmp_path_factory, photos):
    """The folder and the record of a run on photos of two classes, which have one logit."""
    folder = tmp_path_factory.mktemp("two_classes") / "run"
    return folder, train(folder, DataConfig(name="image_folder", root=str(photos)))


def evaluated(folder, **keywords) -> Evaluation:
    return evaluate_run(folder, device="cpu", **keywords)


def test_the_validation_split_gives_the_records_best_numbers(two_classes):
    folder, record = two_classes
    evaluation = evaluated(folder)
    assert evaluation.loss == pytest.approx(record["best"]["val_loss"], rel=1e-6)
    assert evaluation.accuracy == pytest.approx(record["best"]["val_accuracy"], abs=1e-6)
    assert evaluation.confusion_matrix.sum() == record["data"]["num_validation"] == 9
    assert evaluation.confusion_matrix.sum(axis=1).tolist() == [4, 5]
    right = np.trace(evaluation.confusion_matrix)
    assert evaluation.accuracy == pytest.approx(right / 9)
    assert "validation split" in evaluation.source


def test_a_flat_folder_is_evaluated_whole(two_classes, photos):
    folder, record = two_classes
    evaluation = evaluated(folder, data_root=str(photos / "validation"))
    assert evaluation.loss == pytest.approx(record["best"]["val_loss"], rel=1e-6)
    assert evaluation.as_dict()["num_examples"] == 9
    training = evaluated(folder, data_root=str(photos / "train"))
    assert training.as_dict()["num_examples"] == 19


def test_another_copy_of_the_data_is_evaluated_on_its_validation_split(two_classes, photos, tmp_path):
    folder, record = two_classes
    copy = tmp_path / "copy"
    shutil.copytree(photos, copy)
    (copy / "validation" / "cats" / "0.png").write_bytes(b"<html>")
    evaluation = evaluated(folder, data_root=str(copy))
    assert (evaluation.as_dict()["num_examples"], evaluation.num_skipped) == (8, 1)


def test_a_class_without_examples_has_no_recall(two_classes, tmp_path):
    folder, _ = two_classes
    draw(tmp_path / "more" / "dogs", 3, grey=120)
    evaluation = evaluated(folder, data_root=str(tmp_path / "more"))
    rows = evaluation.per_class()
    assert rows["cats"]["num_examples"] == 0
    assert rows["cats"]["recall"] is None
    assert rows["dogs"]["num_examples"] == 3
    json.dumps(evaluation.as_dict(), allow_nan=False)
    shown = "\n".join(as_text(part) for part in evaluation_tables(evaluation.as_dict()))
    assert "3 examples of" in shown
    assert "nan" not in shown.lower()


def test_precision_and_recall_where_nothing_was_predicted_or_there():
    matrix = np.array([[3, 1, 0], [0, 0, 0], [2, 0, 0]])
    rows = Evaluation(0.5, 0.5, ("a", "b", "c"), matrix, "here").per_class()
    of_a = {"num_predicted": 5, "precision": 3 / 5, "recall": 3 / 4, "f1": 6 / 9, "accuracy": 3 / 6}
    assert rows["a"] == {"num_examples": 4, **of_a, "auc": None}
    of_b = {"num_predicted": 1, "precision": 0.0, "recall": None, "f1": 0.0, "accuracy": 5 / 6}
    assert rows["b"] == {"num_examples": 0, **of_b, "auc": None}
    of_c = {"num_predicted": 0, "precision": None, "recall": 0.0, "f1": 0.0, "accuracy": 4 / 6}
    assert rows["c"] == {"num_examples": 2, **of_c, "auc": None}


def test_scores_become_classes_and_losses():
    scores = np.array([[-1.0], [2.0], [-3.0]])
    assert Scored(scores, np.zeros(3, int), 2).predicted.tolist() == [0, 1, 0]
    expected = keras.losses.BinaryCrossentropy(from_logits=True, reduction=None)(np.array([[0.0], [1], [1]]), scores)
    np.testing.assert_allclose(cross_entropy(scores, np.array([0, 1, 1])), expected, rtol=1e-6)
    scores = np.array([[1.0, 3.0, -2.0], [900.0, -900.0, 0.0]])
    assert Scored(scores, np.zeros(2, int), 3).predicted.tolist() == [1, 0]
    labels = np.array([2, 1])
    expected = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)(labels, scores)
    np.testing.assert_allclose(cross_entropy(scores, labels), expected, rtol=1e-6)


def test_intervals_hold_the_numbers_and_follow_the_seed(two_classes):
    told = evaluated(two_classes[0], seed=4).as_dict()
    for name in ("accuracy", "loss"):
        low, high = told["intervals"][name]
        assert low <= told[name] <= high and low < high
    assert "seed 4" in told["intervals"]["method"]
    assert evaluated(two_classes[0], seed=4).intervals() == told["intervals"]
    assert evaluated(two_classes[0], seed=5).intervals() != told["intervals"]


def test_two_runs_on_the_same_examples_are_paired(two_classes, photos, tmp_path):
    """The second run knows only one answer: what the pair says follows from the first one's right answers."""
    folder = two_classes[0]
    other = shutil.copytree(folder, tmp_path / "always_dogs")
    network = keras.models.load_model(other / "model.keras")
    last = network.layers[-1]
    last.set_weights([np.zeros_like(last.get_weights()[0]), np.ones_like(last.get_weights()[1])])
    network.save(other / "model.keras")
    first, second = evaluate_runs([folder, other], device="cpu", data_root=str(photos / "validation"))
    assert [first.name, second.name] == ["run", "always_dogs"]
    assert second.right.tolist() == [False] * 4 + [True] * 5
    (pair,), reasons = pairs_of([first, second])
    assert reasons == []
    assert pair.only_baseline == int((first.right & ~second.right).sum())
    assert pair.accuracy.value == pytest.approx(second.accuracy - first.accuracy)
    assert pair.loss.value == pytest.approx(second.loss - first.loss, abs=1e-6)
    shown = "\n".join(as_text(part) for part in several_tables([first.as_dict(), second.as_dict()], [pair], []))
    assert "always_dogs" in shown and "McNemar" in shown and "bootstrap" in shown
    # On its own validation split, the same pictures: the same examples by another road.
    again = evaluate_runs([folder, other], device="cpu")
    assert pairs_of(again)[0][0].only_baseline == pair.only_baseline


def test_runs_of_the_same_name_are_told_apart(two_classes, tmp_path):
    copy = shutil.copytree(two_classes[0], tmp_path / "elsewhere" / "run")
    names = [one.name for one in evaluate_runs([two_classes[0], copy], device="cpu")]
    assert names == [str(two_classes[0]), str(copy)]


def test_more_than_two_classes_and_a_penalty(tmp_path):
    data = SyntheticConfig(num_train=30, num_validation=13, num_classes=4, image_size=8)
    words = ["top_2", "auc", "f1", "calibration_error"]
    record = train(tmp_path / "run", data, model=SmallCNNConfig(filters=2, units=4, l2=0.5), metrics=words)
    evaluation = evaluated(tmp_path / "run")
    for word, value in evaluation.metrics().items():
        # The run's AUC is that of a histogram, whose bins hold several of these few and much alike scores.
        if word in words:
            assert value == pytest.approx(record["best"][f"val_{word}"], abs=0.1 if word == "auc" else 1e-6), word
    assert set(words) <= set(evaluation.metrics())
    assert [row["auc"] for row in record["epochs"]] != [row["val_auc"] for row in record["epochs"]]
    assert evaluation.loss == pytest.approx(record["best"]["val_loss"], rel=1e-6)
    assert evaluation.confusion_matrix.shape == (4, 4)


def test_two_classes_with_two_logits(two_classes, tmp_path):
    """A model of the user's own may end in two logits, where ours would have one."""
    copy = shutil.copytree(two_classes[0], tmp_path / "copy")
    inputs = keras.Input((8, 8, 3), dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    network = keras.Model(inputs, keras.layers.Dense(2, kernel_initializer="zeros")(x))
    network.save(copy / "model.keras")
    evaluation = evaluated(copy)
    assert evaluation.loss == pytest.approx(np.log(2), rel=1e-6)
    assert evaluation.confusion_matrix.tolist() == [[4, 0], [5, 0]]


# --- what cannot be evaluated ---------------------------------------------------------------------------------------


def refused(folder, kind=UserError, **keywords) -> str:
    with pytest.raises(kind) as caught:
        evaluated(folder, **keywords)
    assert caught.value.remedy
    return str(caught.value)


def test_no_run(tmp_path):
    assert "holds no run" in refused(tmp_path)
    assert "holds no run" in refused(tmp_path / "nowhere")


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_a_model_that_was_cut_off(two_classes, tmp_path, share):
    copy = shutil.copytree(two_classes[0], tmp_path / "copy")
    content = (copy / "model.keras").read_bytes()
    (copy / "model.keras").write_bytes(content[: int(share * len(content))])
    message = refused(copy)
    assert f"{copy / 'model.keras'} cannot be loaded" in message
    assert len(message) < 500


def test_a_run_without_a_model_or_config(two_classes, tmp_path):
    copy = shutil.copytree(two_classes[0], tmp_path / "copy")
    (copy / "model.keras").unlink()
    assert "holds no model" in refused(copy)
    (copy / "config.yaml").unlink()
    assert "config.yaml cannot be read" in refused(copy)


def test_other_classes_than_the_models(two_classes, photos, tmp_path):
    folder, _ = two_classes
    shutil.copytree(photos / "validation", tmp_path / "flat")
    (tmp_path / "flat" / "dogs").rename(tmp_path / "flat" / "wolves")
    message = refused(folder, DataError, data_root=str(tmp_path / "flat"))
    assert "does not know: 'wolves'" in message or "wolves" in message
    assert "cats" in message and "dogs" in message
    shutil.copytree(photos, tmp_path / "splits")
    for split in ("train", "validation"):
        (tmp_path / "splits" / split / "dogs").rename(tmp_path / "splits" / split / "wolves")
    message = refused(folder, DataError, data_root=str(tmp_path / "splits"))
    assert "cats, wolves" in message and "cats, dogs" in message


def test_data_that_are_not_there(two_classes, tmp_path):
    folder, _ = two_classes
    assert "does not exist" in refused(folder, DataError, data_root=str(tmp_path / "nowhere"))
    assert "Did you mean 'mnist'?" in refused(folder, ConfigError, data_name="mnis")


def test_replicas_that_cannot_be_had(two_classes):
    folder, _ = two_classes
    assert "replicas=0" in refused(folder, ConfigError, replicas=0)
    with pytest.raises(ConfigError, match="already started"):
        tf.config.list_logical_devices()
        evaluated(folder, replicas=64)


def test_a_network_that_is_not_ours_is_plain_keras(two_classes):
    network = keras.saving.load_model(two_classes[0] / "model.keras")
    assert network.output_shape == (None, 1)
