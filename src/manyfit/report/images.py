"""The charts of a page as PNG files, drawn by Kaleido in a browser without a window."""

import contextlib
import copy
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from manyfit.errors import UserError
from manyfit.files import unwritable
from manyfit.report.page import BACKGROUNDS, Chart, Page

WIDTH = 1000
SCALE = 2
"""Pixels of the file for one of the chart."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_GRID = "#e6e8ec"


def write_images(page: Page, folder: Path) -> list[Path]:
    """Write each chart of a page as `NN-TITLE.png`, one for each choice of its horizontal axis; the paths.

    Raises:
        UserError: Kaleido or a browser is missing or does not work; the folder cannot be written to.
    """
    try:
        import kaleido
    except ImportError:
        raise UserError(
            "--png needs the package kaleido, which is not installed.",
            "Install it (uv sync, or pip install kaleido), or take the pictures from the page that --html writes.",
        ) from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    figures = [
        {"fig": figure, "path": str(folder / f"{number:02d}-{name}.png"), "opts": _options(chart)}
        for number, chart in enumerate(page.charts, start=1)
        for name, figure in _figures(chart)
    ]
    if not figures:
        return []
    with _browser_named():
        try:
            kaleido.write_fig_from_object_sync(figures)
        except Exception as error:  # Kaleido passes on whatever the browser's process raised
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(
                f"The charts cannot be drawn: {reason[0][:200]}",
                "Kaleido needs Chrome or Chromium: install one (apt install chromium), or name it by BROWSER_PATH.",
            ) from error
    return [Path(figure["path"]) for figure in figures]


def _options(chart: Chart) -> dict[str, Any]:
    return {"format": "png", "width": WIDTH, "height": chart.height + 60, "scale": SCALE}


def _figures(chart: Chart) -> Iterator[tuple[str, dict[str, Any]]]:
    """File name and figure of each choice of a chart, with the page's light colours and its title."""
    name = re.sub(r"[^a-z0-9]+", "-", chart.title.lower()).strip("-") or "chart"
    if not chart.by:
        yield name, _dressed(chart, chart.figure)
    for choice, by in chart.by.items():
        figure = copy.deepcopy(chart.figure)
        for trace, x in zip(figure["data"], by.x, strict=True):
            trace["x"] = list(x or [])
        figure["layout"].setdefault("xaxis", {})["title"] = {"text": by.title}
        yield f"{name}-by-{re.sub(r'[^a-z0-9]+', '-', choice.lower())}", _dressed(chart, figure)


def _dressed(chart: Chart, figure: Mapping[str, Any]) -> dict[str, Any]:
    """The figure as it stands alone: with a title, and a legend for the lines that the page names elsewhere."""
    layout = dict(figure["layout"])
    for name in {"xaxis", "yaxis", *(key for key in layout if re.fullmatch(r"[xy]axis\d*", key))}:
        layout[name] = {"gridcolor": _GRID, "zerolinecolor": _GRID, "automargin": True, **layout.get(name, {})}
    layout |= {
        "title": {"text": chart.title, "x": 0, "xref": "paper", "yref": "container", "y": 0.98, "yanchor": "top"},
        "paper_bgcolor": BACKGROUNDS["light"],
        "plot_bgcolor": BACKGROUNDS["light"],
        "font": {"family": "system-ui, DejaVu Sans, Arial, sans-serif", "size": 12, "color": "#1d2127"},
        "margin": {"l": 10, "r": 20, "t": 60, "b": 10},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.01, "x": 0, **layout.get("legend", {})},
    }
    lines = [trace for trace in figure["data"] if trace.get("type", "scatter") == "scatter"]
    layout.setdefault("showlegend", len(lines) > 1)
    return {"data": list(figure["data"]), "layout": layout}


@contextlib.contextmanager
def _browser_named() -> Iterator[None]:
    """Name the browser that the system has, where Kaleido would not look for it."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if "BROWSER_PATH" in os.environ or found is None:
        yield
        return
    os.environ["BROWSER_PATH"] = found
    try:
        yield
    finally:
        del os.environ["BROWSER_PATH"]
