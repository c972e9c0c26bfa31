"""What a notebook shows: a comparison as its page in a frame, and a run's record as a small table."""

import dataclasses
import html
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from manyfit.console import REHEARSAL, summary_rows
from manyfit.record import RunRecord
from manyfit.report.comparison import Comparison
from manyfit.report.comparison_json import as_dict
from manyfit.report.comparison_page import comparison_page
from manyfit.report.comparison_text import markdown
from manyfit.report.page import Page
from manyfit.report.verdict_words import details, headline

FRAME_HEIGHT = 720
"""Pixels of a page inside a notebook; it scrolls."""


@dataclasses.dataclass(frozen=True, repr=False)
class ShownComparison(Comparison):
    """A comparison that shows itself: in a notebook as its page, in a terminal as its verdict."""

    @classmethod
    def of(cls, comparison: Comparison) -> "ShownComparison":
        """The same comparison, to be shown."""
        return cls(**{one.name: getattr(comparison, one.name) for one in dataclasses.fields(Comparison)})

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        return headline(self)

    def as_dict(self) -> dict[str, Any]:
        """Every claim, as `src/compare.py --json` writes it."""
        return as_dict(self)

    def markdown(self) -> str:
        """The tables as Markdown, the verdict first."""
        return markdown(self)

    def page(self) -> Page:
        """Its page; `page().write(path)` makes a file of it that opens without a network."""
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        return comparison_page(self, f"{len(self.runs)} runs, read {now}")

    def __repr__(self) -> str:
        return "\n".join([self.verdict, *(f"- {line}" for line in details(self))])

    def _repr_html_(self) -> str:
        return frame(self.page())


class ShownRecord(RunRecord):
    """A run's record that a notebook shows as the closing table of the run."""

    def __repr__(self) -> str:
        rows = [f"  {name}: {value}" for name, value in self._rows()]
        return "\n".join([f"run {self.data['status']}: {self.folder}", *rows])

    def _rows(self) -> list[tuple[str, str]]:
        rehearsal = [("REHEARSAL", REHEARSAL)] if self.data.get("rehearsal") else []
        return [*rehearsal, *summary_rows(self.data)]

    def _repr_html_(self) -> str:
        cell = '<td style="text-align:left">'
        rows = "".join(
            f'<tr><th style="text-align:left">{html.escape(name)}</th>{cell}{html.escape(value)}</td></tr>'
            for name, value in (*self._rows(), ("run folder", str(self.folder)))
        )
        return f"<table><caption>run {html.escape(self.data['status'])}</caption>{rows}</table>"


def frame(page: Page, height: int = FRAME_HEIGHT) -> str:
    """The page in an HTML frame of its own, which no style or script of the notebook reaches, nor the reverse."""
    title = html.escape(page.title, quote=True)
    source = html.escape(page.html(packed=True), quote=True)
    return (
        f'<iframe title="{title}" sandbox="allow-scripts allow-downloads" loading="lazy" '
        f'style="width:100%;height:{height}px;border:1px solid #8888" srcdoc="{source}"></iframe>'
    )


def folder_of(run: Any) -> Path:
    """The folder of a run that is given as its record or as a path."""
    return Path(run.folder) if isinstance(run, RunRecord) else Path(run)
