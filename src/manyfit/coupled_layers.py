"""Keras layers in which a row's result depends on the rows around it, made independent of replicas and padding.

Batch norm takes its statistics from the real rows of the whole global batch. Dropout draws one mask for the rows of
all replicas, of which each takes its own part: Keras would draw the same mask on every replica.
"""

import contextlib
import threading
from collections.abc import Iterator

import keras
import tensorflow as tf

DROPOUTS = (
    keras.layers.Dropout,
    keras.layers.SpatialDropout1D,
    keras.layers.SpatialDropout2D,
    keras.layers.SpatialDropout3D,
)
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
    mask = tf.cast(mask, inputs.dtype)
    shift = tf.stop_gradient(tf.cast(shift, inputs.dtype))
    sums, squares = _shifted_sums(inputs, mask, shift)
    positions = tf.cast(tf.reduce_prod(tf.shape(inputs)[1:-1]), inputs.dtype)
    count = tf.reshape(tf.reduce_sum(mask) * positions, [1])
    replica = tf.distribute.get_replica_context()
    if synchronized and replica is not None and replica.num_replicas_in_sync > 1:
        channels = inputs.shape[-1]
        total = replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.concat([sums, squares, count], axis=0))
        sums, squares, count = tf.split(total, [channels, channels, 1])
    mean = tf.math.divide_no_nan(sums, count)
    variance = tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
    return mean + shift, tf.where(count > 0, variance, tf.cast(empty_variance, inputs.dtype))


@tf.custom_gradient
def _shifted_sums(inputs, mask, shift):
    """Sums over the real rows of `d = inputs - shift` and of `d**2`: two [channels].

    The mask enters after the sums of each row, and the gradient is written out: what TensorFlow would derive passes
    over the activations more than twice as often, which is most of what batch norm costs.
    """
    row_axes = list(range(1, inputs.shape.rank - 1))
    difference = inputs - shift
    row_sums, row_squares = (tf.reduce_sum(part, row_axes) for part in (difference, tf.square(difference)))
    column = mask[:, None]

    def gradient(sums_gradient, squares_gradient):
        shape = [-1, *[1] * len(row_axes), inputs.shape[-1]]
        slope = 2 * column * squares_gradient
        offset = column * sums_gradient - slope * shift
        return inputs * tf.reshape(slope, shape) + tf.reshape(offset, shape), None, None

    return (tf.reduce_sum(row_sums * column, 0), tf.reduce_sum(row_squares * column, 0)), gradient


def trains_batch_norm(network: keras.Model) -> bool:
    """Whether training moves the statistics of any batch-norm layer of `network`."""
    return bool(moving_batch_norms(network))


def moving_batch_norms(network: keras.Model) -> list[keras.layers.BatchNormalization]:
    """The batch-norm layers of `network` that take the statistics of the batch in training."""
    layers = [layer for layer in network._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    return [layer for layer in layers if layer.trainable and not _is_held(layer)]


def hold_statistics(layer: keras.layers.BatchNormalization) -> None:
    """Let a batch-norm layer normalise as in inference, also in training; its scale and offset still train.

    It is what calling the whole backbone with `training=False` does to it (Keras' guide "Transfer learning and
    fine-tuning"), which would also stop the backbone's dropout.
    """
    keras_call = type(layer).call
    layer.call = lambda inputs, training=None, mask=None: keras_call(layer, inputs, training=False, mask=mask)


def let_go(layer: keras.layers.BatchNormalization) -> None:
    """Undo `hold_statistics`."""
    if _is_held(layer):
        del layer.call


def _is_held(layer: keras.layers.BatchNormalization) -> bool:
    return "call" in vars(layer)


def couple(network: keras.Model, *, sync_batch_norm: bool) -> None:
    """Make the batch-norm and dropout layers of `network` work on the global batch.

    Only the running instances change: what is saved is Keras' own layers, which load without this project.
    """
    for layer in network._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            _take_moments_of_real_rows(layer, sync_batch_norm)
        elif isinstance(layer, DROPOUTS):
            _draw_for_all_replicas(layer) if layer.trainable else _pass_through(layer)


def _take_moments_of_real_rows(layer: keras.layers.BatchNormalization, synchronized: bool) -> None:
    keras_moments = type(layer)._moments

    def moments(inputs, mask):
        rows = getattr(_context, "mask", None)
        last_axis = layer.axis in (-1, inputs.shape.rank - 1)
        if rows is None or mask is not None or not last_axis:
            return keras_moments(layer, inputs, mask)
        shift, empty_variance = (tf.convert_to_tensor(v) for v in (layer.moving_mean, layer.moving_variance))
        return masked_moments(inputs, rows, shift, empty_variance, synchronized=synchronized)

    layer._moments = moments


def _pass_through(layer: keras.layers.Dropout) -> None:
    # A frozen layer runs as in inference, as frozen batch norm does: Keras' dropout looks at `training` alone.
    layer.call = lambda inputs, training=False: inputs


def _draw_for_all_replicas(layer: keras.layers.Dropout) -> None:
    keras_call = type(layer).call

    def call(inputs, training=False):
        replica = tf.distribute.get_replica_context()
        if not training or layer.rate in (0, 1) or replica is None or replica.num_replicas_in_sync == 1:
            return keras_call(layer, inputs, training=training)
        return inputs * _own_part(layer, inputs, replica)

    layer.call = call


def _own_part(layer: keras.layers.Dropout, inputs: tf.Tensor, replica) -> tf.Tensor:
    """This replica's rows of the mask that one replica would draw for the whole batch, scaled to keep the mean."""
    rows, *rest = tf.unstack(tf.shape(inputs))
    spatial = getattr(layer, "_get_noise_shape", None)
    asked_rows, *asked = [None, *spatial(inputs)[1:]] if spatial else layer.noise_shape or [None] * inputs.shape.rank
    drawn = [own if size is None else size for size, own in zip(asked, rest, strict=True)]
    drawn_rows = rows * replica.num_replicas_in_sync if asked_rows is None else asked_rows
    seed = tf.cast(tf.math.floormod(layer.seed_generator.next(), tf.int32.max - 1), tf.int32)  # as Keras casts it
    ones = tf.ones(tf.stack([drawn_rows, *drawn]), inputs.dtype)
    mask = tf.nn.experimental.stateless_dropout(ones, rate=layer.rate, seed=seed)
    if asked_rows is not None:
        return mask
    first = tf.cast(replica.replica_id_in_sync_group, tf.int32) * rows
    return mask[first : first + rows]
