"""Predictions in this process, on one CPU device: what the network itself says, for files of every kind."""

import base64
import dataclasses
import io
import json
import os
import re
import tracemalloc
from argparse import Namespace

import keras
import numpy as np
import pytest
from PIL import Image

from manyfit.console import Console
from manyfit.data.pipeline import read_picture
from manyfit.errors import UserError
from manyfit.models.saved import load_network, probabilities
from manyfit.prediction import Prediction, Predictor, Unreadable, thumbnail
from manyfit.prediction_command import run_command
from manyfit.trained_run import TrainedRun

# Keras' own saving, NumPy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SIZE = 8


def network(outputs, channels=3):
    pixels = keras.Input((SIZE, SIZE, channels), dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(pixels))
    return keras.Model(pixels, keras.layers.Dense(outputs)(x))


@pytest.fixture(scope="module")
def make(made_runs, tmp_path_factory):
    """A run folder with a small network of random weights, and that network."""

    def run(outputs=3, classes=("a", "b", "c"), channels=3):
        keras.utils.set_random_seed(outputs)
        folder = made_runs.make_run(tmp_path_factory.mktemp("runs") / "run", data={"class_names": list(classes)})
        model = network(outputs, channels)
        model.save(folder / "model.keras")
        return TrainedRun.load(folder), model

    return run


def draw(path, seed, size=(20, 13), mode="RGB"):
    levels = np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)
    Image.fromarray(levels).convert(mode).save(path)
    return str(path)


@pytest.fixture
def files(tmp_path):
    """Good and bad files, in an order that mixes them."""
    good = [draw(tmp_path / f"{index}.{kind}", index) for index, kind in enumerate(("jpg", "png", "bmp", "webp"))]
    grey = draw(tmp_path / "grey.jpg", 9, mode="L")
    cut = tmp_path / "cut.jpg"
    cut.write_bytes((tmp_path / "0.jpg").read_bytes()[:200])
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "page.jpg").write_bytes(b"<!doctype html><p>")
    (tmp_path / "link.jpg").symlink_to(tmp_path / "nowhere.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    bad = [str(tmp_path / name) for name in ("cut.jpg", "empty.jpg", "page.jpg", "link.jpg", "pipe.jpg", "gone.jpg")]
    return [bad[0], good[0], bad[1], *good[1:], *bad[2:], grey]


def test_every_file_is_answered_in_order_with_the_networks_own_numbers(make, files):
    run, model = make()
    done = list(Predictor(run, device="cpu", most_rows=2).stream(files))
    assert [one.path for one in done] == files
    said = {os.path.basename(one.path): one.reason for one in done if isinstance(one, Unreadable)}
    assert said == {
        "cut.jpg": "truncated JPEG",
        "empty.jpg": "empty file",
        "page.jpg": "an HTML page, not a picture",
        "link.jpg": "a link to a file that does not exist",
        "pipe.jpg": "not a regular file",
        "gone.jpg": "cannot be read: No such file or directory",
    }
    for one in done:
        if isinstance(one, Prediction):
            expected = probabilities(model(read_picture(one.path, (SIZE, SIZE, 3))[None]).numpy())[0]
            np.testing.assert_allclose(one.probabilities, expected, rtol=1e-5, atol=1e-7)
            assert one.probabilities.sum() == pytest.approx(1)


def test_one_score_is_the_second_of_two_classes(make, tmp_path):
    run, model = make(1, ("cat", "dog"))
    (done,) = Predictor(run, device="cpu").stream([draw(tmp_path / "a.png", 1)])
    score = float(model(read_picture(str(tmp_path / "a.png"), (SIZE, SIZE, 3))[None])[0, 0])
    assert done.probabilities.tolist() == pytest.approx([1 / (1 + np.exp(score)), 1 / (1 + np.exp(-score))], rel=1e-5)


def test_a_network_of_grey_pictures_takes_photos(make, tmp_path):
    run, model = make(2, ("a", "b"), channels=1)
    (done,) = Predictor(run, device="cpu").stream([draw(tmp_path / "a.png", 1)])
    expected = probabilities(model(read_picture(str(tmp_path / "a.png"), (SIZE, SIZE, 1))[None]).numpy())[0]
    np.testing.assert_allclose(done.probabilities, expected, rtol=1e-5)


def test_no_files_and_only_bad_files(make, tmp_path):
    predictor = Predictor(make()[0], device="cpu")
    assert list(predictor.stream([])) == []
    assert [type(one) for one in predictor.stream([str(tmp_path / "x"), str(tmp_path)])] == [Unreadable] * 2


@pytest.mark.slow
def test_pictures_are_not_kept(make, tmp_path):
    """Many large pictures pass; at no time is there more than a few batches of small ones."""
    path = draw(tmp_path / "a.png", 1, size=(400, 400))
    predictor = Predictor(make()[0], device="cpu", most_rows=8)
    list(predictor.stream([path] * 20))  # traces
    tracemalloc.start()
    count = 0
    for _ in predictor.stream([path] * 500):
        count += 1
        if count == 100:
            tracemalloc.reset_peak()
            early = tracemalloc.get_traced_memory()[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 500 and peak - early < 2_000_000  # one of them is 480,000 bytes


def test_a_stream_that_is_left_early_ends(make, tmp_path):
    path = draw(tmp_path / "a.png", 1)
    stream = Predictor(make()[0], device="cpu").stream([path] * 500)
    next(stream)
    stream.close()


def test_thumbnails_are_small_and_keep_their_proportions(tmp_path):
    source = thumbnail(draw(tmp_path / "a.png", 1, size=(300, 900)))
    assert source is not None and source.startswith("data:image/jpeg;base64,")
    with Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))) as image:
        assert image.size == (180, 60)
    assert thumbnail(str(tmp_path / "gone.png")) is None


def test_probabilities_of_large_scores_are_finite():
    found = probabilities(np.array([[1e4, -1e4, 0.0], [0.0, 0.0, 0.0]]))
    np.testing.assert_allclose(found, [[1, 0, 0], [1 / 3] * 3])
    np.testing.assert_allclose(probabilities(np.array([[-40.0]]))[0], [1 - np.exp(-40.0), np.exp(-40.0)], rtol=1e-12)


def command(run, *pictures, **changes):
    asked = {
        "csv": None,
        "html": None,
        "explain": False,
        "thumbnails": 200,
        "replicas": None,
        "device": "cpu",
    } | changes
    return run_command(Namespace(run=run.folder, pictures=[str(one) for one in pictures], **asked), Console(width=300))


def test_without_files_to_write_there_is_a_line_for_each(make, tmp_path, capsys):
    for index in range(3):
        draw(tmp_path / f"{index}.png", index)
    (tmp_path / "x.txt").write_text("no picture")
    command(make()[0], tmp_path)
    said = capsys.readouterr().out
    assert len(re.findall(r"^0\.\d{4}  [abc]  \S+\d\.png$", said, re.M)) == 3
    assert "3 pictures: " in said and "1 file could not be read." in said and "x.txt: not a picture" in said


def test_a_rehearsals_predictions_say_so(make, tmp_path, capsys):
    run, _ = make()
    record = json.loads((run.folder / "record.json").read_text())
    (run.folder / "record.json").write_text(json.dumps(record | {"rehearsal": True}))
    command(run, draw(tmp_path / "a.png", 1), html=tmp_path / "a.html")
    assert "rehearsal" in capsys.readouterr().out and "A rehearsal" in (tmp_path / "a.html").read_text()


def test_a_network_without_a_feature_map_explains_nothing_and_says_so(make, tmp_path, capsys):
    command(make()[0], draw(tmp_path / "a.png", 1), html=tmp_path / "a.html", explain=True)
    page = (tmp_path / "a.html").read_text()
    assert "Nothing can be shown: the network has no feature map" in page and "data:image/png" not in page
    assert "--explain shows nothing" in capsys.readouterr().out


def test_where_nothing_can_be_read_the_files_still_say_why(make, tmp_path):
    (tmp_path / "x.txt").write_text("no picture")
    with pytest.raises(UserError, match="None of the 1 files could be read"):
        command(make()[0], tmp_path / "x.txt", csv=tmp_path / "out.csv", html=tmp_path / "out.html")
    assert "not a picture" in (tmp_path / "out.unreadable.csv").read_text()
    assert "No picture could be read." in (tmp_path / "out.html").read_text()


# --- what cannot be used ---------------------------------------------------------------------------------------------


def test_a_model_that_does_not_fit_its_record(make):
    run, _ = make(4, ("a", "b", "c"))
    with pytest.raises(UserError, match="gives 4 scores a picture, but its record names 3 classes"):
        Predictor(run, device="cpu")


def test_a_model_that_holds_code_is_refused(make, tmp_path):
    run, _ = make()
    pixels = keras.Input((SIZE, SIZE, 3), dtype="uint8")
    x = keras.layers.Lambda(lambda x: x[:, 0, 0, :])(pixels)
    keras.Model(pixels, x).save(tmp_path / "code.keras")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_network(tmp_path / "code.keras", run.config.model, 3)


def test_a_run_that_cannot_be_used(make):
    run, _ = make()
    (run.folder / "config.yaml").write_text("a: [")
    with pytest.raises(UserError, match="not readable YAML"):
        TrainedRun.load(run.folder)
    assert dataclasses.replace(run, class_names=("x",)).name == "run"
