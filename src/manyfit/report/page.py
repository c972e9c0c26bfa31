"""A page that opens from disk without a network: text, tables and Plotly charts in one HTML file, light and dark."""

import html
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from manyfit.files import write_atomically
from manyfit.report.figures import By, Chart, embedded, has_values, plain
from manyfit.report.gallery import Picture, gallery_html, overlay_switch_html
from manyfit.report.packing import packed_script
from manyfit.report.styles import BACKGROUNDS, COLORS, DASHES, PATTERN, SHORTEST_NAME, Style, cut, label, swatch

__all__ = [
    "BACKGROUNDS",
    "COLORS",
    "DASHES",
    "PATTERN",
    "SHORTEST_NAME",
    "By",
    "Cell",
    "Chart",
    "Page",
    "Picture",
    "Style",
    "cut",
    "label",
    "swatch",
]


@dataclass(frozen=True)
class Cell:
    """A cell of a table that is more than its text.

    Args:
        text: What is read; a name in the first column is cut where it is long. Lines after the first are smaller.
        full: The whole of it, in a tooltip.
        series: The key of a series (`Page.series`): its colour is shown before the text.
        tone: `good`, `bad` or `mark`; the text says the same, the colour only helps.
    """

    text: str
    full: str | None = None
    series: str | None = None
    tone: str | None = None


class Page:
    """A page, built from top to bottom; `write` makes the file.

    A chart without data is left out. Text is never taken for HTML.

    Args:
        title: In the window's title and the first heading.
        subtitle: A line below it: what was read, when.
    """

    def __init__(self, title: str, subtitle: str = ""):
        self.title = title
        self.subtitle = subtitle
        self.charts: list[Chart] = []
        self._parts: list[str] = []
        self._sections: list[tuple[str, str]] = []
        self._series: dict[str, tuple[str, Style]] = {}
        self._switch_is_open = False

    def verdict(self, text: str, details: Sequence[str] = ()) -> None:
        """The answer in one sentence, in large letters; further sentences below it."""
        more = "".join(f"<li>{_escape(line)}</li>" for line in details)
        more = f"<ul>{more}</ul>" if more else ""
        self._parts.append(
            f'<section class="verdict" aria-label="Verdict"><p id="verdict">{_escape(text)}</p>{more}</section>'
        )

    def series(self, names: Mapping[str, str]) -> dict[str, Style]:
        """The things that every chart shows, with one style each, and the boxes that show or hide them.

        A trace belongs to one by `legendgroup`, its key.

        Args:
            names: The name of each by its key, in order.
        """
        self._series |= {
            key: (name, Style.of(len(self._series) + index)) for index, (key, name) in enumerate(names.items())
        }
        boxes = "".join(
            f'<label title="{_escape(name)}"><input type="checkbox" checked data-series="{_escape(key)}">'
            f'{swatch(self._series[key][1])}<span class="name">{_escape(cut(name))}</span></label>'
            for key, name in names.items()
        )
        buttons = ""
        if len(names) > 2:
            buttons = '<button type="button" data-all="1">all</button><button type="button" data-all="0">none</button>'
        self._parts.append(f'<fieldset class="series"><legend>Show in the charts</legend>{boxes}{buttons}</fieldset>')
        return {key: self._series[key][1] for key in names}

    def section(self, title: str, text: str = "") -> None:
        """A heading, which the list of contents names, and a paragraph."""
        key = f"section-{len(self._sections) + 1}"
        self._sections.append((key, title))
        self._switch_is_open = False
        self._parts.append(f'<h2 id="{key}">{_escape(title)}</h2>')
        if text:
            self.text(text)

    def text(self, text: str, tone: str = "") -> None:
        """A paragraph; `tone="mark"` for what the reader must not overlook."""
        css = f' class="{_escape(tone)}"' if tone else ""
        self._parts.append(f"<p{css}>{_escape(text)}</p>")

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[Cell | str | None]], title: str = "", note: str = ""
    ) -> None:
        """A table whose first column names the rows; columns of numbers are set to the right. None is a dash."""
        if not rows:
            return
        cells = [[_cell(value) for value in row] for row in rows]
        right = [all(_is_number(row[index].text) for row in cells) for index in range(len(columns))]
        css = [' class="number"' if is_right and index else "" for index, is_right in enumerate(right)]
        head = "".join(f'<th scope="col"{style}>{_escape(name)}</th>' for name, style in zip(columns, css, strict=True))
        body = "".join(f"<tr>{self._row(row, css)}</tr>" for row in cells)
        caption = f"<caption>{_escape(title)}</caption>" if title else ""
        label = _escape(title or f"Table: {', '.join(columns[:3])}")
        self._parts.append(
            f'<div class="table" role="region" tabindex="0" aria-label="{label}"><table>{caption}'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )
        if note:
            self._parts.append(f'<p class="note">{_escape(note)}</p>')

    def gallery(self, pictures: Sequence[Picture]) -> None:
        """Thumbnails side by side, in the order given; what is laid over one vanishes under the pointer."""
        if pictures:
            self._parts.append(gallery_html(pictures, _escape))

    def overlay_switch(self, text: str) -> None:
        """The box that shows or hides what is laid over the page's pictures; once a page."""
        self._parts.append(overlay_switch_html(text, _escape))

    def chart(
        self,
        figure: Any,
        title: str,
        note: str = "",
        *,
        by: Mapping[str, By] | None = None,
        height: int = 340,
        half: bool = False,
    ) -> bool:
        """A chart, or nothing where no trace of it holds a value; whether there is one.

        Args:
            figure: A Plotly figure, or `{"data": [...], "layout": {...}}`. Its layout gives the axes' titles with their
                units; colours of text, grid and background are the page's.
            title: What is shown; the chart's name for people who can't see it.
            note: A line below it: how to read it.
            by: Choices of the horizontal axis by their names, of which the first is shown. Charts that offer the same
                names change together.
            height: Pixels.
            half: Of half the page's width, beside another such chart, where the window is wide enough.
        """
        shown = plain(figure.to_plotly_json() if hasattr(figure, "to_plotly_json") else figure)
        if not any(has_values(trace) for trace in shown["data"]):
            return False
        key = f"chart-{len(self.charts) + 1}"
        chart = Chart(key, title, shown, note, dict(by or {}), height)
        if chart.by and not self._switch_is_open:
            self._switch_is_open = True
            self._parts.append(_switch(list(chart.by), len(self.charts)))
        self.charts.append(chart)
        described, width = f"{title}. {note}".strip(), "half" if half else "whole"
        self._parts.append(
            f'<figure class="{width}"><figcaption id="{key}-title">{_escape(title)}</figcaption>'
            f'<div class="chart" id="{key}" style="height:{height}px" tabindex="0" role="img" '
            f'aria-label="{_escape(described)}"></div>'
            + (f'<p class="note">{_escape(note)}</p>' if note else "")
            + "</figure>"
        )
        return True

    def html(self, *, packed: bool = False) -> str:
        """The whole page.

        Args:
            packed: Plotly compressed, which the browser unpacks: 2 MB in the place of 5 for a page that is stored in a
                notebook. Browsers have this since 2023.
        """
        from plotly.offline import get_plotlyjs  # only where a page is made

        contents = "".join(f'<li><a href="#{key}">{_escape(title)}</a></li>' for key, title in self._sections)
        nav = f'<nav aria-label="Contents"><ul>{contents}</ul></nav>' if len(self._sections) > 1 else ""
        here = files("manyfit.report")
        plotly = get_plotlyjs() if self.charts else ""
        script = (here / "page.js").read_text(encoding="utf-8")
        if packed and plotly:
            plotly, script = "", packed_script(plotly, script)
        return _TEMPLATE.format(
            title=_escape(self.title),
            subtitle=f'<p class="subtitle">{_escape(self.subtitle)}</p>' if self.subtitle else "",
            css=(here / "page.css").read_text(encoding="utf-8"),
            nav=nav,
            body="\n".join(_side_by_side(self._parts)),
            data=embedded(self.charts),
            plotly=plotly,
            script=script,
        )

    def write(self, path: Path) -> None:
        """Write the page, whole or not at all.

        Raises:
            TrainingError: the file cannot be written.
        """
        write_atomically(Path(path), self.html())

    def _row(self, row: Sequence[Cell], css: Sequence[str]) -> str:
        parts = []
        for index, (cell, style) in enumerate(zip(row, css, strict=True)):
            mark = swatch(self._series[cell.series][1]) if cell.series in self._series else ""
            if index == 0:
                parts.append(
                    f'<th scope="row" title="{_escape(cell.full or cell.text)}">{mark}{_both_widths(cell)}</th>'
                )
                continue
            first, *rest = cell.text.split("\n")
            below = "".join(f"<br><small>{_escape(line)}</small>" for line in rest)
            tooltip = f' title="{_escape(cell.full)}"' if cell.full and cell.full != cell.text else ""
            tone = f' class="{_escape(cell.tone)}"' if cell.tone else ""
            parts.append(f"<td{style}><span{tone}{tooltip}>{_escape(first)}</span>{below}</td>")
        return "".join(parts)


# --- HTML -------------------------------------------------------------------------------------------------------------

_TEMPLATE = """<!doctype html>
<html lang="en" data-theme="auto">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; \
style-src 'unsafe-inline'; img-src data: blob:; font-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{css}
</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header>
<div class="bar"><h1>{title}</h1><button type="button" id="theme" aria-live="polite">theme: as the system</button></div>
{subtitle}
{nav}
</header>
<main id="content">
<noscript><p class="mark">The charts need JavaScript; the verdict and the tables don't.</p></noscript>
{body}
</main>
<script type="application/json" id="page-data">{data}</script>
<script>{plotly}</script>
<script>
{script}
</script>
</body>
</html>
"""


def _escape(text: str) -> str:
    # A name that is not UTF-8 arrives with lone surrogates, which no file can hold.
    return html.escape(str(text).encode("utf-8", "replace").decode("utf-8"))


def _cell(value: Cell | str | None) -> Cell:
    if isinstance(value, Cell):
        return value
    return Cell("-" if value is None else str(value))


def _is_number(text: str) -> bool:
    return text == "-" or re.match(r"[~<>±+\-−]?[^\w\s]{0,3} ?\d", text) is not None


def _switch(names: Sequence[str], index: int) -> str:
    radios = "".join(
        f'<label><input type="radio" name="by-{index}" value="{_escape(name)}"{" checked" if not at else ""}>'
        f"{_escape(name)}</label>"
        for at, name in enumerate(names)
    )
    return f'<fieldset class="switch"><legend>Against</legend>{radios}</fieldset>'


def _both_widths(cell: Cell) -> str:
    """A name as it fits a wide and a narrow window."""
    long, short = cut(cell.text), cut(cell.text, SHORTEST_NAME)
    tone = f" {cell.tone}" if cell.tone else ""
    if long == short:
        return f'<span class="name{tone}">{_escape(long)}</span>'
    return f'<span class="long{tone}">{_escape(long)}</span><span class="short{tone}">{_escape(short)}</span>'


def _side_by_side(parts: Sequence[str]) -> Iterator[str]:
    """The parts of a page, each row of narrow charts in a grid of its own."""
    for is_half, group in itertools.groupby(parts, key=lambda part: part.startswith('<figure class="half"')):
        row = "\n".join(group)
        yield f'<div class="charts">{row}</div>' if is_half else row
