"""What is said when charts cannot be drawn, and what is asked of Kaleido when they can."""

import sys
from types import SimpleNamespace

import pytest

from manyfit.errors import TrainingError, UserError
from manyfit.report.images import write_images
from manyfit.report.page import By, Page


@pytest.fixture
def page():
    made = Page("t")
    figure = {"data": [{"y": [1.0, 2.0], "name": "run"}], "layout": {"yaxis": {"title": {"text": "loss"}}}}
    made.chart(
        figure, "Validation loss", by={"epochs": By("epoch", [[1, 2]]), "examples seen": By("examples", [[5, 9]])}
    )
    made.chart(figure, "Time (s)")
    return made


def test_without_kaleido_the_way_is_shown(page, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(UserError, match="needs the package kaleido") as caught:
        write_images(page, tmp_path)
    assert "Install it" in caught.value.remedy


def test_without_a_browser_the_way_is_shown(page, tmp_path, monkeypatch):
    def fail(_):
        raise RuntimeError("Kaleido v1 needs Chrome\nand more")

    monkeypatch.setitem(sys.modules, "kaleido", SimpleNamespace(write_fig_from_object_sync=fail))
    with pytest.raises(UserError, match="cannot be drawn: Kaleido v1 needs Chrome\n") as caught:
        write_images(page, tmp_path)
    assert "BROWSER_PATH" in caught.value.remedy


def test_each_choice_of_an_axis_is_a_picture(page, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setitem(sys.modules, "kaleido", SimpleNamespace(write_fig_from_object_sync=asked.extend))
    names = ["01-validation-loss-by-epochs", "01-validation-loss-by-examples-seen", "02-time-s"]
    assert [path.stem for path in write_images(page, tmp_path / "new")] == names
    assert [one["fig"]["data"][0].get("x") for one in asked] == [[1, 2], [5, 9], None]
    assert [one["fig"]["layout"]["xaxis"].get("title") for one in asked][1] == {"text": "examples"}
    assert asked[2]["fig"]["layout"]["title"]["text"] == "Time (s)"
    assert page.charts[0].figure["data"][0].get("x") is None  # the page's own figures are as they were


def test_a_page_without_charts_starts_no_browser(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kaleido", SimpleNamespace())
    assert write_images(Page("t"), tmp_path) == []


def test_a_folder_that_cannot_be_made_is_told(page, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match="cannot be written"):
        write_images(page, tmp_path / "file" / "pictures")
