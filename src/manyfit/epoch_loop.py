"""How often a step runs: the loops over calls and epochs, with Keras' callbacks and history.

Keras' own `fit` cannot serve under a strategy: it consumes a first batch and averages it over the replicas, makes a
fixed number of steps a call, and fails with more than one.
"""

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from manyfit.checkpoint import START, Position
from manyfit.data.pipeline import num_workers
from manyfit.errors import TrainingError
from manyfit.peers import Peers
from manyfit.precision import LossScale


class NonFiniteError(TrainingError):
    """A loss or gradient that is not a finite number."""


class CallSize:
    """How many steps the next call of a compiled function makes.

    Args:
        steps_per_execution: A fixed number, or `auto`: as many as fill `target_seconds`, measured as it runs.
        target_seconds: Long enough to hide the cost of a call, short enough for a live progress bar.
    """

    def __init__(self, steps_per_execution: int | str, target_seconds: float = 0.5):
        self._fixed = None if steps_per_execution == "auto" else int(steps_per_execution)
        self._target_seconds = target_seconds
        self._calls = 0
        self._next = 1

    def steps(self, remaining: int) -> int:
        """Steps of the next call when `remaining` are left."""
        return min(self._fixed or self._next, remaining)

    def observe(self, steps: int, seconds: float) -> None:
        """Learn from a call of `steps` that took `seconds`; the first call traced the function and teaches nothing."""
        self._calls += 1
        if self._calls > 1 and seconds > 0:
            wanted = self._target_seconds * steps / seconds
            self._next = max(1, min(math.floor(wanted), 8 * steps))


class EpochLoop(keras.Model):
    """`fit`, `evaluate` and `predict` for a model that can make its own compiled steps.

    The subclass sets the attributes below in `compile`, and has `_make_train_steps`, `_make_test_steps` and
    `_make_predict_step`.

    Attributes:
        peers: The other workers, which call `fit`, `evaluate` and `predict` at the same time.
        call_ends: Steps of an epoch after which a call ends, however many it could make.
    """

    peers: Peers
    call_ends: tuple[int, ...] = ()
    network: keras.Model
    skipped_steps: int
    _loss_mean: keras.metrics.Mean
    _loss_scale: LossScale
    _scale_state: tuple[tf.Tensor, tf.Tensor]
    _steps_per_execution: int | str
    _train_steps: Any
    _test_steps: Any
    _predict_step: Any
    _make_train_steps: Callable[[], Callable]
    _make_test_steps: Callable[[], Callable]
    _make_predict_step: Callable[[], Callable]

    def _results(self) -> dict[str, float]:
        results = {metric.name: keras.ops.convert_to_numpy(metric.result()) for metric in self.metrics}
        return {name: float(value) for name, value in results.items() if value.ndim == 0}

    def _steps_left(self, step: int, num_steps: int) -> int:
        """Steps until a call has to end: at the epoch's end, or before."""
        return min(end for end in (*self.call_ends, num_steps) if end > step) - step

    def _steps_of_all(self, call_size: CallSize, remaining: int) -> int:
        """Steps of the next call, the same on every worker: each measures its own times."""
        return self.peers.broadcast("steps", call_size.steps(remaining))

    @property
    def num_examples(self) -> int:
        """Real examples counted since the metrics were reset: those of this epoch, or of this evaluation."""
        return round(float(self._loss_mean.count.numpy()))

    def fit(
        self,
        x,
        *,
        epochs: int = 1,
        steps_per_epoch: int,
        validation_data=None,
        validation_steps: int = 0,
        callbacks=None,
        start: Position = START,
    ):
        """Train, as `keras.Model.fit` does, with the same callbacks and history.

        Args:
            x: A data set without end, distributed over the replicas, whose order is its own affair.
            steps_per_epoch: Steps after which an epoch ends.
            validation_data: As `x`: it repeats, and each pass is `validation_steps` long.
            start: Where a training that goes on does so; `x` then begins there, and the metrics are restored.

        Raises:
            NonFiniteError: the loss or a gradient is not finite, and `on_non_finite` is `stop`.
        """
        callbacks = keras.callbacks.CallbackList(
            callbacks, add_history=True, add_progbar=False, model=self, epochs=epochs, steps=steps_per_epoch
        )
        self._train_steps = self._train_steps or self._make_train_steps()
        iterator = iter(x)
        validation_iterator = None if validation_data is None else iter(validation_data)
        self.stop_training = False
        call_size, test_call_size = (CallSize(self._steps_per_execution) for _ in range(2))
        logs: dict[str, float] = {}
        callbacks.on_train_begin()
        for epoch in range(start.epoch, epochs):
            callbacks.on_epoch_begin(epoch)
            first_step = start.step if epoch == start.epoch else 0
            logs = self._train_epoch(iterator, epoch, first_step, steps_per_epoch, call_size, callbacks)
            if validation_iterator is not None:
                results = self._test_epoch(validation_iterator, validation_steps, test_call_size, callbacks)
                logs |= {f"val_{name}": value for name, value in results.items()}
            callbacks.on_epoch_end(epoch, logs)
            if self.stop_training:
                break
        callbacks.on_train_end(logs)
        return self.history

    def _train_epoch(self, iterator, epoch, first_step, num_steps, call_size, callbacks) -> dict[str, float]:
        if first_step == 0:
            self.reset_metrics()
        step = first_step
        while step < num_steps and not self.stop_training:
            callbacks.on_train_batch_begin(step)
            started = time.perf_counter()
            steps = self._steps_of_all(call_size, self._steps_left(step, num_steps))
            done, scale, good, skipped, loss, ok = self._train_steps(iterator, tf.constant(steps), *self._scale_state)
            step += int(done)
            self._scale_state = (scale, good)
            self.skipped_steps += int(skipped)
            if not ok:
                raise self._non_finite(epoch, step, float(loss), float(scale))
            logs = self._results()
            call_size.observe(steps, time.perf_counter() - started)
            callbacks.on_train_batch_end(step - 1, logs)
        return self._results()

    @property
    def loss_scale_state(self) -> tuple[float, int]:
        """The loss scale, and the good steps since it last moved."""
        scale, good_steps = self._scale_state
        return float(scale), int(good_steps)

    @loss_scale_state.setter
    def loss_scale_state(self, state: tuple[float, int]) -> None:
        self._scale_state = (tf.constant(float(state[0])), tf.constant(int(state[1])))

    def _non_finite(self, epoch: int, step: int, loss: float, scale: float) -> NonFiniteError:
        rate = float(keras.ops.convert_to_numpy(self.optimizer.learning_rate))
        what = "gradient" if math.isfinite(loss) else "loss"
        return NonFiniteError(
            f"The {what} is not a finite number at step {step} of epoch {epoch + 1} "
            f"(loss {loss:g}, learning rate {rate:g}, loss scale {scale:g}).",
            "Try a tenth of the learning rate (optimizer.learning_rate), optimizer.global_clipnorm=1, or "
            "precision=float32. If it happens on several GPUs only, run src/check.py, then try "
            "strategy.cross_device_ops=one_device or NCCL_P2P_DISABLE=1. on_non_finite=skip leaves such steps out.",
        )

    def _test_epoch(self, iterator, num_steps, call_size, callbacks) -> dict[str, float]:
        self._test_steps = self._test_steps or self._make_test_steps()
        callbacks.on_test_begin()
        self.reset_metrics()
        step = 0
        with self.averaged_weights():
            while step < num_steps:
                callbacks.on_test_batch_begin(step)
                started = time.perf_counter()
                steps = self._steps_of_all(call_size, num_steps - step)
                step += int(self._test_steps(iterator, tf.constant(steps))[0])
                call_size.observe(steps, time.perf_counter() - started)
                callbacks.on_test_batch_end(step - 1)
        results = self._results()
        callbacks.on_test_end(results)
        return results

    def evaluate(self, x, *, steps: int, callbacks=None) -> dict[str, float]:
        """Loss and metrics over `steps` steps of `x`: every real example counts once."""
        callbacks = keras.callbacks.CallbackList(callbacks, add_progbar=False, model=self, epochs=1, steps=steps)
        return self._test_epoch(iter(x), steps, CallSize(self._steps_per_execution), callbacks)

    def predict(self, x, *, steps: int):
        """The outputs of every real row of `steps` steps of `x`, in order: float32 [N, ...]."""
        strategy = self.distribute_strategy
        self._predict_step = predict_step = self._predict_step or self._make_predict_step()
        iterator, rows = iter(x), []
        for _ in range(steps):
            outputs, masks = (strategy.experimental_local_results(part) for part in predict_step(next(iterator)))
            if num_workers(strategy) > 1:  # each replica has the rows of all
                outputs, masks = outputs[:1], masks[:1]
            outputs, masks = tf.concat(outputs, axis=0), tf.concat(masks, axis=0)
            rows.append(tf.boolean_mask(outputs, masks > 0).numpy())
        return np.concatenate(rows)

    @contextlib.contextmanager
    def averaged_weights(self):
        """Inside, the network holds the moving average of its weights, where the optimizer keeps one."""
        if not self.optimizer.use_ema:
            yield
            return
        averages = self.optimizer._model_variables_moving_average
        pairs = [(v, a) for v, a in zip(self.network.trainable_variables, averages, strict=True) if a is not None]
        trained = [variable.numpy() for variable, _ in pairs]
        for variable, average in pairs:
            variable.assign(average.numpy())
        try:
            yield
        finally:
            for (variable, _), value in zip(pairs, trained, strict=True):
                variable.assign(value)
