"""From a split to what the replicas eat: the order of an epoch, padding, decoding, and rows for each replica.

The order is a function of seed and epoch alone. Indices are shuffled, never pictures; a last batch that is short is
filled up with copies of real rows whose mask is 0, so that every replica always holds the same number of rows.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from tensorflow.random.experimental import stateless_shuffle  # pyright: ignore[reportMissingImports]

from manyfit.array_store import ALIGNMENT
from manyfit.data.decode import decode_image
from manyfit.data.examples import Split
from manyfit.processes import num_cores

STEPS_AHEAD = 4
"""Steps that are loaded before they are asked for."""
CHUNK_STEPS, CHUNK_BYTES = 64, 4_000_000
"""Steps of small examples that are gathered at a time: a thread that wakes for every short step disturbs the step."""


@dataclass(frozen=True)
class Feed:
    """A split as steps of equal size.

    Args:
        split: The examples.
        rows_per_step: Rows of one step over all replicas, padding included.
        steps: Steps of one pass.
        image_shape: Height, width, channels of the pictures that come out; one number for features.
        micro_batches: Parts that a step is split into; each part has the same rows for every replica count.
        shuffle_seed: Seed of the order; None for the order of the split.
        parallel_map: Load several examples at once; False only to measure what that is worth.
        prefetch: Load ahead of the step that runs; False only to measure what that is worth.
        start_epoch: The epoch that comes first.
        start_step: The step of that epoch that comes first.
    """

    split: Split
    rows_per_step: int
    steps: int
    image_shape: tuple[int, ...]
    micro_batches: int = 1
    shuffle_seed: int | None = None
    parallel_map: bool = True
    prefetch: bool = True
    start_epoch: int = 0
    start_step: int = 0

    def distribute(self, strategy: tf.distribute.Strategy):
        """The data set without end that `ReplicatedModel` trains on: `(x, y, mask)` a replica and step.

        x is uint8 [rows, height, width, channels] or float32 [rows, features], y int32 [rows], mask float32 [rows].
        For several CPU replicas an element is a step, with the replicas of this worker as first axis.
        """
        if not _on_gpu(strategy):
            # CPU replicas share the memory that pictures are loaded into: TensorFlow's distributed iterator would only
            # add threads, for whose end it waits up to a minute. `of_each_replica` hands out the parts.
            replicas = strategy.num_replicas_in_sync
            return self.rows_of(replicas_of_this_worker(strategy), replicas, stacked=replicas > 1)

        def worker_rows(context: tf.distribute.InputContext) -> tf.data.Dataset:
            replicas = context.num_replicas_in_sync
            local = replicas // context.num_input_pipelines
            first = context.input_pipeline_id * local
            return self.rows_of(slice(first, first + local), replicas)

        return strategy.distribute_datasets_from_function(worker_rows)

    def rows_of(self, replicas: slice, num_replicas: int, *, stacked: bool = False) -> tf.data.Dataset:
        """The rows of some of the replicas: an element a replica and step, or one a step, replicas first."""
        local = len(range(*replicas.indices(num_replicas)))
        order = tf.data.Dataset.counter(self.start_epoch).flat_map(self._epoch(replicas, num_replicas))
        if self.start_step:
            order = order.skip(self.start_step * local)
        load = self._load_arrays if self.split.images is not None else self._load_files
        rows = load(order, self.rows_per_step // num_replicas, local if stacked else None)
        if self.prefetch and self._steps_a_chunk == 1:
            rows = rows.prefetch(STEPS_AHEAD if stacked else STEPS_AHEAD * local)
        options = tf.data.Options()
        # Tuning runs in a thread that sleeps for up to a minute, for which the end of a distributed iterator waits.
        options.autotune.enabled = False
        return rows.with_options(options)

    def _epoch(self, replicas: slice, num_replicas: int) -> Callable[[tf.Tensor], tf.data.Dataset]:
        num_examples, rows = len(self.split), self.rows_per_step // num_replicas
        shape = [self.steps, self.micro_batches, num_replicas, rows // self.micro_batches]

        def of_replicas(part: tf.Tensor) -> tf.Tensor:
            by_replica = tf.transpose(tf.reshape(part, shape), [0, 2, 1, 3])
            return tf.reshape(by_replica[:, replicas], [-1, rows])

        def epoch_order(epoch: tf.Tensor) -> tf.data.Dataset:
            order = tf.range(num_examples)
            if self.shuffle_seed is not None:
                seed = tf.stack([tf.constant(self.shuffle_seed, tf.int64), epoch])
                order = stateless_shuffle(order, seed=seed)
            position = tf.range(self.steps * self.rows_per_step)
            indices = tf.gather(order, position % num_examples)
            mask = tf.cast(position < num_examples, tf.float32)
            return tf.data.Dataset.from_tensor_slices((of_replicas(indices), of_replicas(mask)))

        return epoch_order

    @property
    def _parallel_calls(self) -> int | None:
        return num_cores() if self.parallel_map else None

    @property
    def _steps_a_chunk(self) -> int:
        if self.split.images is None or not self.prefetch:
            return 1
        step_bytes = self.rows_per_step * self.split.images[:1].nbytes
        return max(1, min(CHUNK_STEPS, CHUNK_BYTES // max(1, step_bytes)))

    def _load_arrays(self, order: tf.data.Dataset, rows: int, stack: int | None) -> tf.data.Dataset:
        steps = self._steps_a_chunk
        parts = [size for size in (steps if steps > 1 else None, stack, rows) if size is not None]
        if len(parts) > 1:
            order = order.batch(steps * (stack or 1), drop_remainder=True)
        images, labels = as_tensor(self.split.images), tf.constant(self.split.labels)

        def gather(indices, mask):
            pictures = fit_shape(tf.gather(images, tf.reshape(indices, [-1])), self.image_shape)
            pictures = tf.reshape(pictures, [*parts, *self.image_shape])
            return pictures, tf.reshape(tf.gather(labels, indices), parts), tf.reshape(mask, parts)

        loaded = order.map(gather, num_parallel_calls=self._parallel_calls, deterministic=True)
        return loaded if steps == 1 else loaded.prefetch(1).unbatch()

    def _load_files(self, order: tf.data.Dataset, rows: int, stack: int | None) -> tf.data.Dataset:
        paths, labels = tf.constant(list(self.split.paths or ())), tf.constant(self.split.labels)

        def read(index, mask):
            return read_picture(paths[index], self.image_shape), labels[index], mask

        examples = order.unbatch().map(read, num_parallel_calls=self._parallel_calls, deterministic=True)
        batches = examples.batch(rows, drop_remainder=True)
        return batches if stack is None else batches.batch(stack, drop_remainder=True)


def of_each_replica(element: tuple, strategy: tf.distribute.Strategy) -> tuple:
    """An element of a distributed feed as the values of each replica, for `strategy.run`; also inside a tf.function."""
    if strategy.num_replicas_in_sync == 1 or any(isinstance(p, tf.distribute.DistributedValues) for p in element):
        return element

    first = replicas_of_this_worker(strategy).start

    def part_of(context) -> tuple:
        return tuple(part[context.replica_id_in_sync_group - first] for part in element)

    return strategy.experimental_distribute_values_from_function(part_of)


def num_workers(strategy: tf.distribute.Strategy) -> int:
    """The processes over which a strategy reduces."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1
    return strategy.cluster_resolver.cluster_spec().num_tasks("worker")


def replicas_of_this_worker(strategy: tf.distribute.Strategy) -> slice:
    """The replicas whose rows this process loads: each worker has as many, by rank."""
    local = strategy.num_replicas_in_sync // num_workers(strategy)
    first = 0 if local == strategy.num_replicas_in_sync else strategy.cluster_resolver.task_id * local
    return slice(first, first + local)


def _on_gpu(strategy: tf.distribute.Strategy) -> bool:
    """Whether the replicas are GPUs (or a TPU's cores) of a real strategy: a distributed data set then copies ahead."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return True
    real = tf.distribute.MirroredStrategy | tf.distribute.OneDeviceStrategy | tf.distribute.MultiWorkerMirroredStrategy
    if not isinstance(strategy, real):
        return False
    return "GPU" in strategy.extended.worker_devices[0]


def as_tensor(array: np.ndarray | None) -> tf.Tensor:
    """An array as a tensor on the CPU, without a copy where its memory allows that: never write to it afterwards."""
    assert array is not None
    plain = np.asarray(array)  # a mapped file stays one
    if plain.size and plain.ctypes.data % ALIGNMENT == 0 and plain.flags.c_contiguous and plain.flags.writeable:
        return tf.experimental.dlpack.from_dlpack(plain.__dlpack__())
    with tf.device("CPU:0"):
        return tf.constant(plain)


def read_picture(path: tf.Tensor, image_shape: tuple[int, ...]) -> tf.Tensor:
    """The picture of a file as uint8 of `image_shape`."""
    return tf.ensure_shape(fit_shape(decode_image(tf.io.read_file(path)), image_shape), image_shape)


def fit_shape(images: tf.Tensor, image_shape: tuple[int, ...]) -> tf.Tensor:
    """Pictures as uint8 of `image_shape`: resized (bilinear, not keeping the aspect ratio), grey or colour as asked.

    Features, whose shape is one number, are what they are.

    Args:
        images: uint8 [..., height, width, 1 or 3].
    """
    if len(image_shape) == 1:
        return images
    height, width, channels = image_shape
    if images.shape[-3:-1].as_list() != [height, width]:
        resized = tf.image.resize(images, [height, width])
        images = tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)
    if channels == 3 and images.shape[-1] == 1:
        images = tf.image.grayscale_to_rgb(images)
    elif channels == 1 and images.shape[-1] == 3:
        images = tf.image.rgb_to_grayscale(images)
    return images
