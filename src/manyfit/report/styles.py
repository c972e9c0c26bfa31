"""How runs look: colours that all people tell apart, dashes and patterns for many, names that are cut."""

import html
from dataclasses import dataclass
from typing import Any

COLORS = ("#4b96f0", "#e17800", "#693cff", "#c32d00", "#964b96", "#a58796")
"""Six colours with a contrast of 3:1 on white and on the dark background, as far apart as such colours can be for all
people, colour-blind or not: found by search over their distance in OKLab (Ottosson, 2020), seen as Machado, Oliveira
and Fernandes (2009) simulate each kind of sight; `tests/unit/test_page.py` holds the distance."""
DASHES = ("solid", "dash", "dot", "dashdot")
PATTERNS = ("", "/", ".", "x")
PATTERN = {"size": 7, "solidity": 0.3, "fillmode": "overlay"}
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up")
BACKGROUNDS = {"light": "#ffffff", "dark": "#16181d"}
LONGEST_NAME = 32
SHORTEST_NAME = 18


@dataclass(frozen=True)
class Style:
    """How one thing (a run, a point of a study) looks in every chart: a colour, from the seventh on with a pattern."""

    color: str
    dash: str
    pattern: str
    symbol: str

    @classmethod
    def of(cls, index: int) -> "Style":
        """The style of the thing at `index`; the first 24 differ from each other.

        >>> Style.of(0).color == Style.of(6).color, Style.of(0).dash, Style.of(6).dash
        (True, 'solid', 'dash')
        """
        turn = index // len(COLORS)
        return cls(
            COLORS[index % len(COLORS)],
            DASHES[turn % len(DASHES)],
            PATTERNS[turn % len(PATTERNS)],
            SYMBOLS[index % len(SYMBOLS)],
        )

    @property
    def line(self) -> dict[str, Any]:
        """For a trace's `line`."""
        return {"color": self.color, "dash": self.dash, "width": 2}

    @property
    def fill(self) -> dict[str, Any]:
        """For the `marker` of a bar."""
        return {"color": self.color, "pattern": {"shape": self.pattern, **PATTERN}}


def cut(text: str, limit: int = LONGEST_NAME) -> str:
    """A long name with its middle left out: both ends tell runs apart.

    >>> cut("a_run_that_has_a_long_name_mirrored-x4", 20)
    'a_run_that…rrored-x4'
    """
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def label(text: str, limit: int = LONGEST_NAME) -> str:
    """A name for inside a chart: cut, and never taken for the tags that Plotly reads there.

    >>> label("<b>run</b>")
    '&lt;b&gt;run&lt;/b&gt;'
    """
    return html.escape(cut(text, limit), quote=False)


def swatch(style: Style) -> str:
    """A small drawing of the line that a series has in the charts."""
    dashes = {"solid": "", "dash": "7 3", "dot": "2 3", "dashdot": "7 3 2 3"}[style.dash]
    return (
        '<svg class="swatch" width="24" height="8" aria-hidden="true"><line x1="1" y1="4" x2="23" y2="4" '
        f'stroke="{style.color}" stroke-width="3" stroke-dasharray="{dashes}"/></svg>'
    )
