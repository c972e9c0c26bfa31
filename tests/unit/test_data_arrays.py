"""IDX and .npz files: what they must hold, damaged ones, upright EMNIST, class names from the data."""

import gzip
import re
import struct

import numpy as np
import pytest

from manyfit.config import DataConfig, EmnistConfig
from manyfit.data.arrays import load_arrays
from manyfit.data.idx import read_idx
from manyfit.errors import DataError

MNIST = DataConfig(name="mnist")


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def make_parts(values=(0, 1, 2), count=9):
    rng = np.random.default_rng(0)
    labels = np.array([values[index % len(values)] for index in range(count)])
    return rng.integers(0, 256, (count, 28, 28), dtype=np.uint8), labels


def write_idx(root, images, labels, prefix="", test="t10k", ending=".gz"):
    root.mkdir(parents=True, exist_ok=True)
    pack = gzip.compress if ending == ".gz" else bytes
    for part in ("train", test):
        (root / f"{prefix}{part}-images-idx3-ubyte{ending}").write_bytes(pack(idx_bytes(images)))
        (root / f"{prefix}{part}-labels-idx1-ubyte{ending}").write_bytes(pack(idx_bytes(labels)))
    return root


def write_npz(path, images, labels, **more):
    np.savez(path, **{"x_train": images, "y_train": labels, "x_test": images, "y_test": labels, **more})
    return path


@pytest.mark.parametrize("ending", [".gz", ""])
def test_idx(tmp_path, ending):
    images, labels = make_parts()
    data = load_arrays(MNIST, write_idx(tmp_path, images, labels, ending=ending))
    assert data.source == "arrays" and data.class_names == ("0", "1", "2") and data.image_shape == (28, 28, 1)
    np.testing.assert_array_equal(data.train.images[..., 0], images)
    assert data.train.images.dtype == np.uint8 and data.train.labels.dtype == np.int32
    assert data.validation.name == "validation" and data.test is None
    assert data.found["train"] == {"0": 3, "1": 3, "2": 3} and len(data.fingerprint) == 64


def test_dotted_idx_names(tmp_path):
    write_idx(tmp_path, *make_parts(), ending="")
    for path in list(tmp_path.iterdir()):
        path.rename(tmp_path / path.name.replace("-idx", ".idx"))
    assert len(load_arrays(MNIST, tmp_path).train) == 9


def test_fashion_names(tmp_path):
    data = load_arrays(DataConfig(name="fashion_mnist"), write_idx(tmp_path, *make_parts((0, 1, 9))))
    assert data.class_names == ("T-shirt/top", "Trouser", "Ankle boot")


def test_raw_emnist_is_turned_upright(tmp_path):
    images, labels = make_parts((1, 2, 26))
    root = write_idx(tmp_path, images, labels, prefix="emnist-letters-", test="test")
    data = load_arrays(EmnistConfig(variant="letters"), root)
    np.testing.assert_array_equal(data.train.images[0, :, :, 0], images[0].T)
    assert data.class_names == ("A", "B", "Z")
    assert data.train.labels[:3].tolist() == [0, 1, 2]


def test_emnist_mapping_file_names_the_classes(tmp_path):
    root = write_idx(tmp_path, *make_parts((0, 1)), prefix="emnist-balanced-", test="test")
    (root / "emnist-balanced-mapping.txt").write_text("0 120\n1 121 89\n")
    assert load_arrays(EmnistConfig(), root).class_names == ("x", "y")
    (root / "emnist-balanced-mapping.txt").write_text("0\n")
    with pytest.raises(DataError, match="no mapping file"):
        load_arrays(EmnistConfig(), root)


def test_emnist_of_another_variant(tmp_path):
    root = write_idx(tmp_path, *make_parts(), prefix="emnist-digits-", test="test")
    with pytest.raises(DataError, match="only those of digits") as caught:
        load_arrays(EmnistConfig(variant="balanced"), root)
    assert "emnist-balanced-train-images-idx3-ubyte" in caught.value.remedy


def test_npz_is_not_turned_and_names_its_classes(tmp_path):
    images, labels = make_parts((0, 1, 2))
    mapping = np.array([65, 66, 98], dtype=np.uint8)
    path = write_npz(tmp_path / "emnist.npz", images, labels, mapping=mapping)
    for root in (path, tmp_path):
        data = load_arrays(EmnistConfig(), root)
        np.testing.assert_array_equal(data.train.images[0, :, :, 0], images[0])
        assert data.class_names == ("A", "B", "b")


def test_npz_with_a_mapping_file_beside(tmp_path):
    write_npz(tmp_path / "emnist_bymerge.npz", *make_parts((0, 1, 2)))
    (tmp_path / "emnist-bymerge-mapping.txt").write_text("0 65\n1 66\n2 67\n")
    assert load_arrays(EmnistConfig(), tmp_path).class_names == ("A", "B", "C")


def test_npz_of_int64_and_colour(tmp_path):
    images = np.zeros((4, 8, 8, 3), dtype=np.int64)
    path = write_npz(tmp_path / "mnist.npz", images, np.array([[0], [1], [0], [1]]))
    assert load_arrays(MNIST, path).train.images.shape == (4, 8, 8, 3)


def test_several_npz(tmp_path):
    write_npz(tmp_path / "a.npz", *make_parts())
    write_npz(tmp_path / "emnist_letters.npz", *make_parts())
    with pytest.raises(DataError, match="2 .npz files") as caught:
        load_arrays(MNIST, tmp_path)
    assert "data.root=" in caught.value.remedy
    assert len(load_arrays(EmnistConfig(variant="letters"), tmp_path).train) == 9


def test_npz_never_unpickles(tmp_path):
    path = write_npz(tmp_path / "evil.npz", np.array([{"a": 1}], dtype=object), np.array([0]))
    with pytest.raises(DataError, match="cannot be read as .npz"):
        load_arrays(MNIST, path)


def test_damaged_npz(tmp_path):
    path = write_npz(tmp_path / "mnist.npz", *make_parts())
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match="cannot be read as .npz"):
        load_arrays(MNIST, path)
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="cannot be read as .npz"):
        load_arrays(MNIST, path)


def test_npz_of_other_arrays(tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros(3))
    with pytest.raises(DataError, match="has no x_train, y_train, x_test, y_test; it holds images"):
        load_arrays(MNIST, tmp_path)


@pytest.mark.parametrize(
    "images, labels, message",
    [
        (np.zeros((4, 8, 8)), [0, 1, 0, 1], "float64 values"),
        (np.full((4, 8, 8), 256), [0, 1, 0, 1], "int64 values"),
        (np.zeros((4, 8), np.uint8), [0, 1, 0, 1], "shape (4, 8)"),
        (np.zeros((4, 8, 8), np.uint8), [0, 1, 0], "of the shape (3,) for 4 pictures"),
        (np.zeros((4, 8, 8), np.uint8), [0.0, 1.0, 0.0, 1.0], "float64 of the shape"),
        (np.zeros((4, 8, 8), np.uint8), [1, 1, 1, 1], "1 class"),
    ],
)
def test_arrays_that_are_no_pictures_or_labels(tmp_path, images, labels, message):
    with pytest.raises(DataError, match=re.escape(message)):
        load_arrays(MNIST, write_npz(tmp_path / "x.npz", images, np.array(labels)))


def test_labels_that_training_lacks(tmp_path):
    images, labels = make_parts()
    path = write_npz(tmp_path / "x.npz", images, labels, y_test=labels + 5)
    with pytest.raises(DataError, match=r"lacks: \[5, 6, 7\]"):
        load_arrays(MNIST, path)


def test_gaps_in_the_labels(tmp_path):
    data = load_arrays(MNIST, write_npz(tmp_path / "x.npz", *make_parts((3, 7, 40))))
    assert data.class_names == ("3", "7", "40") and sorted(set(data.train.labels.tolist())) == [0, 1, 2]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "starts with nothing"),
        (b"<html>", "no IDX file"),
        (idx_bytes(np.zeros(4)), "no IDX file of bytes with 3 dimensions"),
        (idx_bytes(np.zeros((2, 3, 3)))[:-1], "17 bytes after its header"),
        (idx_bytes(np.zeros((2, 3, 3))) + b"x", "19 bytes after its header"),
        (idx_bytes(np.zeros((2, 3, 3)))[:10], "no IDX file"),
    ],
)
def test_damaged_idx(tmp_path, content, message):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(path, 3)


def test_damaged_gzip(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole = gzip.compress(idx_bytes(np.random.default_rng(0).integers(0, 256, (9, 9, 9))))
    for content in (whole[:-20], b"not gzip", whole[:30] + b"\xff" * 30 + whole[60:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read"):
            read_idx(path, 3)


def test_label_count_that_differs(tmp_path):
    images, labels = make_parts()
    write_idx(tmp_path, images, labels, ending="")
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(labels[:-1]))
    with pytest.raises(DataError, match="for 9 pictures"):
        load_arrays(MNIST, tmp_path)


def test_incomplete_idx_and_nothing(tmp_path):
    with pytest.raises(DataError, match="holds no files of data=mnist") as caught:
        load_arrays(MNIST, tmp_path)
    assert "train-images-idx3-ubyte" in caught.value.remedy
    with pytest.raises(DataError, match="does not exist"):
        load_arrays(MNIST, tmp_path / "none")
    write_idx(tmp_path, *make_parts(), ending="")
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="lacks IDX files"):
        load_arrays(MNIST, tmp_path)


def test_fingerprint_follows_the_pixels(tmp_path):
    images, labels = make_parts()
    path = write_npz(tmp_path / "x.npz", images, labels)
    before = load_arrays(MNIST, path).fingerprint
    assert load_arrays(MNIST, path).fingerprint == before
    images[0, 0, 0] ^= 1
    assert load_arrays(MNIST, write_npz(path, images, labels)).fingerprint != before
