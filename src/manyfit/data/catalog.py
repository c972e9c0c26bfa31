"""The data sets known by name: what they are called at TensorFlow Datasets, their files, their class names."""

from __future__ import annotations

import string
from dataclasses import dataclass, field

from manyfit.config import DataConfig, EmnistConfig

_FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_DIGITS = string.digits
_MERGED = string.digits + string.ascii_uppercase + "abdefghnqrt"
# The characters of EMNIST's labels 0, 1, 2...; `letters` starts at 1.
_EMNIST = {
    "balanced": _MERGED,
    "bymerge": _MERGED,
    "byclass": string.digits + string.ascii_uppercase + string.ascii_lowercase,
    "digits": _DIGITS,
    "mnist": _DIGITS,
    "letters": " " + string.ascii_uppercase,
}
_FOLDER_LAYOUT = "PATH/train/CLASS/* and PATH/validation/CLASS/*, or PATH/CLASS/*"
_IDX_LAYOUT = "{0}train-images-idx3-ubyte, {0}train-labels-idx1-ubyte and the same two for {1} (.gz or plain)"
_NPZ_LAYOUT = "or one .npz with x_train, y_train, x_test, y_test"


@dataclass(frozen=True)
class DataSet:
    """A data set known by name.

    Args:
        tfds_name: Its name at TensorFlow Datasets; None where it is not there.
        url: What TensorFlow Datasets downloads it from.
        files: What a local copy must hold, in words.
        is_array: True where the pictures share one small size and are held in memory, False for picture files.
        label_names: Class name of each label value; labels without one are called by their number.
        folder_names: Class folders of a TFDS copy that are called otherwise there.
    """

    tfds_name: str | None
    url: str
    files: str
    is_array: bool = False
    label_names: dict[int, str] = field(default_factory=dict)
    folder_names: dict[str, str] = field(default_factory=dict)


def data_set(config: DataConfig) -> DataSet:
    """Look up the data set that a configuration names."""
    if config.name == "cats_dogs":
        return DataSet(
            "cats_vs_dogs",
            "https://download.microsoft.com/",
            _FOLDER_LAYOUT,
            folder_names={"cat": "cats", "dog": "dogs"},
        )
    if config.name == "flowers":
        return DataSet("tf_flowers", "https://storage.googleapis.com/", _FOLDER_LAYOUT)
    if config.name == "mnist":
        return _array_set("mnist", "https://storage.googleapis.com/", "", "t10k", _DIGITS)
    if config.name == "fashion_mnist":
        url = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
        return _array_set("fashion_mnist", url, "", "t10k", _FASHION)
    if isinstance(config, EmnistConfig):
        prefix, characters = f"emnist-{config.variant}-", _EMNIST[config.variant]
        return _array_set(f"emnist/{config.variant}", "https://biometrics.nist.gov/", prefix, "test", characters)
    return DataSet(None, "", _FOLDER_LAYOUT)


def three_ways(config: DataConfig, known: DataSet) -> str:
    """The remedy where a set cannot be had: the three ways to get it."""
    ways = [f"(1) data.root=PATH of a local copy that holds {known.files};"]
    if known.tfds_name is None:
        return f"Give data.root=PATH of a folder that holds {known.files}."
    ways.append(
        f"(2) data.source=tfds on a machine with a network: TensorFlow Datasets downloads '{known.tfds_name}' into "
        "$TFDS_DATA_DIR (default ~/tensorflow_datasets);"
    )
    folder = known.tfds_name.split("/")[0]
    ways.append(
        f"(3) prepare it elsewhere (python -c \"import tensorflow_datasets as t; t.load('{known.tfds_name}')\"), copy "
        f"the folder '{folder}' from there into a folder here, and set TFDS_DATA_DIR to that folder."
    )
    return f"Three ways to get data={config.name}:\n  " + "\n  ".join(ways)


def _array_set(tfds_name: str, url: str, prefix: str, part: str, names: str | tuple[str, ...]) -> DataSet:
    files = f"{_IDX_LAYOUT.format(prefix, part)}, {_NPZ_LAYOUT}"
    return DataSet(tfds_name, url, files, is_array=True, label_names=dict(enumerate(names)))
