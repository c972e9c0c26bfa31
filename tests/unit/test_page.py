"""A page's text, tables and charts as HTML, without a browser."""

import itertools
import json
import re

import numpy as np
import plotly.graph_objects as go
import pytest

from manyfit.errors import TrainingError
from manyfit.report.page import BACKGROUNDS, COLORS, By, Cell, Page, Style, cut, label

LINE = {"data": [{"x": [1, 2], "y": [3.0, 4.0]}], "layout": {"xaxis": {"title": {"text": "epoch"}}}}


def data_of(page):
    """What the page's script reads."""
    found = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', page.html(), re.DOTALL)
    return json.loads(found[1])


# --- colours ----------------------------------------------------------------------------------------------------------

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
SIGHTS = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def linear(color):
    values = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def luminance(color):
    return linear(color) @ [0.2126, 0.7152, 0.0722]


def oklab(rgb):
    to_lms = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
    to_lms += [[0.0883024619, 0.2817188376, 0.6299787005]]
    to_lab = [[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099]]
    to_lab += [[0.0259040371, 0.7827717662, -0.808675766]]
    return np.array(to_lab) @ np.cbrt(np.array(to_lms) @ rgb)


@pytest.mark.parametrize("theme", BACKGROUNDS)
@pytest.mark.parametrize("color", COLORS)
def test_lines_stand_out_from_both_backgrounds(color, theme):
    light, dark = sorted((luminance(color), luminance(BACKGROUNDS[theme])), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3.0  # WCAG 2.1, 1.4.11


@pytest.mark.parametrize("sight", SIGHTS)
def test_colours_are_told_apart_by_everybody(sight):
    seen = [oklab(np.clip(np.array(SIGHTS[sight]) @ linear(color), 0, 1)) for color in COLORS]
    nearest = min(float(np.linalg.norm(one - other)) for one, other in itertools.combinations(seen, 2))
    assert nearest > 0.13  # the usual Okabe-Ito colours come to 0.076


def test_the_backgrounds_are_those_of_the_style_sheet():
    assert all(f"--background: {color};" in Page("t").html() for color in BACKGROUNDS.values())


def test_twenty_four_runs_look_different():
    assert len({(Style.of(index).color, Style.of(index).dash) for index in range(24)}) == 24
    assert len({(Style.of(index).color, Style.of(index).pattern) for index in range(24)}) == 24


# --- text and tables --------------------------------------------------------------------------------------------------

NASTY = "</script><script>alert(1)</script> & <img src=x onerror=alert(1)> \"quoted\" 'so' \udcff"


def test_no_text_is_taken_for_html(tmp_path):
    page = Page(NASTY, NASTY)
    page.verdict(NASTY, [NASTY])
    page.series({NASTY: NASTY})
    page.section(NASTY, NASTY)
    page.text(NASTY, tone="mark")
    page.table([NASTY, "b"], [[Cell(NASTY, full=NASTY, series=NASTY), NASTY]], title=NASTY, note=NASTY)
    page.chart(
        {"data": [{"x": [1], "y": [1], "name": NASTY}], "layout": {}}, NASTY, NASTY, by={NASTY: By(NASTY, [[1]])}
    )
    page.write(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "<img src=x" not in text and "<script>alert" not in text
    assert data_of(page)["charts"][0]["figure"]["data"][0]["name"] == NASTY


def test_the_page_loads_nothing():
    page = Page("t")
    page.chart(LINE, "Loss")
    text = page.html()
    markup = re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.DOTALL)
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", markup)
    assert "default-src 'none'" in markup


def test_numbers_are_set_to_the_right_and_what_is_missing_is_a_dash():
    page = Page("t")
    page.table(["run", "images/s", "cost", "said"], [["a", "1,000", "-$0.10", "yes"], ["b", None, "$3.00", "1 no"]])
    text = page.html()
    assert text.count('<th scope="col" class="number">') == 2
    assert '<td class="number"><span>-</span></td>' in text
    assert '<th scope="row" title="a">' in text


def test_a_table_without_rows_is_left_out():
    page = Page("t")
    page.table(["a", "b"], [])
    assert "<table" not in page.html()


def test_long_names_are_cut_and_whole_in_the_tooltip():
    name = "a_run_with_a_very_long_name_that_no_column_holds_mirrored-x4"
    page = Page("t")
    page.table(["run"], [[name]])
    text = page.html()
    assert f'title="{name}"' in text and f">{name}<" not in text
    assert f">{cut(name)}<" in text and len(cut(name)) == 32


@pytest.mark.parametrize("limit", [5, 6, 20])
def test_a_cut_name_keeps_both_ends(limit):
    assert len(cut("abcdefghijklmnopqrstuvwxyz", limit)) == limit
    assert cut("abcdefghijklmnopqrstuvwxyz", limit).startswith("a") and cut("abcdefghijk", 5).endswith("k")
    assert cut("short", limit) == "short"


def test_names_inside_charts_are_no_tags():
    assert label("<b>&") == "&lt;b&gt;&amp;"


def test_sections_are_listed():
    page = Page("t")
    page.section("First")
    page.section("Second", "text")
    text = page.html()
    assert '<a href="#section-2">Second</a>' in text and '<h2 id="section-2">Second</h2>' in text


# --- charts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        [],
        [{"x": [], "y": []}],
        [{"x": [1, 2], "y": [None, float("nan")]}],
        [{"orientation": "h", "x": [None], "y": ["a"]}],
    ],
)
def test_a_chart_without_data_is_left_out(data):
    page = Page("t")
    assert page.chart({"data": data, "layout": {}}, "Empty") is False
    assert page.charts == [] and "<figure" not in page.html() and "Empty" not in page.html()


def test_a_page_without_charts_brings_no_library():
    assert len(Page("t").html()) < 40_000


def test_a_plotly_figure_and_its_arrays_are_taken():
    page = Page("t")
    assert page.chart(go.Figure(go.Scatter(x=np.arange(3), y=np.array([1.0, np.nan, 2.0]))), "Loss")
    trace = data_of(page)["charts"][0]["figure"]["data"][0]
    assert (trace["x"], trace["y"]) == ([0, 1, 2], [1.0, None, 2.0])


def test_long_lists_are_written_once():
    page = Page("t")
    xs = [float(number) for number in range(1000)]
    for title in ("a", "b"):
        page.chart(
            {"data": [{"y": [one / 3 for one in xs]}], "layout": {}},
            title,
            by={"epochs": By("epoch", [xs]), "time": By("s", [xs])},
        )
    found = data_of(page)
    assert len(found["arrays"]) == 2
    assert found["charts"][1]["by"]["time"]["x"] == [{"$array": 1}]
    assert found["arrays"][0][:3] == [0.0, 0.333333, 0.666667]


def test_charts_that_share_a_switch_get_one_a_section():
    page = Page("t")
    for section in ("one", "two"):
        page.section(section)
        for title in ("a", "b"):
            page.chart(LINE, title, by={"epochs": By("epoch", [[1, 2]]), "time": By("s", [[3, 4]])})
    assert page.html().count('<fieldset class="switch">') == 2


def test_charts_of_half_the_width_stand_side_by_side():
    page = Page("t")
    for title in ("a", "b"):
        page.chart(LINE, title, half=True)
    page.text("between")
    page.chart(LINE, "c", half=True)
    assert page.html().count('<div class="charts">') == 2


def test_a_chart_says_what_it_is():
    page = Page("t")
    page.chart(LINE, "Loss", "Lower is better.")
    assert 'role="img" aria-label="Loss. Lower is better."' in page.html()


def test_a_page_that_cannot_be_written_says_so(tmp_path):
    with pytest.raises(TrainingError, match="cannot be written"):
        Page("t").write(tmp_path / "missing" / "page.html")
