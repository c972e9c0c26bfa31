"""What is made of predictions: the files that a command line names, CSV, overview and page, without a model."""

import csv
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyfit.data.picture_files import find_pictures
from manyfit.errors import ConfigError, TrainingError
from manyfit.report.prediction import (
    Explained,
    Overview,
    Shown,
    csv_files,
    prediction_line,
    prediction_page,
    unreadable_lines,
)


@pytest.fixture
def tree(tmp_path):
    for name in ("b/2.jpg", "b/1.JPG", "a/.hidden.jpg", "a/Thumbs.db", "a/x.png", ".git/y.jpg", "top.gif", "empty/"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.write_bytes(b"x")
    return tmp_path


def names(tree, *asked):
    return [os.path.relpath(path, tree) for path in find_pictures([str(tree / one) for one in asked])]


def test_a_folder_is_all_below_it_in_order_without_hidden_files(tree):
    assert names(tree, "") == ["top.gif", "a/x.png", "b/1.JPG", "b/2.jpg"]


def test_files_are_taken_as_given_and_once(tree):
    assert names(tree, "b/2.jpg", "b", "a/.hidden.jpg") == ["b/2.jpg", "b/1.JPG", "a/.hidden.jpg"]


def test_patterns_reach_into_folders_and_may_name_them(tree):
    assert names(tree, "**/*.jpg") == ["b/2.jpg"]
    assert sorted(names(tree, "**")) == ["a/x.png", "b/1.JPG", "b/2.jpg", "top.gif"]
    assert names(tree, "[b]*") == ["b/1.JPG", "b/2.jpg"]


def test_a_file_whose_name_looks_like_a_pattern(tree):
    (tree / "a[1].jpg").write_bytes(b"x")
    assert names(tree, "a[1].jpg") == ["a[1].jpg"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [("nowhere", "does not exist"), ("**/*.bmp", "No file matches"), ("empty", "holds no file"), ("", "holds no file")],
)
def test_what_names_nothing_is_refused(tree, asked, said):
    folder = tree / "empty" if asked == "" else tree
    with pytest.raises(ConfigError, match=said):
        find_pictures([str(folder / asked)])


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_the_csv_holds_any_path_and_any_class_name(tmp_path):
    odd = ['a,"b"\n.jpg', "\udcff.jpg", "ü.jpg"]
    with csv_files(tmp_path / "out.csv", ["cat, big", "dog"]) as (add, _):
        for path in odd:
            add(Shown(path, "cat, big", 0.75), [0.75, 0.25])
    rows = read(tmp_path / "out.csv")
    assert rows[0] == ["path", "label", "probability", "cat, big", "dog"]
    assert rows[1] == ['a,"b"\n.jpg', "cat, big", "0.750000", "0.750000", "0.250000"]
    assert [row[0] for row in rows[2:]] == ["\\udcff.jpg", "ü.jpg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv"]


def test_unreadable_files_have_a_file_of_their_own(tmp_path):
    with csv_files(tmp_path / "out.csv", ["a", "b"]) as (_, add_unreadable):
        add_unreadable("x.jpg", "empty file")
    assert read(tmp_path / "out.unreadable.csv") == [["path", "reason"], ["x.jpg", "empty file"]]
    with csv_files(tmp_path / "out.csv", ["a", "b"]):
        pass  # none this time: the old list would be a lie
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv"]


def test_a_csv_that_was_not_finished_leaves_the_old_one(tmp_path):
    (tmp_path / "out.csv").write_text("old")
    with pytest.raises(KeyboardInterrupt), csv_files(tmp_path / "out.csv", ["a", "b"]) as (add, _):
        add(Shown("x", "a", 1.0), [1.0, 0.0])
        raise KeyboardInterrupt
    assert (tmp_path / "out.csv").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_a_folder_that_is_gone_is_one_message(tmp_path):
    with pytest.raises(TrainingError, match="cannot be written"), csv_files(tmp_path / "no" / "out.csv", ["a"]):
        pass


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(2, 12))
@settings(max_examples=80)
def test_the_overview_keeps_the_most_and_the_least_sure(levels, most):
    overview = Overview(["a", "b"], most_pictures=most)
    for index, level in enumerate(levels):
        overview.add(Shown(str(index), "ab"[index % 2], level / 20))
    top, bottom = overview.kept
    half, expected = most // 2, sorted((level / 20 for level in levels), reverse=True)
    assert [one.probability for one in top] == expected[:half]
    assert [one.probability for one in bottom] == expected[max(half, len(expected) - half) :]
    assert len({one.path for one in (*top, *bottom)}) == len(top) + len(bottom)
    assert sum(tally.count for tally in overview.tallies.values()) == overview.num_predicted == len(levels)


def test_the_overview_does_not_grow():
    overview = Overview(["a"], most_pictures=10)
    for index in range(5000):
        overview.add(Shown(str(index), "a", (index * 7919 % 5000) / 5000))
        overview.add_unreadable(str(index), "empty file")
    assert len(overview._most) + len(overview._least) == 10 and len(overview.unreadable) == 200
    assert overview.sentence() == "5,000 pictures: 5,000 a. 5,000 files could not be read."
    assert unreadable_lines(overview)[-1] == "  and 4,990 more"


def test_the_page_says_everything_and_is_no_html_of_the_users(tmp_path):
    overview = Overview(["<b>", "dog"])
    overview.add(Shown("d/<i>.jpg", "<b>", 0.9))
    overview.add(Shown("d/2.jpg", "dog", 0.55))
    overview.add_unreadable("d/n.txt", "not a picture")
    pictures = {"d/<i>.jpg": "data:image/jpeg;base64,AAAA", "d/2.jpg": None}
    page = prediction_page(overview, title="T", subtitle="S", notes=["note"], thumbnail=pictures.get)
    page.write(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert text.index("&lt;b&gt; 0.900") < text.index("dog 0.550")
    assert text.count("<img ") == 1 and "no longer there" in text
    assert "<i>.jpg" not in text and "n.txt" in text and "not a picture" in text
    assert len(text) < 100_000  # no chart, so none of Plotly's megabytes


def test_what_speaks_for_a_label_lies_over_its_picture():
    overview = Overview(["cat", "dog"])
    for path, label, probability in (("1.jpg", "cat", 0.9), ("2.jpg", "dog", 0.8), ("gone.jpg", "dog", 0.7)):
        overview.add(Shown(path, label, probability))
    told = Explained(
        "In 1 picture no place speaks for it.", {"1.jpg": "data:image/png;base64,BB", "gone.jpg": "data:x"}
    )
    pictures = {"1.jpg": "data:image/jpeg;base64,AA", "2.jpg": "data:image/jpeg;base64,AA", "gone.jpg": None}
    facts = {"title": "T", "subtitle": "S", "notes": [], "thumbnail": pictures.get}
    text = prediction_page(overview, **facts, explained=told).html()
    assert text.count('class="frame layered"') == text.count('class="overlay"') == text.count('id="overlays"') == 1
    assert told.text in text
    text = prediction_page(overview, **facts, explained=Explained("Nothing can be shown: <why>.")).html()
    assert "Nothing can be shown: &lt;why&gt;." in text and 'id="overlays"' not in text.replace("#overlays", "")
    assert "What speaks for the label" not in prediction_page(overview, **facts).html()


def test_a_line_for_a_terminal():
    assert prediction_line(Shown("a.jpg", "dog", 0.98765)) == "0.9877  dog  a.jpg"
