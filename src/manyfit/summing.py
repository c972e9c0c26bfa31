"""Sums over the replicas of tensors of any size."""

from collections.abc import Sequence

import tensorflow as tf

SUM = tf.distribute.ReduceOp.SUM


def sums(replica: tf.distribute.ReplicaContext, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The sums of `tensors` over all replicas, on each of them; in a replica's context.

    Where the strategy sums in packs (`CommunicationOptions.bytes_per_pack`), which is TensorFlow's way to keep messages
    small, a tensor larger than one is taken apart: TensorFlow packs small ones together, and leaves a large one whole.
    """
    pack = _bytes_per_pack(replica.strategy)
    pieces = [_pieces(tensor, pack) for tensor in tensors]
    summed = iter(replica.all_reduce(SUM, [piece for own in pieces for piece in own]))
    return [_together([next(summed) for _ in own], tensor.shape) for own, tensor in zip(pieces, tensors, strict=True)]


def _bytes_per_pack(strategy: tf.distribute.Strategy) -> int:
    options = getattr(strategy.extended, "_communication_options", None)
    return 0 if options is None else options.bytes_per_pack


def _pieces(tensor: tf.Tensor, pack: int) -> list[tf.Tensor]:
    length = tensor.shape.num_elements() or 0
    most = max(1, pack // tensor.dtype.size)
    if pack == 0 or length <= most:
        return [tensor]
    return tf.split(tf.reshape(tensor, [-1]), [min(most, length - at) for at in range(0, length, most)])


def _together(pieces: Sequence[tf.Tensor], shape: tf.TensorShape) -> tf.Tensor:
    return pieces[0] if len(pieces) == 1 else tf.reshape(tf.concat(pieces, axis=0), shape)
