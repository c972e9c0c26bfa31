"""The child process of `batch=auto`: `python -m manyfit.batch_probe CONFIG [SIZE ...]` prints images/s at each size.

Without sizes it takes them from stdin, a line each, until that is closed.
"""

import contextlib
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from manyfit import assembly, models, strategy
from manyfit import data as data_sets
from manyfit.batch import BatchPlan
from manyfit.batch_child import MULTIPLE, RESULT
from manyfit.config import BatchConfig, RunConfig, from_yaml
from manyfit.models import Network, feature_cache

WINDOWS, WINDOW_SECONDS, MOST_SECONDS = 4, 0.3, 4.0
_NO_MEMORY = ("out of memory", "oom when", "resource_exhausted", "resource exhausted", "failed to allocate")


class Trainer:
    """A configuration made ready to train with any batch size, on data that costs no time to get."""

    def __init__(self, config: RunConfig):
        # Nothing can be learned from random pictures; a rate that is too high for them must not end the trial.
        config = replace(config, batch=BatchConfig(), on_non_finite="skip")
        self._config = config
        self.place = strategy.make(config.strategy, jit_compile=config.jit_compile)
        keras.utils.set_random_seed(config.seed)
        keras.config.set_dtype_policy(config.precision.name)
        data = data_sets.load(config.data)
        self._num_classes = len(data.class_names)
        with self.place.strategy.scope():
            network = trained_part(config, models.build(config.model, data))
            self.model = assembly.compiled(config, self._plan(MULTIPLE), network, data)

    def _plan(self, size: int) -> BatchPlan:
        accumulation = self._config.gradient_accumulation
        return BatchPlan.make(
            BatchConfig(per_replica_batch_size=size),
            num_train=size * self.place.num_replicas * accumulation,
            num_validation=0,
            num_replicas=self.place.num_replicas,
            gradient_accumulation=accumulation,
        )

    def images_per_second(self, size: int) -> float | None:
        """Speed of warm steps with `size` rows a replica and micro-batch; None if the memory does not suffice."""
        plan = self._plan(size)
        timer = _Timer(plan.examples_per_step)
        self.model._train_steps = None
        try:
            data = Resident.random(self.model.network, plan, self._num_classes, self.place.strategy)
            self.model.fit(data, steps_per_epoch=2**30, callbacks=[timer])
        except (tf.errors.OpError, MemoryError, RuntimeError) as error:
            if isinstance(error, tf.errors.ResourceExhaustedError | MemoryError) or _means_no_memory(str(error)):
                return None
            raise
        return timer.best

    def measure_all(self, sizes: Iterable[int]) -> None:
        """Print a line for each size; what fails otherwise than for memory is printed as an error."""
        for size in sizes:
            answer: dict[str, object] = {"per_replica_batch_size": size}
            try:
                answer["images_per_second"] = self.images_per_second(size)
            except Exception as error:
                answer["error"] = f"{type(error).__name__}: {str(error)[:500]}"
            print(f"{RESULT}{json.dumps(answer)}", flush=True)


def trained_part(config: RunConfig, network: Network) -> Network:
    """What a run trains of a network: the head alone where the features of a frozen backbone are kept."""
    choice = feature_cache.decide(config.model.feature_cache, network, augments=config.augment.active)
    return network if choice.use is None else feature_cache.head_alone(network)


class Resident:
    """A data set that gives the same step without end, from the memory of the devices that need it.

    Args:
        element: `(x, y, mask)`, each a tensor or the tensors of all replicas.
    """

    def __init__(self, element: tuple):
        self._element = element

    @classmethod
    def random(
        cls, network: keras.Model, plan: BatchPlan, num_classes: int, place: tf.distribute.Strategy
    ) -> "Resident":
        """Random rows of the shape that `network` takes, all real."""
        rows = plan.rows_per_replica_per_step
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (rows, *network.input_shape[1:])).astype(network.inputs[0].dtype)
        y = rng.integers(0, num_classes, rows).astype(np.int32)

        def on_device(value) -> Any:
            if plan.num_replicas == 1:
                return tf.identity(tf.constant(value))

            def of_replica(context) -> tf.Tensor:
                with tf.device(place.extended.worker_devices[context.replica_id_in_sync_group]):
                    return tf.identity(tf.constant(value))

            return place.experimental_distribute_values_from_function(of_replica)

        return cls(tuple(on_device(value) for value in (x, y, np.ones(rows, np.float32))))

    def __iter__(self) -> "Resident":
        return self

    def __next__(self) -> tuple:
        return self._element


class _Timer(keras.callbacks.Callback):
    """Times `fit` in windows of a few tenths of a second and ends it: the fastest was disturbed least.

    The first call is left out; those after it grow to half a second by themselves where their size is `auto`.
    """

    def __init__(self, examples_per_step: int):
        super().__init__()
        self.best = 0.0
        self._examples = examples_per_step
        self._windows = 0
        self._step = -1
        self._began = self._window_began = 0.0

    def on_train_batch_end(self, batch, logs=None):
        """Close a window that is long enough, and end the training after enough of them."""
        now = time.perf_counter()
        if self._step < 0:
            self._step, self._began, self._window_began = batch, now, now
        elif now - self._window_began >= WINDOW_SECONDS:
            self.best = max(self.best, (batch - self._step) * self._examples / (now - self._window_began))
            self._windows += 1
            self._step, self._window_began = batch, now
            # Two windows at least: the first holds small calls, where they grow.
            if self._windows >= WINDOWS or (self._windows >= 2 and now - self._began > MOST_SECONDS):
                self.model.stop_training = True


def _means_no_memory(text: str) -> bool:
    return any(words in text.lower() for words in _NO_MEMORY)


def main(arguments: list[str]) -> int:
    """Measure the sizes given, or those that come through stdin."""
    with contextlib.suppress(OSError):
        # Where the machine's own memory runs out, the system should end this process and no other.
        Path("/proc/self/oom_score_adj").write_text("1000")
    trainer = Trainer(from_yaml(Path(arguments[0]).read_text(encoding="utf-8")))
    sizes = arguments[1:] or iter(sys.stdin.readline, "")
    trainer.measure_all(int(size) for size in sizes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
