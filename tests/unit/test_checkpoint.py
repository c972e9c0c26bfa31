"""Checkpoints are whole or not there, and what is damaged is known for it."""

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyfit import checkpoint
from manyfit.checkpoint import Checkpoint, DamagedError, Position
from manyfit.errors import TrainingError

ARRAYS = {"network/0": np.arange(6, dtype=np.float32).reshape(2, 3), "optimizer/0": np.array(7, np.int64)}


def make(epoch=1, step=2, **state):
    return Checkpoint(Position(epoch, step), ARRAYS, state)


def test_what_is_written_is_read(tmp_path):
    path = checkpoint.save(tmp_path / "checkpoints", make(loss_scale=[1.0, 3]))
    read = checkpoint.load(path)
    assert read.position == Position(1, 2) and read.state == {"loss_scale": [1.0, 3]}
    assert read.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(read.arrays[name], array)
        assert read.arrays[name].dtype == array.dtype
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_furthest_whole_one_is_the_newest(tmp_path):
    told = []
    assert checkpoint.newest(tmp_path, told.append) is None
    for epoch, step in ((0, 90), (1, 0), (10, 3)):
        last = checkpoint.save(tmp_path, make(epoch, step))
    last.write_bytes(last.read_bytes()[:-5])
    assert checkpoint.newest(tmp_path, told.append).position == Position(1, 0)
    assert len(told) == 1 and "is damaged" in told[0]


def test_pruning_keeps_the_last_and_the_best(tmp_path):
    for epoch in range(6):
        checkpoint.save(tmp_path, make(epoch, 0))
    checkpoint.prune(tmp_path, 2, [1])
    assert [checkpoint.position_of(path).epoch for path in checkpoint.paths(tmp_path)] == [5, 4, 1]


def test_what_lies_beyond_is_discarded(tmp_path):
    for epoch, step in ((1, 0), (1, 5), (2, 0)):
        checkpoint.save(tmp_path, make(epoch, step))
    (tmp_path / ".epoch-00001-step-000000007.123.tmp").write_bytes(b"half")
    checkpoint.discard_after(tmp_path, Position(1, 0))
    assert [path.name.partition(".")[0] for path in tmp_path.iterdir()] == ["epoch-00001-step-000000000"]


def test_a_full_disk_names_the_file_and_the_need_and_leaves_the_others(tmp_path, monkeypatch):
    whole = checkpoint.save(tmp_path, make(1, 0))

    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.np, "savez", full)
    with pytest.raises(TrainingError, match="No space left on device(?s:.*)It needs 0.0 MB"):
        checkpoint.save(tmp_path, make(2, 0))
    assert list(tmp_path.iterdir()) == [whole]


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_no_damage_passes(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damage")
    path = checkpoint.save(folder, make())
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(DamagedError):
        checkpoint.load(path)


def forged(folder, content: bytes):
    """A file whose name vouches for its bytes, whatever they are."""
    digest = checkpoint.hashlib.sha256(content).hexdigest()[:16]
    path = folder / f"epoch-00001-step-000000000.{digest}.npz"
    path.write_bytes(content)
    return path


@settings(deadline=None, max_examples=60)
@given(content=st.binary(max_size=300))
def test_bytes_that_are_no_checkpoint_are_refused(tmp_path_factory, content):
    with pytest.raises(DamagedError, match="is no checkpoint"):
        checkpoint.load(forged(tmp_path_factory.mktemp("forged"), content))


def test_a_checkpoint_runs_no_code_and_fills_no_memory(tmp_path):
    class Harm:
        def __reduce__(self):
            return print, ("harm",)

    pickled, packed = io.BytesIO(), io.BytesIO()
    np.savez(pickled, state=np.array([Harm()], dtype=object))
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("state.npy", b"0" * 10_000_000)
    for content in (pickled.getvalue(), packed.getvalue()):
        with pytest.raises(DamagedError, match="is no checkpoint"):
            checkpoint.load(forged(tmp_path, content))
