"""A comparison for the terminal and as Markdown."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from manyfit.report.comparison import Comparison
from manyfit.report.comparison_sheets import Sheet, sheets
from manyfit.report.page import SHORTEST_NAME, Cell, cut
from manyfit.report.verdict_words import details, headline

WIDE = 120
"""Columns of a terminal from which on names and intervals are shown in full."""
_LEAST_NAME = 12


def terminal(comparison: Comparison, width: int = 80) -> list[Table | Text]:
    """The comparison for a terminal of `width` columns, the verdict last, where it is read.

    A narrow one gets short names and no intervals in the tables; the verdict has those of the speed.
    """
    shown: list[Table | Text] = []
    for sheet in sheets(comparison):
        shown.append(_terminal_table(sheet, width))
        if sheet.note:
            shown += [Text(sheet.note, style="dim"), Text("")]
    shown.append(Text(headline(comparison), style="bold"))
    return [*shown, *(Text(f"- {line}") for line in details(comparison))]


def _terminal_table(sheet: Sheet, width: int) -> Table:
    """The table, its names cut to what the other columns leave: these break between words only."""
    table = Table(title=sheet.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    rows = [[_text(cell) if width >= WIDE else _text(cell).partition("\n")[0] for cell in row] for row in sheet.rows]
    columns = list(zip(sheet.columns, *rows, strict=True))
    whole = [max(map(len, column)) for column in columns[1:]]
    words = [max(len(word) for text in column for word in text.split() or [""]) for column in columns[1:]]
    left = width - 2 * len(columns) - 4  # padding, rules between the columns, both edges
    needed = whole if left - sum(whole) >= SHORTEST_NAME else words
    names = max(_LEAST_NAME, left - sum(needed))
    for index, column in enumerate(columns):
        right = index > 0 and all(_looks_like_a_number(text) for text in column[1:])
        least = needed[index - 1] if index else None
        table.add_column(column[0], justify="right" if right else "left", no_wrap=index == 0, min_width=least)
    for first, *rest in rows:
        table.add_row(Text(cut(first, names)), *map(Text, rest))
    return table


def markdown(comparison: Comparison) -> str:
    """The comparison as Markdown, the verdict first."""
    lines = ["# Comparison", "", f"**{_escaped(headline(comparison))}**", ""]
    lines += [f"- {_escaped(line)}" for line in details(comparison)]
    for sheet in sheets(comparison):
        lines += ["", f"## {sheet.title}", "", _line(sheet.columns)]
        right = [all(_looks_like_a_number(_text(row[at])) for row in sheet.rows) for at in range(len(sheet.columns))]
        lines.append(_line(["---:" if at and is_right else "---" for at, is_right in enumerate(right)], escape=False))
        lines += [_line([_text(cell) for cell in row]) for row in sheet.rows]
        lines += ["", _escaped(sheet.note)] if sheet.note else []
    return "\n".join(lines) + "\n"


def _text(cell: Cell | str) -> str:
    return cell.text if isinstance(cell, Cell) else cell


def _looks_like_a_number(text: str) -> bool:
    return text == "-" or text.lstrip("~+-−$€£¥")[:1].isdigit()


def _line(cells: Sequence[str], escape: bool = True) -> str:
    return f"| {' | '.join(_escaped(cell) if escape else cell for cell in cells)} |"


def _escaped(text: str) -> str:
    for sign in "\\`*_|<>[]":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())
