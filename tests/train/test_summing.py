"""A sum over replicas is the same, whether tensors travel whole or in pieces."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from manyfit.summing import sums

SHAPES = [(), (3,), (4, 5), (0, 2), (7, 11), (1, 1, 25)]


class Replica:
    """One of three whose values are equal; it keeps what was sent."""

    def __init__(self, bytes_per_pack):
        options = SimpleNamespace(bytes_per_pack=bytes_per_pack)
        self.strategy = SimpleNamespace(extended=SimpleNamespace(_communication_options=options))
        self.sent = []

    def all_reduce(self, op, tensors):
        assert op == tf.distribute.ReduceOp.SUM
        self.sent += tensors
        return [3 * tensor for tensor in tensors]


def tensors(dtype=np.float32):
    rng = np.random.default_rng(0)
    return [tf.constant(rng.normal(size=shape).astype(dtype)) for shape in SHAPES]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("bytes_per_pack", [1, 50, 80, 100, 10_000])
def test_the_sums_are_those_of_whole_tensors(bytes_per_pack, dtype):
    replica, given = Replica(bytes_per_pack), tensors(dtype)
    found = sums(replica, given)
    assert [tensor.shape for tensor in found] == [tensor.shape for tensor in given]
    for summed, tensor in zip(found, given, strict=True):
        np.testing.assert_array_equal(summed, 3 * tensor)
    most = max(1, bytes_per_pack // np.dtype(dtype).itemsize)
    assert max(tensor.shape.num_elements() for tensor in replica.sent) <= most


def test_what_fits_into_a_pack_is_sent_as_it_is():
    replica, given = Replica(100), tensors()
    sums(replica, given)
    assert [tensor.shape for tensor in replica.sent if tensor.shape.rank != 1 or tensor.shape[0] == 3] == [
        (), (3,), (4, 5), (0, 2), (1, 1, 25),
    ]  # fmt: skip
    assert [tensor.shape[0] for tensor in replica.sent if tensor.shape.rank == 1][1:] == [25, 25, 25, 2]


@pytest.mark.parametrize("strategy", [tf.distribute.get_strategy(), None])
def test_where_the_strategy_makes_no_packs_nothing_is_taken_apart(strategy):
    replica = Replica(0)
    replica.strategy = strategy or replica.strategy
    sums(replica, tensors())
    assert [tuple(tensor.shape) for tensor in replica.sent] == SHAPES
