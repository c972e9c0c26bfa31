"""Tiny prepared TFDS copies, made here under the real names: exported as folders, or read as arrays."""

import io

import numpy as np
import pytest
import tensorflow_datasets as tfds
from etils import epath
from PIL import Image

from manyfit import data
from manyfit.config import DataConfig, EmnistConfig
from manyfit.data import tfds_source
from manyfit.errors import DataError


def encode(value: int, kind: str = "JPEG", mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (20 + value, 16), value).save(buffer, kind)
    return buffer.getvalue()


def picture_with_a_corner() -> np.ndarray:
    image = np.zeros((28, 28, 1), np.uint8)
    image[0, 20] = 200  # upright: near the top right
    return image


# Else it is looked up as a resource of the package `tests`, and other distributions bring one of that name.
HERE = epath.Path(__file__).parent

with tfds.core.registered.skip_registration():

    class CatsVsDogs(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("4.0.1")
        pkg_dir_path = HERE

        def _info(self):
            features = {
                "image": tfds.features.Image(),
                "image/filename": tfds.features.Text(),
                "label": tfds.features.ClassLabel(names=["cat", "dog"]),
            }
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for index in range(40):
                name = ("cat", "dog")[index % 2]
                filename = f"PetImages/{name.title()}/{index // 2}.jpg"
                yield index, {"image": io.BytesIO(encode(index)), "image/filename": filename, "label": name}

    class TfFlowers(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("3.0.1")
        pkg_dir_path = HERE

        def _info(self):
            features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(names=["daisy", "tulips"])}
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(8), "validation": self._generate_examples(4)}

        def _generate_examples(self, count):
            for index in range(count):
                yield index, {"image": io.BytesIO(encode(index, "PNG")), "label": index % 2}

    class Emnist(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("3.1.0")
        pkg_dir_path = HERE
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="letters")]

        def _info(self):
            features = {
                "image": tfds.features.Image(shape=(28, 28, 1)),
                "label": tfds.features.ClassLabel(num_classes=37),
            }
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(6), "test": self._generate_examples(3)}

        def _generate_examples(self, count):
            for index in range(count):
                yield index, {"image": picture_with_a_corner().swapaxes(0, 1), "label": 1 + index % 3}


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    monkeypatch.setattr(tfds_source, "download", lambda name, url, folder: "no network here")
    tfds.disable_progress_bar()
    return tmp_path / "tfds"


def test_cats_dogs_is_exported_once_as_a_folder(tmp_path, data_dir):
    CatsVsDogs(data_dir=data_dir).download_and_prepare()
    loaded = data.load(DataConfig(), cache_dir=tmp_path / "cache")
    assert loaded.source == "tfds" and not loaded.rehearsal
    assert loaded.class_names == ("cats", "dogs")  # as in the image folder and the sample
    assert len(loaded.train) + len(loaded.validation) == 40
    (export,) = (tmp_path / "cache" / "tfds").iterdir()
    assert export.name == "cats_vs_dogs-4.0.1-40"
    assert (export / "cats" / "3.jpg").read_bytes() == encode(6)  # the raw bytes
    before = export.stat().st_mtime_ns
    again = data.load(DataConfig(source="tfds"), cache_dir=tmp_path / "cache")
    assert export.stat().st_mtime_ns == before and again.fingerprint == loaded.fingerprint


def test_set_with_splits_and_no_file_names(tmp_path, data_dir):
    TfFlowers(data_dir=data_dir).download_and_prepare()
    loaded = data.load(DataConfig(name="flowers"), cache_dir=tmp_path / "cache")
    assert (len(loaded.train), len(loaded.validation)) == (8, 4)
    assert loaded.class_names == ("daisy", "tulips")
    assert all(path.endswith(".png") for path in loaded.train.paths)


def test_emnist_is_turned_upright_and_named(tmp_path, data_dir):
    Emnist(data_dir=data_dir, config="letters").download_and_prepare()
    for config in (EmnistConfig(variant="letters"), EmnistConfig(variant="letters", source="tfds", root=str(data_dir))):
        loaded = data.load(config, cache_dir=tmp_path / "cache")
        assert loaded.class_names == ("A", "B", "C") and loaded.image_shape == (28, 28, 1)
        np.testing.assert_array_equal(loaded.train.images[0], picture_with_a_corner())
        assert (len(loaded.train), len(loaded.validation)) == (6, 3)


def test_damaged_copy_is_an_error_even_under_auto(tmp_path, data_dir):
    CatsVsDogs(data_dir=data_dir).download_and_prepare()
    for path in (data_dir / "cats_vs_dogs" / "4.0.1").glob("*.tfrecord*"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="cannot be read") as caught:
        data.load(DataConfig(), cache_dir=tmp_path / "cache")
    assert "data.root=PATH" in caught.value.remedy
    assert not list((tmp_path / "cache" / "tfds").iterdir())  # no half export


def test_cache_that_cannot_be_written(tmp_path, data_dir):
    CatsVsDogs(data_dir=data_dir).download_and_prepare()
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="cannot be exported") as caught:
        data.load(DataConfig(), cache_dir=tmp_path / "cache")
    assert "MANYFIT_CACHE" in caught.value.remedy


def test_download_that_fails_is_one_line(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(tfds_source, "unreachable", lambda url: None)

    class Failing:
        def download_and_prepare(self):
            raise tfds.download.DownloadError("Failed to get url\nlong story")

    monkeypatch.setattr(tfds, "builder", lambda name, data_dir: Failing())
    assert tfds_source.download("mnist", "http://x.invalid/", tmp_path) == "DownloadError: Failed to get url"
    assert capfd.readouterr().err == ""
