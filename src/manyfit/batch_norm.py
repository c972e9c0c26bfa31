"""Batch normalisation over the real rows of the whole global batch: padding and replica count leave no trace in it."""

import contextlib
import threading
from collections.abc import Iterator

import keras
import tensorflow as tf

_context = threading.local()  # MirroredStrategy runs each replica in a thread of its own


@contextlib.contextmanager
def real_rows(mask: tf.Tensor) -> Iterator[None]:
    """Tell the batch-norm layers called inside which rows are real.

    Args:
        mask: [rows], 1 for a real example and 0 for padding.
    """
    outer = getattr(_context, "mask", None)
    _context.mask = mask
    try:
        yield
    finally:
        _context.mask = outer


def masked_moments(inputs, mask, shift, empty_variance, *, synchronized: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance over all axes but the last, of the rows whose mask is 1.

    Sums of `d = x - shift` and `d**2` need one reduction over the replicas instead of two, and with `shift` near the
    mean they do not cancel (Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance").

    Args:
        inputs: [rows, ..., channels].
        mask: [rows].
        shift: [channels], any constant near the mean, the same on every replica; the mean where no row is real.
        empty_variance: [channels], the variance where no row is real.
        synchronized: Sum over all replicas, not this one's rows alone.
    """
    axes = list(range(inputs.shape.rank - 1))
    mask = tf.reshape(tf.cast(mask, inputs.dtype), [-1] + [1] * (inputs.shape.rank - 1))
    shift = tf.stop_gradient(tf.cast(shift, inputs.dtype))
    difference = inputs - shift
    weighted = difference * mask
    positions = tf.cast(tf.reduce_prod(tf.shape(inputs)[1:-1]), inputs.dtype)
    sums = tf.reduce_sum(weighted, axes)
    squares = tf.reduce_sum(weighted * difference, axes)
    count = tf.reshape(tf.reduce_sum(mask) * positions, [1])
    replica = tf.distribute.get_replica_context()
    if synchronized and replica is not None and replica.num_replicas_in_sync > 1:
        channels = inputs.shape[-1]
        total = replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.concat([sums, squares, count], axis=0))
        sums, squares, count = tf.split(total, [channels, channels, 1])
    mean = tf.math.divide_no_nan(sums, count)
    variance = tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
    return mean + shift, tf.where(count > 0, variance, tf.cast(empty_variance, inputs.dtype))


def replicate_batch_norm(network: keras.Model, *, synchronized: bool) -> int:
    """Make every batch-norm layer of `network` take its statistics from `masked_moments`; the number of layers.

    Only the running instance changes: what is saved is Keras' own layer, which loads without this project.
    """
    layers = [layer for layer in network._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    for layer in layers:
        _replace_moments(layer, synchronized)
    return len(layers)


def _replace_moments(layer: keras.layers.BatchNormalization, synchronized: bool) -> None:
    keras_moments = type(layer)._moments

    def moments(inputs, mask):
        rows = getattr(_context, "mask", None)
        last_axis = layer.axis in (-1, inputs.shape.rank - 1)
        if rows is None or mask is not None or not last_axis:
            return keras_moments(layer, inputs, mask)
        shift, empty_variance = (tf.convert_to_tensor(v) for v in (layer.moving_mean, layer.moving_variance))
        return masked_moments(inputs, rows, shift, empty_variance, synchronized=synchronized)

    layer._moments = moments
