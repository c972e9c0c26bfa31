"""The feature cache gives the numbers of the run without it, serves every run that may use it, and no other."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from manyfit.array_store import ARRAY_NAME, ArrayStore
from manyfit.data.examples import ImageData, Split
from manyfit.errors import ConfigError
from manyfit.models import feature_cache, inference
from manyfit.models.network import Network

WORKER = Path(__file__).with_name("cached_fit_worker.py")
SOURCE = Path(__file__).parents[2] / "src"
SIZE = 20


def network(size: int = SIZE, filters: int = 6, units: int = 4, seed: int = 1, dropout: float = 0.0) -> Network:
    """A small frozen backbone and a head."""
    keras.utils.set_random_seed(seed)
    pixels = keras.Input((size, size, 3), dtype="uint8")
    x = keras.layers.Rescaling(1 / 127.5, -1)(pixels)
    x = keras.layers.Conv2D(filters, 3, activation="relu")(x)
    if dropout:
        x = keras.layers.Dropout(dropout)(x)
    backbone = keras.Model(pixels, keras.layers.GlobalAveragePooling2D()(x))
    backbone.trainable = False
    features = keras.Input((filters,))
    head = keras.Model(features, keras.layers.Dense(1)(keras.layers.Dense(units)(features)), name="head")
    return Network(keras.Model(pixels, head(backbone.output)), backbone, head)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> ImageData:
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    splits = []
    for name, count in (("train", 21), ("validation", 6)):
        paths = [folder / f"{name}-{index}.png" for index in range(count)]
        for path in paths:
            Image.fromarray(rng.integers(0, 256, (24, 30, 3), dtype=np.uint8)).save(path)
        splits.append(Split(name, np.arange(count, dtype=np.int32) % 2, paths=tuple(map(str, paths))))
    return ImageData("cats_dogs", "folder", ("cats", "dogs"), *splits)


class Runs:
    """Runs that share a cache folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.told: list[str] = []

    def compute(self, network: Network, data: ImageData, use: str = "disk", **arguments):
        with ArrayStore(self.folder, 1e9, self.told.append) as store:
            return feature_cache.compute(
                network,
                data,
                use=use,
                store=store,
                strategy=tf.distribute.get_strategy(),
                on_gpu=False,
                notify=self.told.append,
                **arguments,
            )

    def arrays(self) -> list[Path]:
        return sorted(self.folder.glob(f"*/{ARRAY_NAME}"))


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Runs:
    monkeypatch.setattr(
        inference, "_suitable", lambda backbone, on_gpu, num_pictures: ("keras",)
    )  # the quickest to make
    return Runs(tmp_path / "arrays")


@pytest.mark.parametrize("use", ["memory", "disk"])
def test_features_are_those_of_keras_in_the_order_of_the_split(runs, data, use):
    net, seen = network(), []
    found, report = runs.compute(net, data, use, on_progress=lambda done, total: seen.append((done, total)))
    for split, plain in ((found.train, data.train), (found.validation, data.validation)):
        pictures = np.stack([np.asarray(Image.open(path)) for path in plain.paths])
        resized = tf.cast(tf.round(tf.image.resize(pictures, (SIZE, SIZE))), tf.uint8)
        np.testing.assert_allclose(split.images, net.backbone(resized), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(split.labels, plain.labels)
    assert seen[-1] == (27, 27) and seen == sorted(seen)
    assert (report.engine, report.reused, report.num_images) == ("keras", False, 27)
    assert report.seconds > 0 and report.images_per_second > 0
    assert report.path == (str(runs.folder) if use == "disk" else None)


def test_a_second_run_and_another_head_compute_nothing(runs, data):
    first, _ = runs.compute(network(), data)
    for other in (network(), network(units=9)):
        again, report = runs.compute(other, data)
        assert (report.reused, report.seconds, report.engine, report.num_images) == (True, 0.0, None, 0)
        np.testing.assert_array_equal(again.train.images, first.train.images)
    relabelled = dataclasses.replace(data, train=dataclasses.replace(data.train, labels=1 - data.train.labels))
    again, report = runs.compute(network(), relabelled)
    assert report.reused and again.train.labels[0] == 1 - data.train.labels[0]
    assert runs.told == [] and len(runs.arrays()) == 2


@pytest.mark.parametrize("change", [{"size": 22}, {"filters": 7}, {"seed": 2}])
def test_another_backbone_computes_its_own(runs, data, change):
    runs.compute(network(), data)
    _, report = runs.compute(network(**change), data)
    assert not report.reused and report.num_images == 27 and runs.told == []


def test_another_picture_or_order_computes_that_split_anew(runs, data, tmp_path):
    runs.compute(network(), data)
    changed = tmp_path / "changed.png"
    Image.fromarray(np.zeros((24, 30, 3), np.uint8)).save(changed)
    paths = data.validation.paths
    for other in ((str(changed), *paths[1:]), paths[::-1]):
        _, report = runs.compute(
            network(), dataclasses.replace(data, validation=Split("validation", data.validation.labels, paths=other))
        )
        assert (report.reused, report.num_images) == (False, 6)


def test_damage_is_told_and_repaired(runs, data):
    first, _ = runs.compute(network(), data)
    expected = np.array(first.train.images)
    for damage in (lambda content: content[:-7] + b"\x01" + content[-6:], lambda content: content[: len(content) // 2]):
        path = max(runs.arrays(), key=lambda path: path.stat().st_size)
        path.write_bytes(damage(path.read_bytes()))
        again, report = runs.compute(network(), data)
        assert not report.reused and report.num_images == 21
        np.testing.assert_array_equal(again.train.images, expected)
        assert "is damaged" in runs.told.pop() and not runs.told
    assert runs.compute(network(), data)[1].reused


def test_features_that_are_not_those_of_keras_are_noticed(runs, data, monkeypatch):
    with monkeypatch.context() as wrong:  # a cache whose every hash is right, written by a program that was not
        wrong.setattr(inference, "run", lambda engine, chunks, out, on_progress: out.fill(1.0))
        runs.compute(network(), data)
    again, report = runs.compute(network(), data)
    assert not report.reused and report.num_images == 27
    assert all("differ from Keras" in told for told in runs.told) and len(runs.told) == 2
    assert np.ptp(again.train.images) > 0


def test_names_that_keras_counts_up_do_not_matter():
    first, second = network(), network()
    assert first.backbone.layers[1].name != second.backbone.layers[1].name
    assert feature_cache.architecture_of(first.backbone) == feature_cache.architecture_of(second.backbone)
    assert feature_cache.weights_of(first.backbone) == feature_cache.weights_of(second.backbone)
    assert feature_cache.architecture_of(first.backbone) != feature_cache.architecture_of(network(dropout=0.1).backbone)


def test_it_is_used_where_it_is_exact():
    assert feature_cache.decide("auto", network()).use == "disk"
    assert feature_cache.decide("memory", network()).use == "memory"
    assert feature_cache.decide("off", network()).use is None


def trainable() -> Network:
    net = network()
    net.backbone.trainable = True
    return net


def noisy() -> Network:
    pixels = keras.Input((SIZE, SIZE, 3), dtype="uint8")
    x = keras.layers.GaussianNoise(0.1)(keras.layers.Rescaling(1 / 255)(pixels))
    backbone = keras.Model(pixels, keras.layers.GlobalAveragePooling2D()(x))
    return dataclasses.replace(network(), backbone=backbone)


def test_frozen_dropout_is_no_obstacle():
    assert feature_cache.decide("auto", network(dropout=0.1)).use == "disk"


WHY_NOT = [
    (trainable, {}, "the backbone is trained"),
    (noisy, {}, "random layers of its own, gaussian_noise"),
    (network, {"augments": True}, "augmented"),
    (lambda: Network(network().model), {}, "no backbone"),
]


@pytest.mark.parametrize(("make", "arguments", "why"), WHY_NOT, ids=[why for _, _, why in WHY_NOT])
def test_it_is_off_where_it_is_not_exact_and_asking_for_it_is_an_error(make, arguments, why):
    choice = feature_cache.decide("auto", make(), **arguments)
    assert choice.use is None and why in choice.why
    for asked in ("memory", "disk"):
        with pytest.raises(ConfigError, match=rf"model.feature_cache={asked} is not possible: .*{why}"):
            feature_cache.decide(asked, make(), **arguments)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras' own saving, NumPy 2
def test_a_saved_network_is_divided_again(tmp_path):
    net = network()
    net.model.save(tmp_path / "model.keras")
    parts = feature_cache.split_network(keras.models.load_model(tmp_path / "model.keras"))
    pictures = np.random.default_rng(0).integers(0, 256, (3, SIZE, SIZE, 3), dtype=np.uint8)
    np.testing.assert_allclose(parts.head(parts.backbone(pictures)), net.model(pictures), rtol=1e-5)
    assert feature_cache.split_network(net.backbone) is None


@pytest.mark.slow
def test_cached_and_uncached_runs_are_one_run(tmp_path):
    """MobileNetV2 with dropout and l2 in its head: every number of every epoch, on one replica and on two."""
    results = {}
    for replicas in (1, 2):
        done = subprocess.run(
            [sys.executable, str(WORKER), str(replicas), str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
        results[replicas] = json.loads(line.removeprefix("RESULT "))
    plain, cached, again = results[1]
    assert [run["report"] and run["report"]["reused"] for run in results[1]] == [None, False, True]
    assert [run["report"] and run["report"]["reused"] for run in results[2]] == [None, True, True]
    for other in (cached, again, *results[2]):
        assert other["told"] == []
        for name, values in plain["history"].items():
            np.testing.assert_allclose(other["history"][name], values, rtol=1e-4, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(other["outputs"], plain["outputs"], rtol=1e-3, atol=1e-4)
    assert plain["history"]["loss"][-1] < plain["history"]["loss"][0]
