"""The one kernel a variable gives what Keras' own update step gives."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from manyfit import fused_updates
from manyfit.coupled_layers import masked_moments

OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01, beta_1=0.8, epsilon=1e-5),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=1.0),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, use_ema=True),
}


def trained(make, fused: bool, steps: int = 5) -> list[np.ndarray]:
    """A big and a small variable, and all that the optimizer keeps, after some steps."""
    rng = np.random.default_rng(0)
    shapes = [(fused_updates.SMALLEST_ON_CPU, 2), (3,)]
    variables = [keras.Variable(rng.normal(size=shape).astype("float32")) for shape in shapes]
    gradients = [[rng.normal(size=shape).astype("float32") for shape in shapes] for _ in range(steps)]
    optimizer = make()
    optimizer.build(variables)
    if fused:
        assert fused_updates.fuse(optimizer)
    apply = tf.function(lambda values: optimizer.apply(values, variables))
    for values in gradients:
        apply([tf.constant(value) for value in values])
    kernels = {operation.type for operation in apply.get_concrete_function(gradients[0]).graph.get_operations()}
    assert bool(kernels & {"ResourceApplyAdam", "ResourceApplyKerasMomentum"}) == fused
    return [variable.value.numpy() for variable in [*variables, *optimizer.variables]]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_fused_optimizer_is_kerass_to_rounding(name):
    for ours, keras_own in zip(trained(OPTIMIZERS[name], True), trained(OPTIMIZERS[name], False), strict=True):
        np.testing.assert_allclose(ours, keras_own, rtol=2e-5, atol=1e-6)


def test_an_optimizer_of_another_formula_is_left_alone():
    class Mine(keras.optimizers.Adam):
        pass

    for optimizer in (Mine(), keras.optimizers.Adam(amsgrad=True), keras.optimizers.RMSprop(), keras.optimizers.SGD()):
        step = optimizer.update_step
        assert not fused_updates.fuse(optimizer)
        assert optimizer.update_step == step


def test_the_gradient_of_masked_moments_is_the_derived_one():
    rng = np.random.default_rng(1)
    x = tf.constant(rng.normal(3.0, 2.0, (5, 4, 3, 2)).astype("float32"))
    mask, shift = tf.constant([1.0, 1.0, 0.0, 1.0, 0.0]), tf.constant([2.5, 3.5])
    weights = tf.constant(rng.normal(size=(2, 2)).astype("float32"))

    def gradient(moments):
        with tf.GradientTape() as tape:
            tape.watch(x)
            mean, variance = moments(x)
            value = tf.reduce_sum(weights[0] * mean + weights[1] * tf.sqrt(variance))
        return mean, variance, tape.gradient(value, x)

    ours = gradient(lambda x: masked_moments(x, mask, shift, tf.zeros(2), synchronized=False))
    derived = gradient(lambda x: tf.nn.moments(tf.boolean_mask(x, mask > 0), [0, 1, 2]))
    for one, other in zip(ours, derived, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
