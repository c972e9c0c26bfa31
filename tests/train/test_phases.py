"""Phases: N replicas give the numbers of one in each, a run that is interrupted goes on to the same bits; the parts."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from manyfit import layer_rates
from manyfit.callbacks.guarded import Guarded
from manyfit.callbacks.learning_rate import EpochLearningRate
from manyfit.callbacks.spanning import Spanning
from manyfit.config import PlateauConfig
from manyfit.coupled_layers import couple, trains_batch_norm
from manyfit.errors import ConfigError
from manyfit.fused_updates import fuse
from manyfit.models import trainable
from manyfit.models.network import Network

WORKER = Path(__file__).with_name("phases_worker.py")
SOURCE = Path(__file__).parents[2] / "src"
SMALL = (
    "data=synthetic", "data.num_train=45", "data.num_validation=13", "data.num_classes=3", "data.image_size=12",
    "data.channels=3", "model=application", "model.image_size=12", "model.head.units=5", "model.l2=0.001",
    "batch.global_batch_size=8", "strategy.device=cpu", "tracker=none", "probe=false",
    f"model.weights={os.devnull}",
)  # fmt: skip
THREE = (
    "optimizer=sgd", "optimizer.learning_rate=0.05", "optimizer.momentum=0.9",
    "phases=[{epochs:2,trainable:none},{epochs:1,trainable:'block_2*',learning_rate:0.02,augment:light},"
    "{epochs:2,trainable:all,schedule:cosine,batch_norm:train}]",
)  # fmt: skip
DECAYED = (
    "optimizer=adamw", "optimizer.learning_rate=0.01", "optimizer.layer_decay=0.5", "swa.epochs=2",
    "phases=[{epochs:1,trainable:none},{epochs:3,trainable:all,schedule:{name:plateau,patience:1,mode:max},batch_norm:train}]",
)  # fmt: skip
THERE_AND_BACK = (
    "optimizer=adam", "optimizer.learning_rate=0.01", "early_stopping.metric=val_loss", "early_stopping.mode=max",
    "early_stopping.patience=1", "model.feature_cache=memory", "swa.epochs=2",
    "phases=[{epochs:4,trainable:none},{epochs:1,trainable:all,batch_norm:train},{epochs:2,trainable:none}]",
)  # fmt: skip
NUMBERS = ("loss", "accuracy", "val_loss", "val_accuracy", "learning_rate")


class Worker:
    """A process that trains runs on a fixed number of replicas."""

    def __init__(self, replicas: int, cache: Path):
        self.replicas = replicas
        self.process = subprocess.Popen(
            [sys.executable, WORKER], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "MANYFIT_CACHE": str(cache)},
        )  # fmt: skip

    def ask(self, folder: Path, *overrides: str, **more) -> dict:
        """What came of a run, which is not to fail unless it is interrupted."""
        case = {"folder": str(folder), "overrides": [*SMALL, f"strategy.replicas={self.replicas}", *overrides], **more}
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("RESULT "):
                result = json.loads(line.removeprefix("RESULT "))
                assert ("error" in result) == ("interrupt" in more), result.get("error")
                return result
        raise AssertionError(f"the worker ended with {self.process.wait()}")


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """Workers with 1, 2 and 4 replicas, started side by side."""
    started = {count: Worker(count, tmp_path_factory.mktemp("cache")) for count in (1, 2, 4)}
    yield started
    for worker in started.values():
        worker.process.kill()  # TensorFlow takes seconds to leave
        worker.process.communicate()


def assert_close(one, other, path=""):
    np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=2e-5, err_msg=path)


@pytest.mark.slow
@pytest.mark.parametrize("asked", [THREE, DECAYED], ids=["three", "decayed"])
def test_n_replicas_give_the_numbers_of_one_in_every_phase(workers, tmp_path, asked):
    counts = (1, 2, 4) if asked is THREE else (1, 2)
    with ThreadPoolExecutor(2) as pool:
        one, *others = pool.map(lambda count: workers[count].ask(tmp_path / str(count), *asked), counts)
    for other in others:
        for row, other_row in zip(one["record"]["epochs"], other["record"]["epochs"], strict=True):
            assert row["phase"] == other_row["phase"]
            assert_close([row[name] for name in NUMBERS], [other_row[name] for name in NUMBERS], row["epoch"])
        for name, array in one["weights"].items():
            assert_close(array, other["weights"][name], name)
        for array, other_array in zip(one["saved"], other["saved"], strict=True):
            assert_close(array, other_array)
        mean, other_mean = (result["record"].get("swa", {}) for result in (one, other))
        assert mean == pytest.approx(other_mean, rel=1e-4)
    if asked is THREE:
        assert_the_record_tells_the_phases(one)
    else:
        rates = [row["learning_rate"] for row in one["record"]["epochs"]]
        assert rates == [0.01, 0.01, 0.01, 0.005]  # val_loss falls, and high values were asked for
        assert one["record"]["swa"]["epochs"] == 2


def assert_the_record_tells_the_phases(result):
    record, screen = result["record"], result["screen"]
    first, second, third = record["phases"]
    assert [row["phase"] for row in record["epochs"]] == [1, 1, 2, 3, 3]
    assert [phase["first_epoch"] for phase in record["phases"]] == [1, 3, 4]
    assert [phase["features"] for phase in record["phases"]] == [True, False, False]
    assert [phase["num_trainable_parameters"] for phase in record["phases"]] == [53, 53 + 228, 53 + 228 + 116]
    assert (second["augment"], third["schedule"], second["learning_rate"]) == ("light", "cosine", 0.02)
    best = max(record["epochs"], key=lambda row: (row["val_accuracy"], -row["val_loss"]))
    assert record["best"]["epoch"] == best["epoch"]
    assert max(phase["best"]["val_accuracy"] for phase in record["phases"]) == best["val_accuracy"]
    for number in (1, 2, 3):
        assert f"Phase {number} of 3, from epoch" in screen and f"phase {number}: epoch" in screen
    assert first["seconds"] > 0 and record["status"] == "finished"


@pytest.mark.slow
def test_an_interrupted_run_goes_on_in_its_phase_to_the_same_bits(workers, tmp_path):
    worker = workers[1]
    whole = worker.ask(tmp_path / "whole", *THERE_AND_BACK)
    assert [row["phase"] for row in whole["record"]["epochs"]] == [1, 1, 2, 3, 3]  # two phases stop early
    worker.ask(tmp_path / "run", *THERE_AND_BACK, interrupt=3)  # before the first step of the second phase
    for epochs in (2, 2):  # before the first step of the third phase, then of its second epoch
        worker.ask(tmp_path / "run", *THERE_AND_BACK, resume=True, interrupt=epochs)
    again = worker.ask(tmp_path / "run", *THERE_AND_BACK, resume=True)
    for key in ("weights", "optimizer", "saved"):
        assert whole[key] == again[key], key
    for row, other in zip(whole["record"]["epochs"], again["record"]["epochs"], strict=True):
        assert [row[name] for name in NUMBERS] == [other[name] for name in NUMBERS]
    assert whole["record"]["best"] == again["record"]["best"]
    for phase, other in zip(whole["record"]["phases"], again["record"]["phases"], strict=True):
        timed = ("seconds", "images_per_second")
        assert {k: v for k, v in phase.items() if k not in timed} == {k: v for k, v in other.items() if k not in timed}


@pytest.mark.slow
def test_what_no_phase_can_have_is_refused_before_the_first(workers, tmp_path):
    def said(*overrides):
        return workers[1].ask(tmp_path / "refused", *overrides, interrupt=99)["error"]

    assert "no layer of the backbone has a name like b3*" in said("phases=[{epochs:1},{epochs:1,trainable:b3*}]")
    assert "phases[1].trainable=last:99 is more than" in said("phases=[{epochs:1},{epochs:1,trainable:last:99}]")
    never = "phases=[{epochs:1,trainable:all},{epochs:1,augment:light}]"
    assert "model.feature_cache=disk is not possible" in said(never, "model.feature_cache=disk")
    odd = "phases=[{epochs:1},{epochs:1,augment:{name:light,mixup:0.2}}]"
    assert "mixes the rows of a replica in pairs" in said(odd, "batch.global_batch_size=7")
    assert not (tmp_path / "refused").exists()


# --- the parts --------------------------------------------------------------------------------------------------------


def network(weights="somewhere") -> Network:
    """Two blocks with batch norm, and a head."""
    keras.utils.set_random_seed(2)
    inputs = x = keras.Input((6, 6, 3))
    for number in (1, 2):
        x = keras.layers.Conv2D(3, 3, use_bias=False, name=f"block_{number}_convolution")(x)
        x = keras.layers.BatchNormalization(momentum=0.5, name=f"block_{number}_norm")(x)
    backbone = keras.Model(inputs, x)
    pixels = keras.Input((6, 6, 3), dtype="uint8")
    features = keras.layers.GlobalAveragePooling2D()(backbone(keras.layers.Rescaling(1 / 255)(pixels)))
    part = keras.Input((3,))
    head = keras.Model(part, keras.layers.Dense(2, name="scores")(part), name="head")
    return Network(keras.Model(pixels, head(features)), keras.Model(pixels, features), head, weights)


def names_that_train(net: Network) -> list[str]:
    return [variable.path.partition("/")[2] or variable.path for variable in net.model.trainable_variables]


def test_layers_train_by_count_and_by_name_and_back_again():
    net = network()

    def let(asked):
        trainable.of_network(net, asked, batch_norm="auto", key="key")
        layers = trainable.backbone_of(net).layers
        return [layer.name for layer in layers if layer.trainable_variables], len(net.model.trainable_variables)

    blocks = ["block_1_convolution", "block_1_norm", "block_2_convolution", "block_2_norm"]
    assert let("none") == ([], 2)
    assert let("last:2") == let(2) == (blocks[2:], 5)
    assert let("block_1*") == (blocks[:2], 5)
    assert let(["block_1_norm", "block_[23]_conv*"]) == (blocks[1:3], 5)
    assert let("all") == (blocks, 8)
    assert let("none") == ([], 2) and net.head.trainable
    for wrong, message in (("block_3*", "Did you mean"), ("last:9", "Give fewer"), ("input_layer*", "")):
        with pytest.raises(ConfigError, match="key") as caught:
            let(wrong)
        assert message in caught.value.remedy
    with pytest.raises(ConfigError, match="nothing would train"):
        trainable.of_network(Network(net.model), "none", batch_norm="auto", key="key")


@pytest.mark.parametrize(
    ("weights", "batch_norm", "moves"),
    [("somewhere", "auto", False), ("none", "auto", True), ("somewhere", "train", True), ("none", "inference", False)],
)
def test_batch_norm_of_a_thawed_backbone_keeps_its_statistics_unless_asked(weights, batch_norm, moves):
    net = network(weights)
    trainable.of_network(net, "all", batch_norm="train", key="key")  # as a phase before it may have asked
    trainable.of_network(net, "all", batch_norm=batch_norm, key="key")
    couple(net.model, sync_batch_norm=True)
    layer = trainable.backbone_of(net).get_layer("block_2_norm")
    pictures = np.random.default_rng(1).integers(0, 255, (4, 6, 6, 3)).astype(np.uint8)
    before = layer.moving_mean.numpy()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(net.model(pictures, training=True)))
    scale, centre = tape.gradient(loss, [layer.gamma.value, layer.beta.value])
    assert np.any(scale != 0) and np.any(centre != 0)  # they train in either case
    assert np.any(layer.moving_mean.numpy() != before) == moves == trains_batch_norm(net.model)
    if not moves:
        np.testing.assert_allclose(net.model(pictures, training=True), net.model(pictures, training=False), rtol=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "momentum"])
@pytest.mark.parametrize("fused", [True, False])
def test_each_block_moves_by_its_share_of_the_rate(optimizer, fused, monkeypatch):
    """Against one optimizer a block, with the rate of the block."""
    monkeypatch.setattr("manyfit.fused_updates.SMALLEST_ON_CPU", 0)
    make = {
        "adam": lambda rate: keras.optimizers.Adam(rate),
        "adamw": lambda rate: keras.optimizers.AdamW(rate, weight_decay=0.1),
        "sgd": lambda rate: keras.optimizers.SGD(rate),
        "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9, nesterov=True),
    }[optimizer]
    net, plain = network(), network()
    shares = [0.25, 0.25, 0.25, 0.5, 0.5, 0.5, 1.0, 1.0]
    rng = np.random.default_rng(3)
    gradients = [rng.normal(size=variable.shape).astype(np.float32) for variable in net.model.trainable_variables]
    whole = make(0.1)
    whole.build(net.model.trainable_variables)
    if fused:
        fuse(whole)
    layer_rates.scale(whole, layer_rates.factors(net, 0.5))
    step = tf.function(lambda: whole.apply([tf.constant(g) for g in gradients], net.model.trainable_variables))
    own = [make(0.1 * share) for share in shares]
    for _ in range(3):
        step()
        for one, gradient, variable in zip(own, gradients, plain.model.trainable_variables, strict=True):
            one.apply([tf.constant(gradient)], [variable])
    for variable, expected in zip(net.model.trainable_variables, plain.model.trainable_variables, strict=True):
        np.testing.assert_allclose(variable.numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)


def test_layers_of_one_block_are_together():
    def layers(*names):
        found = []
        for name in names:
            norm = name.endswith(("BN", "bn", "norm"))
            layer = keras.layers.BatchNormalization(name=name) if norm else keras.layers.Dense(1, name=name)
            layer.build((None, 1))
            found.append(layer)
        return found

    for names in (
        [["Conv1", "bn_Conv1_bn"], ["expanded_conv_depthwise", "expanded_conv_BN"], ["block_1_expand", "block_1_BN"]],
        [["conv2d_7"], ["conv2d_8", "batch_norm"]],
        [["conv4_block6_1_conv", "conv4_block6_2_bn"], ["conv5_block1_1_conv"], ["conv5_block10_1_conv"]],
        [["tiny_stage_2_block_0_dense", "tiny_stage_2_block_0_pointwise"], ["tiny_stage_2_block_1_dense"]],
        [["block2a_expand_conv", "block2a_expand_bn"], ["block2b_expand_conv"]],
    ):
        flat = layers(*(name for block in names for name in block))
        assert [[layer.name for layer in block] for block in layer_rates.blocks(flat)] == names


class Fake:
    """What a callback needs of a model."""

    def __init__(self):
        self.optimizer = type("Optimizer", (), {"learning_rate": 0.0})()


def test_a_plateau_lowers_the_rate_and_goes_on_from_its_state():
    schedule = PlateauConfig(metric="val_accuracy", factor=0.1, patience=2, min_delta=0.01, min_factor=0.05)
    seen = [0.5, 0.6, 0.605, float("nan"), 0.5, 0.7, 0.7, 0.7, 0.7, 0.7]

    def drive(callback, epochs):
        for epoch in epochs:
            callback.on_epoch_begin(epoch)
            logs = {"val_accuracy": seen[epoch - 3]}
            callback.on_epoch_end(epoch, logs)
            assert logs["learning_rate"] == callback.model.optimizer.learning_rate
            yield logs["learning_rate"]

    whole = EpochLearningRate([2.0] * 10, schedule, first_epoch=3)
    whole.set_model(Fake())
    rates = list(drive(whole, range(3, 13)))
    assert rates == pytest.approx([2.0] * 4 + [0.2] * 4 + [0.1] * 2)
    before, after = (EpochLearningRate([2.0] * 10, schedule, first_epoch=3) for _ in range(2))
    before.set_model(Fake())
    after.set_model(Fake())
    first = list(drive(before, range(3, 9)))
    after.set_state(json.loads(json.dumps(before.get_state())))
    assert first + list(drive(after, range(9, 13))) == rates


class Told(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.hooks = []

    def on_train_begin(self, logs=None):
        self.hooks.append(("begin", self.model, self.params["epochs"]))

    def on_epoch_end(self, epoch, logs=None):
        self.hooks.append((epoch, self.model, self.params["epochs"]))

    def on_train_end(self, logs=None):
        self.hooks.append(("end", self.model, self.params["epochs"]))


def test_several_fits_look_like_one_training():
    told, late = Told(), Told()
    spanning = Spanning([told, Guarded(lambda: late, print)], epochs=5)
    models = [keras.Sequential(name="first"), keras.Sequential(name="second")]
    for number, model in enumerate(models):
        callbacks = keras.callbacks.CallbackList([spanning], model=model, epochs=2 + 3 * number)
        spanning.is_last = number == 1
        callbacks.on_train_begin()
        callbacks.on_epoch_end(number, {})
        callbacks.on_train_end()
    expected = [("begin", models[0], 5), (0, models[0], 5), (1, models[1], 5), ("end", models[1], 5)]
    assert told.hooks == late.hooks == expected
