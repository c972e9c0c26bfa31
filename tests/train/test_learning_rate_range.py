"""The range test in this process, on one CPU device: its steps against a loop written by hand, and what it refuses."""

import io

import keras
import numpy as np
import pytest
import tensorflow as tf

from manyfit import assembly, models, strategy
from manyfit import data as data_sets
from manyfit.config import (
    BatchConfig,
    RunConfig,
    SGDConfig,
    SmallCNNConfig,
    StrategyConfig,
    SyntheticConfig,
    TrackerConfig,
    from_yaml,
)
from manyfit.console import Console
from manyfit.errors import ConfigError
from manyfit.learning_rate_range import Found, find_learning_rate
from manyfit.report.learning_rate_range import NOT_FINITE, RangeSettings

# Keras' own reading of a variable, NumPy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def config(**changes) -> RunConfig:
    """37 examples in steps of 8: five steps an epoch, the last one padded."""
    asked = {
        "data": SyntheticConfig(num_train=37, num_validation=5, num_classes=3, image_size=9),
        "model": SmallCNNConfig(filters=2, units=4),
        "strategy": StrategyConfig(name="one_device", device="cpu"),
        "batch": BatchConfig(per_replica_batch_size=8),
        "optimizer": SGDConfig(),
        "tracker": TrackerConfig(),
    }
    return RunConfig(**(asked | changes))


def find(asked: RunConfig, settings: RangeSettings, tmp_path) -> tuple[Found, str]:
    """What a test found, and what it showed."""
    screen = io.StringIO()
    console = Console(stdout=screen, stderr=screen)
    found = find_learning_rate(asked, settings, outputs=tmp_path, folder=tmp_path / "test", console=console)
    return found, screen.getvalue()


def by_hand(asked: RunConfig, rates) -> list[float]:
    """The loss of every step of plain gradient descent with these rates."""
    strategy.make(asked.strategy)
    keras.utils.set_random_seed(asked.seed)
    data = data_sets.load(asked.data)
    plan = assembly.plan_batches(asked, data, strategy.make(asked.strategy))
    network = models.build(asked.model, data).model
    steps = iter(assembly.feeds(asked, plan, data)[0].distribute(tf.distribute.get_strategy()))
    losses = []
    for rate in rates:
        x, y, mask = next(steps)
        with tf.GradientTape() as tape:
            rows = keras.losses.sparse_categorical_crossentropy(y, network(x, training=True), from_logits=True)
            loss = tf.reduce_sum(rows * mask) / tf.reduce_sum(mask)
        for variable, gradient in zip(
            network.trainable_variables, tape.gradient(loss, network.trainable_variables), strict=True
        ):
            variable.assign_sub(rate * gradient)
        losses.append(float(loss))
    return losses


def test_every_step_trains_with_its_own_rate_and_has_its_own_loss(tmp_path):
    settings = RangeSettings(1e-3, 0.3, 20)
    found, shown = find(config(), settings, tmp_path)
    assert len(found.test.losses) == 20
    np.testing.assert_allclose(found.test.losses, by_hand(config(), settings.rates), rtol=1e-4)
    assert "20 steps are 4.0 passes over the 37 training examples" in shown
    assert found.facts["batch"]["steps_per_epoch"] == 5
    names = {path.name for path in found.folder.iterdir()}
    assert names == {"config.yaml", "log.txt"}  # no weights, and nothing that looks like a run
    assert from_yaml((found.folder / "config.yaml").read_text()) == config()


def test_a_loss_that_leaves_the_numbers_ends_the_test_and_says_so(tmp_path):
    found, _ = find(config(), RangeSettings(1e25, 1e37, 20), tmp_path)
    assert found.test.ended == NOT_FINITE and len(found.test.losses) < 5
    assert found.test.problem is not None and "Begin lower: --lowest 1e+22" in found.test.problem


def test_steps_that_all_see_the_same_examples_are_refused(tmp_path):
    with pytest.raises(ConfigError) as caught:
        find(config(batch=BatchConfig(per_replica_batch_size=37)), RangeSettings(), tmp_path)
    assert "37 examples" in caught.value.message and "batch.global_batch_size=4 " in caught.value.remedy
    assert list(tmp_path.iterdir()) == []
