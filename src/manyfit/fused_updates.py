"""The update rules of Adam, AdamW and SGD with momentum as one kernel a variable.

Keras writes them as a dozen operations, each of which reads and writes the whole variable; on a GPU each is a launch of
its own, for every variable. TensorFlow has kernels of the same formulas, which pass over the memory once.
"""

import keras
import tensorflow as tf

SMALLEST_ON_CPU = 8192
"""Elements from which the one kernel is the faster one on a CPU, where a launch costs little (measured)."""


def fuse(optimizer: keras.optimizers.Optimizer) -> bool:
    """Let `optimizer` update by one kernel a variable, where there is one of its very formula; whether there is.

    Only the running instance changes. Clipping, weight decay, the moving average of weights and the names and meanings
    of its variables stay Keras' own.
    """
    if type(optimizer) in (keras.optimizers.Adam, keras.optimizers.AdamW) and not optimizer.amsgrad:
        optimizer.update_step = _AdamStep(optimizer)
        return True
    if type(optimizer) is keras.optimizers.SGD and optimizer.momentum != 0:
        optimizer.update_step = _MomentumStep(optimizer)
        return True
    return False


class FusedStep:
    """An `update_step` for one optimizer; scalars that all variables share are computed once a device and graph."""

    def __init__(self, optimizer: keras.optimizers.Optimizer):
        self._optimizer = optimizer
        self._keras_step = optimizer.update_step
        self._graph: object = None
        self._scalars: dict = {}

    def __call__(self, gradient, variable, learning_rate, factor: float = 1.0) -> None:
        """Update one variable with `factor` times the learning rate."""
        small = "GPU" not in variable.device and variable.shape.num_elements() < SMALLEST_ON_CPU
        if small or isinstance(gradient, tf.IndexedSlices) or tf.executing_eagerly():
            own_rate = learning_rate if factor == 1.0 else tf.convert_to_tensor(learning_rate) * factor
            self._keras_step(gradient, variable, own_rate)
            return
        graph = tf.compat.v1.get_default_graph()
        if graph is not self._graph:
            self._graph, self._scalars = graph, {}
        key = (variable.device, variable.dtype, factor)
        if key not in self._scalars:
            shared = self._shared(learning_rate, variable.dtype)
            self._scalars[key] = shared if factor == 1.0 else shared | {"lr": shared["lr"] * factor}
        self._update(tf.cast(gradient, variable.dtype), variable, self._scalars[key])

    def _slot(self, slots, variable) -> tf.Tensor:
        return slots[self._optimizer._get_variable_index(variable)].value.handle

    def _shared(self, learning_rate, dtype) -> dict:
        raise NotImplementedError

    def _update(self, gradient, variable, shared) -> None:
        raise NotImplementedError


class _AdamStep(FusedStep):
    """Kingma and Ba 2015, "Adam", the form before algorithm 1's last remark, as in Keras and in TensorFlow's kernel."""

    def _shared(self, learning_rate, dtype) -> dict:
        step = tf.cast(self._optimizer.iterations.value + 1, dtype)
        beta_1, beta_2 = (tf.constant(beta, dtype) for beta in (self._optimizer.beta_1, self._optimizer.beta_2))
        return {
            "lr": tf.cast(tf.convert_to_tensor(learning_rate), dtype),
            "beta1": beta_1,
            "beta2": beta_2,
            "beta1_power": tf.pow(beta_1, step),
            "beta2_power": tf.pow(beta_2, step),
            "epsilon": tf.constant(self._optimizer.epsilon, dtype),
        }

    def _update(self, gradient, variable, shared) -> None:
        momentum = self._slot(self._optimizer._momentums, variable)
        velocity = self._slot(self._optimizer._velocities, variable)
        tf.raw_ops.ResourceApplyAdam(var=variable.handle, m=momentum, v=velocity, grad=gradient, **shared)


class _MomentumStep(FusedStep):
    """`m = momentum * m - rate * g; w += m`, or `w += momentum * m - rate * g` with Nesterov's momentum."""

    def _shared(self, learning_rate, dtype) -> dict:
        rate = tf.cast(tf.convert_to_tensor(learning_rate), dtype)
        return {"lr": rate, "momentum": tf.constant(self._optimizer.momentum, dtype)}

    def _update(self, gradient, variable, shared) -> None:
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=self._slot(self._optimizer.momentums, variable),
            grad=gradient,
            use_nesterov=self._optimizer.nesterov,
            **shared,
        )
