"""Pictures decoded once are those that training decodes, by content and wherever they are kept."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from manyfit.array_store import ArrayStore
from manyfit.data import decoded
from manyfit.data.examples import ImageData, Split
from manyfit.data.pipeline import Feed, as_tensor
from manyfit.errors import ConfigError

SHAPE = (24, 20, 3)


def files(folder: Path, count: int, seed: int) -> tuple[str, ...]:
    """Pictures of many sizes and three formats."""
    rng = np.random.default_rng(seed)
    paths = []
    for index in range(count):
        height, width = rng.integers(8, 60, 2)
        path = folder / f"{seed}-{index}.{('jpg', 'png', 'bmp')[index % 3]}"
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)
        paths.append(str(path))
    return tuple(paths)


@pytest.fixture
def data(tmp_path) -> ImageData:
    splits = [
        Split(name, np.arange(count, dtype=np.int32) % 2, paths=files(tmp_path, count, seed))
        for seed, (name, count) in enumerate((("train", 37), ("validation", 5)))
    ]
    return ImageData("cats_dogs", "folder", ("cats", "dogs"), *splits)


def one_epoch(split: Split, shape=SHAPE, seed: int | None = 3) -> list[tuple[np.ndarray, ...]]:
    dataset = Feed(split, 8, 5, shape, shuffle_seed=seed).distribute(tf.distribute.get_strategy())
    return [tuple(part.numpy() for part in step) for step in dataset.take(5)]


@pytest.mark.parametrize("use", ["memory", "disk"])
def test_training_sees_the_same_pixels(data, tmp_path, use):
    seen: list[tuple[int, int]] = []
    with ArrayStore(tmp_path / "arrays", 1e9) as store:
        arrays = decoded.decode(
            data, SHAPE, use=use, store=store, on_progress=lambda done, total: seen.append((done, total))
        )
    assert seen[-1] == (42, 42)
    assert arrays.train.paths is None and arrays.train.images.shape == (37, *SHAPE)
    for cached, plain in zip(one_epoch(arrays.train), one_epoch(data.train), strict=True):
        for found, expected in zip(cached, plain, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_what_is_on_disk_serves_again_until_a_picture_changes(data, tmp_path):
    def decode():
        told: list[str] = []
        with ArrayStore(tmp_path / "arrays", 1e9, told.append) as store:
            seen: list[int] = []
            decoded.decode(data, SHAPE, use="disk", store=store, on_progress=lambda done, total: seen.append(done))
        assert told == []
        return seen

    assert decode() and not decode()
    path = Path(data.validation.paths[0])
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(path)
    assert decode() == [42]  # the validation split alone


def test_content_is_what_the_bytes_say(data, tmp_path):
    split, memory = data.train, tmp_path / "contents"
    content = decoded.content_of(split, memory)
    assert content == decoded.content_of(split, memory) == decoded.content_of(split)
    path = Path(split.paths[3])
    status, before = path.stat(), path.read_bytes()
    path.write_bytes(before)  # another time, the same bytes
    assert decoded.content_of(split, memory) == content
    path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # the same size and time, other bytes
    assert decoded.content_of(split, memory) != content
    path.write_bytes(before)
    other_order = Split("train", split.labels, paths=split.paths[::-1])
    assert decoded.content_of(other_order) != content
    other_labels = Split("train", 1 - split.labels, paths=split.paths)
    assert decoded.content_of(other_labels) == content


def test_content_of_arrays(data):
    images = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    one = Split("train", np.zeros(2, np.int32), images=images)
    same = Split("validation", np.ones(2, np.int32), images=images.copy())
    other = Split("train", np.zeros(2, np.int32), images=images[::-1])
    assert decoded.content_of(one) == decoded.content_of(same) != decoded.content_of(other)


def test_arrays_are_read_in_order_too():
    images = np.random.default_rng(0).integers(0, 256, (19, 8, 8, 1), dtype=np.uint8)
    split = Split("train", np.zeros(19, np.int32), images=images)
    chunks = list(decoded.read_in_order(split, (8, 8, 3), rows=4))
    assert [len(chunk) for chunk in chunks] == [4, 4, 4, 4, 3]
    np.testing.assert_array_equal(np.concatenate(chunks), np.repeat(images, 3, axis=-1))


def test_features_are_fed_as_they_are(tmp_path):
    features = np.random.default_rng(0).normal(size=(37, 6)).astype(np.float32)
    np.save(tmp_path / "features.npy", features)
    mapped = np.load(tmp_path / "features.npy", mmap_mode="c")
    for array in (features, mapped):
        split = Split("train", np.arange(37, dtype=np.int32), images=array)
        steps = one_epoch(split, (6,))
        assert sorted(int(label) for _, y, mask in steps for label in y[mask > 0]) == list(range(37))
        for x, y, _ in steps:
            np.testing.assert_array_equal(x, features[y])


def test_a_mapped_array_is_shared_not_copied(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((100, 3), np.float32))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="c")
    tensor = as_tensor(mapped)
    mapped[7] = 5.0
    assert tensor[7].numpy().tolist() == [5.0] * 3
    read_only = as_tensor(np.load(tmp_path / "a.npy", mmap_mode="r"))
    assert read_only.shape == (100, 3)


MEMORY = [("auto", 2, "memory"), ("auto", 1, None), ("off", 9, None), ("memory", 1, "memory"), ("disk", 1, "disk")]


@pytest.mark.parametrize(("cache", "epochs", "use"), MEMORY)
def test_where_pictures_are_kept(data, cache, epochs, use):
    choice = decoded.decide(cache, data, SHAPE, epochs=epochs, features=False)
    assert choice.use == use and choice.why


def test_never_more_than_half_of_the_free_memory(data, monkeypatch):
    monkeypatch.setattr(decoded.psutil, "virtual_memory", lambda: SimpleNamespace(available=2 * 42 * 24 * 20 * 3 - 1))
    assert decoded.decide("auto", data, SHAPE, epochs=9, features=False).use is None
    assert decoded.decide("disk", data, SHAPE, epochs=9, features=False).use == "disk"
    with pytest.raises(ConfigError, match="data.cache=memory needs more than half"):
        decoded.decide("memory", data, SHAPE, epochs=9, features=False)


def test_no_cache_where_pictures_are_decoded_once_anyway(data):
    assert decoded.decide("memory", data, SHAPE, epochs=9, features=True).use is None
    arrays = ImageData("mnist", "arrays", ("0", "1"), *[Split("train", np.zeros(1), images=np.zeros((1, 2, 2, 1)))] * 2)
    assert decoded.decide("auto", arrays, SHAPE, epochs=9, features=False).use is None
