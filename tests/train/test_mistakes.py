"""The wrong predictions of a model: which, in which order, with which pictures."""

import json

import numpy as np
import pytest
from PIL import Image

from manyfit.data.examples import Split
from manyfit.mistakes import find, how_many


def test_the_most_confident_mistakes_come_first_with_their_pictures(tmp_path):
    images = np.zeros((5, 4, 6, 1), np.uint8)
    images[2] = 200
    split = Split("validation", np.array([0, 1, 0, 2, 1], np.int32), images=images)
    scores = np.array([[3, 0, 0], [2, 0, 0], [0, 5, 0], [0, 0, 1], [0, 0, 3]], float)
    found = find(scores, split, ("a", "b", "c"), 2, tmp_path)
    assert found.confusion_matrix.tolist() == [[1, 1, 0], [1, 0, 1], [0, 0, 1]]
    assert [(one.index, one.truth, one.predicted) for one in found.mistakes] == [(2, 0, 1), (4, 1, 2)]
    assert found.mistakes[0].confidence == pytest.approx(np.exp(5) / (np.exp(5) + 2))
    assert found.mistakes[0].confidence_in_truth == pytest.approx(1 / (np.exp(5) + 2))
    assert found.mistakes[0].picture is not None
    with Image.open(tmp_path / found.mistakes[0].picture) as picture:
        assert (picture.size, picture.getpixel((0, 0))) == ((156, 104), (200, 200, 200))
    found.write()
    written = json.loads((tmp_path / "mistakes.json").read_text())
    assert (written["num_examples"], written["num_wrong"]) == (5, 3)


def test_files_are_named_and_one_logit_tells_two_classes(tmp_path):
    paths = []
    for number in range(2):
        path = tmp_path / f"{number}.jpg"
        Image.new("RGB", (400, 200)).save(path)
        paths.append(str(path))
    paths.append(str(tmp_path / "gone.jpg"))
    split = Split("validation", np.array([1, 0, 0], np.int32), paths=tuple(paths))
    found = find(np.array([[-2.0], [-1.0], [3.0]]), split, ("cats", "dogs"), 9, tmp_path)
    assert found.confusion_matrix.tolist() == [[1, 1], [1, 0]]
    gone, wrong = found.mistakes
    assert (gone.picture, gone.example) == (None, f"{tmp_path.name}/gone.jpg")
    assert wrong.picture is not None
    with Image.open(tmp_path / wrong.picture) as picture:
        assert picture.size == (160, 80)


def test_auto_costs_at_most_a_twentieth():
    assert how_many(3, validation_seconds=None, elapsed_seconds=0.0) == 3
    assert how_many("auto", validation_seconds=5.0, elapsed_seconds=199.0) == 0
    assert how_many("auto", validation_seconds=5.0, elapsed_seconds=200.0) == 16
