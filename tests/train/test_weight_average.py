"""The mean of the weights is that of the epochs, and batch norm has the statistics of the data under it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from manyfit.data.examples import Split
from manyfit.data.pipeline import Feed
from manyfit.errors import ConfigError
from manyfit.models import stochastic_depth
from manyfit.replicated import ReplicatedModel
from manyfit.weight_average import WeightAverage, recompute_statistics

ROWS, BATCH = 22, 8


@pytest.fixture
def trained():
    """A model with batch norm after three epochs, its average of the last two, the weights of each, and its feed."""
    keras.utils.set_random_seed(4)
    pixels = keras.Input((5, 5, 1), dtype="uint8")
    x = keras.layers.Conv2D(3, 3, use_bias=False)(keras.layers.Rescaling(1 / 255)(pixels))
    x = keras.layers.Flatten()(keras.layers.BatchNormalization(momentum=0.9)(x))
    model = ReplicatedModel(keras.Model(pixels, keras.layers.Dense(2)(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.02), loss, gradient_accumulation=2)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, ROWS).astype(np.int32)
    split = Split("train", labels, images=rng.integers(0, 255, (ROWS, 5, 5, 1)).astype(np.uint8))
    feed = Feed(split, BATCH, 3, (5, 5, 1), 2, shuffle_seed=1)
    average, seen = WeightAverage(2), []
    average.begin(3)
    keep = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append([v.numpy() for v in model.network.trainable_variables])
    )
    model.fit(feed.distribute(tf.distribute.get_strategy()), epochs=3, steps_per_epoch=3, callbacks=[average, keep])
    return model, average, seen, feed


def test_the_mean_is_that_of_the_last_epochs_and_goes_on_from_a_checkpoint(trained):
    model, average, seen, _ = trained
    assert average.count == 2
    again = WeightAverage(2)
    again.begin(3)
    others = again.restored(average.arrays() | {"network/0": np.zeros(1)})
    again.set_state(average.get_state())
    again.set_model(model)
    again.put_in()
    assert list(others) == ["network/0"] and again.count == 2
    for variable, one, two in zip(model.network.trainable_variables, *seen[1:], strict=True):
        np.testing.assert_allclose(variable.numpy(), (one.astype(float) + two) / 2, rtol=1e-6)


def test_batch_norm_gets_the_mean_of_its_batches_over_one_pass(trained):
    model, average, _, feed = trained
    average.put_in()
    convolution, norm = (model.network.layers[index] for index in (2, 3))
    before = norm.moving_mean.numpy()
    assert recompute_statistics(model, feed.distribute(tf.distribute.get_strategy()), steps=3) == 1
    assert norm.momentum == 0.9
    means, variances, counts = [], [], []
    rows = iter(feed.rows_of(slice(None), 1))
    for _ in range(3):
        pictures, _, mask = next(rows)
        for half in (slice(0, 4), slice(4, 8)):  # the micro-batches of a step
            real = pictures.numpy()[half][mask.numpy()[half] > 0]
            outputs = convolution(real / np.float32(255)).numpy()
            means.append(outputs.mean(axis=(0, 1, 2)))
            variances.append(outputs.var(axis=(0, 1, 2)))
            counts.append(len(real))
    assert sum(counts) == ROWS and min(counts) < 4  # the last one has padding
    np.testing.assert_allclose(
        norm.moving_mean.numpy(), np.average(means, axis=0, weights=counts), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(norm.moving_variance.numpy(), np.average(variances, axis=0, weights=counts), rtol=1e-4)
    assert not np.allclose(before, norm.moving_mean.numpy())


def test_a_training_that_ends_before_has_no_mean(trained):
    average = WeightAverage(2)
    average.set_model(trained[0])
    average.begin(None)
    average.on_epoch_end(7)
    average.begin(9)
    average.on_epoch_end(6)
    assert average.count == 0 and not average.arrays()


# --- stochastic depth -------------------------------------------------------------------------------------------------


def paths(name: str):
    """A small backbone with two residual paths, marked as Keras' applications mark theirs."""
    x = inputs = keras.Input((4, 4, 3))
    for index in range(3):
        path = keras.layers.Conv2D(3, 3, padding="same", name=f"{name}_{index}_conv")(x)
        if name == "efficient":
            path = keras.layers.Dropout(0.2 * index / 3, noise_shape=(None, 1, 1, 1))(path) if index else path
        else:
            path = keras.layers.Activation("linear", name=f"{name}_{index}_identity")(path)
        x = keras.layers.Add()([x, path])
    return keras.Model(inputs, x, name=name)


@pytest.mark.parametrize(("name", "rates"), [("efficient", [0.2, 0.4]), ("convnext", [0.3, 0.6])])
def test_the_rate_of_paths_grows_with_the_depth(name, rates):
    backbone = paths(name)
    pictures = np.random.default_rng(1).normal(size=(64, 4, 4, 3)).astype(np.float32)
    before = backbone(pictures, training=False).numpy()
    changed = stochastic_depth.with_rate(backbone, 0.6)
    drops = [layer for layer in changed.layers if isinstance(layer, keras.layers.Dropout)]
    assert [layer.rate for layer in drops] == pytest.approx(rates)
    np.testing.assert_allclose(changed(pictures, training=False), before, rtol=1e-5, atol=1e-6)
    last = keras.Model(changed.inputs[0], drops[-1].output)
    dropped = np.all(last(pictures, training=True).numpy() == 0, axis=(1, 2, 3)).mean()
    assert abs(dropped - rates[-1]) < 0.2 and not np.all(last(pictures, training=False).numpy() == 0)
    assert stochastic_depth.with_rate(backbone, None) is backbone


def test_a_backbone_without_such_paths_is_refused_in_words():
    x = keras.Input((4,))
    plain = keras.Model(x, keras.layers.Dropout(0.5)(keras.layers.Dense(2)(x)), name="plain")
    with pytest.raises(ConfigError, match=r"model\.stochastic_depth=0\.1: plain has no residual paths"):
        stochastic_depth.with_rate(plain, 0.1)
