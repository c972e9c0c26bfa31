"""Which source a configuration means, what falls back and what never does; no network, no TensorFlow."""

import subprocess
import sys
import threading
import urllib.error
from pathlib import Path

import numpy as np
import pytest

from manyfit import data
from manyfit.config import DataConfig, EmnistConfig, SyntheticConfig
from manyfit.data import drawn, tfds_source
from manyfit.data import folder as folder_module
from manyfit.errors import DataError


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    monkeypatch.setattr(tfds_source, "download", lambda name, url, folder: "no network here")
    monkeypatch.setattr(folder_module, "check_files", lambda paths, *, cache_dir=None: [None] * len(paths))


@pytest.fixture
def drawing(monkeypatch):
    calls = []

    def draw_sample(folder: Path, seed: int = 0):
        calls.append((folder, seed))
        for split in ("train", "validation"):
            for name in ("cats", "dogs"):
                (folder / split / name).mkdir(parents=True, exist_ok=True)
                (folder / split / name / "0000.jpg").write_bytes(b"picture")

    monkeypatch.setattr(drawn, "draw_sample", draw_sample)
    return calls


def test_auto_falls_back_to_the_sample_with_a_notice(tmp_path, drawing):
    loaded = data.load(DataConfig(), cache_dir=tmp_path / "cache")
    assert loaded.rehearsal and loaded.source == "sample" and loaded.class_names == ("cats", "dogs")
    assert "rehearsal" in loaded.notices[0] and "no network here" in loaded.notices[0]
    folder, seed = drawing[0]
    assert folder.is_relative_to(tmp_path / "cache" / "sample") and seed == 0


def test_sample_when_asked_for(tmp_path, drawing):
    loaded = data.load(DataConfig(source="sample"), cache_dir=tmp_path)
    assert loaded.rehearsal and "data.source=sample" in loaded.notices[0]
    with pytest.raises(DataError, match="draws its pictures"):
        data.load(DataConfig(source="sample", root=str(tmp_path)), cache_dir=tmp_path)


def test_sample_that_cannot_be_kept(tmp_path, monkeypatch):
    def draw_sample(folder, seed):
        raise PermissionError("read-only")

    monkeypatch.setattr(drawn, "draw_sample", draw_sample)
    with pytest.raises(DataError, match="cannot be kept.*read-only") as caught:
        data.load(DataConfig(source="sample"), cache_dir=tmp_path)
    assert "MANYFIT_CACHE" in caught.value.remedy


def test_tfds_never_falls_back(tmp_path, drawing):
    with pytest.raises(DataError, match="no network here") as caught:
        data.load(DataConfig(source="tfds"), cache_dir=tmp_path)
    assert not drawing
    assert "'cats_vs_dogs'" in caught.value.remedy


@pytest.mark.parametrize("source", ["auto", "folder"])
def test_a_given_root_never_falls_back(tmp_path, drawing, source):
    with pytest.raises(DataError, match="does not exist"):
        data.load(DataConfig(source=source, root=str(tmp_path / "none")), cache_dir=tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no class folder"):
        data.load(DataConfig(source=source, root=str(tmp_path / "empty")), cache_dir=tmp_path)
    with pytest.raises(DataError, match="no folder"):
        data.load(DataConfig(source="tfds", root=str(tmp_path / "none")), cache_dir=tmp_path)
    assert not drawing


@pytest.mark.parametrize(
    "config, tfds_name, files",
    [
        (DataConfig(name="mnist"), "'mnist'", "t10k"),
        (DataConfig(name="fashion_mnist"), "'fashion_mnist'", "train-images-idx3-ubyte"),
        (EmnistConfig(variant="letters"), "'emnist/letters'", "emnist-letters-train-images-idx3-ubyte"),
        (DataConfig(name="flowers"), "'tf_flowers'", "PATH/train/CLASS/*"),
    ],
)
def test_other_sets_end_with_the_three_ways(tmp_path, config, tfds_name, files):
    with pytest.raises(DataError, match="no network here") as caught:
        data.load(config, cache_dir=tmp_path)
    for word in (tfds_name, files, "data.root=PATH", "data.source=tfds", "TFDS_DATA_DIR", "copy"):
        assert word in caught.value.remedy


def test_image_folder_needs_a_root(tmp_path):
    for source in ("auto", "tfds"):
        with pytest.raises(DataError, match="no root") as caught:
            data.load(DataConfig(name="image_folder", source=source), cache_dir=tmp_path)
        assert "data.root=PATH" in caught.value.remedy


def test_synthetic(tmp_path):
    config = SyntheticConfig(num_train=103, num_validation=20, num_classes=4, channels=3)
    loaded, again = data.load(config, cache_dir=tmp_path), data.load(config, cache_dir=tmp_path)
    assert loaded.source == "synthetic" and loaded.image_shape == (28, 28, 3) and len(loaded.class_names) == 4
    np.testing.assert_array_equal(loaded.train.images, again.train.images)
    assert loaded.fingerprint == again.fingerprint
    assert sorted(loaded.found["train"].values()) == [25, 26, 26, 26]
    assert loaded.train.images.dtype == np.uint8
    with pytest.raises(DataError, match="made in memory"):
        data.load(SyntheticConfig(root="x"), cache_dir=tmp_path)


def test_synthetic_can_be_learned():
    loaded = data.load(SyntheticConfig(num_train=400, num_validation=200, num_classes=10))
    train, validation = loaded.train, loaded.validation
    pixels = train.images.reshape(400, -1).astype(np.float32)
    means = np.stack([pixels[train.labels == label].mean(axis=0) for label in range(10)])
    distances = ((validation.images.reshape(200, 1, -1) - means[None]) ** 2).sum(axis=-1)
    assert (distances.argmin(axis=1) == validation.labels).mean() > 0.95


def test_cache_dir(monkeypatch, tmp_path):
    monkeypatch.setenv("MANYFIT_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert data.default_cache_dir() == tmp_path / "own"
    monkeypatch.delenv("MANYFIT_CACHE")
    assert data.default_cache_dir() == tmp_path / "xdg" / "manyfit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data.default_cache_dir() == tmp_path / ".cache" / "manyfit"


def test_find_prepared_takes_the_newest_whole_version(tmp_path):
    for version in ("3.0.1", "3.0.10", "3.1.0.incompleteABC", "4.0.0"):
        (tmp_path / "mnist" / version).mkdir(parents=True)
        (tmp_path / "mnist" / version / "dataset_info.json").write_text("{}")
    (tmp_path / "mnist" / "4.0.0" / "dataset_info.json").unlink()
    assert tfds_source.find_prepared(tmp_path, "mnist") == tmp_path / "mnist" / "3.0.10"
    assert tfds_source.find_prepared(tmp_path, "emnist/letters") is None


def test_unreachable_answers_in_one_line_and_in_time(monkeypatch):
    def refuse(request, timeout):
        raise urllib.error.URLError("Name or service not known")

    def answer_404(request, timeout):
        raise urllib.error.HTTPError(request.full_url, 404, "Not Found", {}, None)

    never = threading.Event()
    monkeypatch.setattr(tfds_source, "_REACH_SECONDS", 0.05)
    monkeypatch.setattr("urllib.request.urlopen", lambda request, timeout: never.wait(10))
    assert "no answer" in tfds_source.unreachable("http://name.invalid/")
    never.set()
    monkeypatch.setattr(tfds_source, "_REACH_SECONDS", 5.0)
    monkeypatch.setattr("urllib.request.urlopen", refuse)
    assert "Name or service not known" in tfds_source.unreachable("http://name.invalid/")
    monkeypatch.setattr("urllib.request.urlopen", answer_404)
    assert tfds_source.unreachable("http://name.invalid/") is None


def test_no_tensorflow_at_import():
    code = "import sys, manyfit.data, manyfit.data.tfds_source, manyfit.data.arrays, manyfit.data.decode; "
    code += "sys.exit(any(name.split('.')[0].startswith('tensorflow') for name in sys.modules))"
    environment = {"PYTHONPATH": str(Path(data.__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
