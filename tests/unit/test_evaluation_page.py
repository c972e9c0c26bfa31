"""The page of evaluations: what it says of one run and of several."""

import numpy as np
import pytest

from manyfit.evaluation_command import _other_losses
from manyfit.report.classification import Scored, confusions, per_class, words_told
from manyfit.report.evaluation import calibration_in_words, evaluation_tables, several_tables
from manyfit.report.evaluation_page import evaluation_page
from manyfit.report.evaluation_pairs import pairs_of
from manyfit.trained_run import TrainedRun


class Told:
    """An evaluation of made-up scores."""

    def __init__(self, name, num_classes=3, seed=0, sharpness=2.0, count=120):
        rng = np.random.default_rng(seed)
        labels = np.arange(count) % num_classes
        scores = rng.normal(0, 1, (count, num_classes)) + sharpness * np.eye(num_classes)[labels]
        scored = Scored(scores, labels, num_classes)
        self.name, self.fingerprint, self.right = name, "same", scored.right
        self.losses = -np.log(np.exp(scores)[np.arange(count), labels] / np.exp(scores).sum(axis=1))
        self.measures = scored.measures(words_told(num_classes, ()))
        self.names = [f"class <{index}>" for index in range(num_classes)]
        self.scored = scored

    def as_dict(self):
        matrix = self.scored.confusion_matrix
        estimates = {word: one.estimate() for word, one in self.measures.items()}
        return {
            "run": self.name,
            "loss": float(self.losses.mean()),
            "accuracy": float(self.right.mean()),
            "metrics": {word: one.value for word, one in self.measures.items()},
            "intervals": {"accuracy": [0.1, 0.2], "loss": [1.0, 2.0], "method": "bootstrap"}
            | {word: None if one.low is None else [one.low, one.high] for word, one in estimates.items()},
            "num_examples": len(self.right),
            "num_skipped": 1,
            "source": "made",
            "class_names": self.names,
            "per_class": per_class(matrix, self.names, self.scored.curves.areas()),
            "confusions": confusions(matrix, self.names),
            "calibration": self.scored.calibration().as_dict(),
            "confusion_matrix": matrix.tolist(),
        }


@pytest.fixture(scope="module")
def one():
    return Told("run").as_dict()


def test_one_run(one):
    page = evaluation_page([one], subtitle="today", notes=["REHEARSAL: run was trained on drawings"])
    html = page.html()
    right = sum(np.diag(one["confusion_matrix"]))
    assert f"{right} of 120 examples are right, 95 % interval [0.1000, 0.2000]" in html
    assert "REHEARSAL" in html and "1 file skipped" in html
    assert "class &lt;0&gt;" in html and "<0>" not in html
    low, high = one["intervals"]["auc"]
    assert f"[{low:.4f}, {high:.4f}]" in html
    assert [chart.title for chart in page.charts] == ["Reliability diagram", "Examples in each bin", "Confusion matrix"]
    diagram, counts, matrix = (chart.figure["data"] for chart in page.charts)
    bins = [part for part in one["calibration"]["bins"] if part["num_examples"]]
    assert diagram[1]["y"] == pytest.approx([part["accuracy"] for part in bins], rel=1e-5)
    assert sum(counts[0]["y"]) == 120
    assert np.array(matrix[0]["z"]).sum() == pytest.approx(3)
    assert [row for row in matrix[1]["text"]] == [str(count) for row in one["confusion_matrix"] for count in row]


def test_classes_are_sorted_by_what_is_weak(one):
    html = evaluation_page([one]).html()
    table = html[html.index('id="section-3"') :]
    found = [table.index(f"class &lt;{name}&gt;") for name in range(3)]
    f1 = [one["per_class"][f"class <{name}>"]["f1"] for name in range(3)]
    assert np.argsort(found).tolist() == np.argsort(f1).tolist()


def test_several_runs_are_side_by_side():
    runs = [Told("first", seed=1), Told("second", seed=1, sharpness=4.0), Told("third", seed=2)]
    told = [run.as_dict() for run in runs]
    pairs, reasons = pairs_of(runs)
    page = evaluation_page(told, pairs, reasons)
    html = page.html()
    assert pairs[0].sentence() in html.replace("&#x27;", "'")
    assert [chart.title for chart in page.charts][2:] == [f"Confusion matrix, {run.name}" for run in runs]
    assert [trace.get("legendgroup") for trace in page.charts[0].figure["data"]] == [None, "run-0", "run-1", "run-2"]
    difference = pairs[0].metrics["f1"]
    assert difference.value == pytest.approx(told[1]["metrics"]["f1"] - told[0]["metrics"]["f1"])
    assert difference.low > 0 and f"[{difference.low:+.4f}, {difference.high:+.4f}]" in html
    shown = [part for part in several_tables(told, pairs, reasons)]
    assert shown[1].row_count == 2 + len(told[0]["metrics"])


def test_many_classes_have_no_numbers_in_the_matrix_and_few_confusions_on_the_screen():
    told = Told("run", num_classes=62, count=310).as_dict()
    page = evaluation_page([told])
    assert len(page.charts[-1].figure["data"]) == 1 and page.charts[-1].height == 900
    assert len(told["confusions"]) == 20
    tables = evaluation_tables(told)
    assert [getattr(table, "row_count", None) for table in tables[1:5]] == [2 + 5, 62, None, 8]


def test_runs_without_a_mistake_and_without_calibration():
    perfect = Told("run", sharpness=90.0).as_dict()
    assert "every example is right" in evaluation_page([perfect]).html()
    assert perfect["intervals"]["auc"] is None
    assert calibration_in_words({**perfect, "calibration": None}) is None
    page = evaluation_page([{**perfect, "calibration": None, "intervals": None}])
    assert [chart.title for chart in page.charts] == ["Confusion matrix"]


@pytest.mark.parametrize(("sharpness", "said"), [(0.0, "too sure"), (1.0, "as sure as it is right")])
def test_calibration_in_words(sharpness, said):
    told = Told("run", sharpness=sharpness, count=6000, num_classes=2).as_dict()
    # Of the second both classes are spread alike: the score is the log odds itself.
    assert f"On average the model is {said}" in calibration_in_words(told)


def test_a_run_that_trained_on_another_loss_is_told(made_runs, tmp_path):
    folders = [
        made_runs.make_run(tmp_path / "smooth", config={"loss__label_smoothing": 0.1, "loss__focal_gamma": 2.0}),
        made_runs.make_run(tmp_path / "plain"),
    ]
    for folder in folders:
        (folder / "model.keras").touch()
    (note,) = _other_losses([TrainedRun.load(folder) for folder in folders])
    assert note.startswith("smooth was trained and validated with loss.label_smoothing=0.1 loss.focal_gamma=2; ")
    assert "plain cross-entropy" in note
