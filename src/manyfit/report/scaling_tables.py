"""A scaling study as tables: for a terminal, a page and Markdown."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from manyfit.console import seconds
from manyfit.report.claims import Estimate
from manyfit.report.cost import money
from manyfit.report.scaling_equality import NOT_COMPARED
from manyfit.report.scaling_losses import PARTS
from manyfit.report.scaling_result import ModeResult, Scaling, ScalingPoint
from manyfit.report.scaling_units import REPLICAS, Unit
from manyfit.report.scaling_words import EXPLAINS, Recommendation, equality_words, prediction_words

COLUMNS = ("count", "replicas", "batch", "images/s", "speed-up", "efficiency", "accuracy", "run", "to target", "cost")

_SHORTER = {"efficiency": "effic.", "to target": "target"}


def point_cells(point: ScalingPoint, currency: str, unit: Unit = REPLICAS, *, narrow: bool = False) -> list[str]:
    """The cells of `COLUMNS`; where there is little room, intervals of the claims alone."""
    is_base = point.added_efficiency is None
    speed, accuracy = point.images_per_second, point.best_val_accuracy
    return [
        str(unit.of(point.num_replicas)),
        "-" if unit.replicas == 1 else str(point.num_replicas),
        str(point.global_batch_size),
        f"{speed.value:,.0f}" if narrow else spread(speed, ",.0f"),
        "1" if is_base else spread(point.speed_up, ".2f"),
        "100%" if is_base else f"{point.efficiency.value:.0%}" if narrow else spread(point.efficiency, ".0%"),
        f"{accuracy.value:.4f}" if narrow and accuracy else spread(accuracy, ".4f"),
        _time(point.seconds, narrow),
        _time(point.seconds_to_accuracy, narrow),
        money(point.cost, currency),
    ]


def _time(value: Estimate | None, narrow: bool) -> str:
    if value is None:
        return "-"
    return f"{value.value:,.0f} s" if narrow else seconds(value.value)


def point_table(result: ModeResult, currency: str, *, narrow: bool = False) -> tuple[list[str], list[list[str]]]:
    """Names of the columns and cells of the rows, columns without a value left out."""
    rows = [point_cells(point, currency, result.unit, narrow=narrow) for point in result.points]
    kept = [index for index in range(len(COLUMNS)) if any(row[index] != "-" for row in rows)]
    kept = [index for index in kept if not (narrow and COLUMNS[index] == "cost")]  # the answer says it
    names = [_SHORTER.get(name, name) if narrow else name for name in (result.unit.plural, *COLUMNS[1:])]
    return [names[index] for index in kept], [[row[index] for index in kept] for row in rows]


def spread(value: Estimate | None, pattern: str) -> str:
    """The value, and where there are repeats its 95 % interval.

    >>> spread(Estimate(1.8, 1.7, 1.912), ".2f"), spread(Estimate(1.8), ".2f"), spread(None, ".2f")
    ('1.80 (1.70–1.91)', '1.80', '-')
    """
    if value is None:
        return "-"
    text = format(value.value, pattern)
    if value.low is None or value.high is None or value.low == value.high:
        return text
    return f"{text} ({format(value.low, pattern)}–{format(value.high, pattern)})"


def lost_cells(point: ScalingPoint, unit: Unit = REPLICAS) -> list[str]:
    """The count, what is lost, and each of `PARTS`."""
    shares = point.lost or {}
    return [
        str(unit.of(point.num_replicas)),
        f"{1 - point.efficiency.value:.0%}",
        *(_share(shares.get(name)) for name in PARTS),
    ]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}" if abs(value) >= 0.0005 else "0"


def scaling_tables(found: Scaling, advice: Recommendation, *, currency: str = "") -> list[Table | Text]:
    """What a terminal shows: a table of each kind of scaling, what was lost, predictions, and the answer."""
    parts: list[Table | Text] = []
    for result in found.modes:
        parts.append(Text(f"{result.mode} scaling: {EXPLAINS[result.mode]}", style="bold"))
        parts.append(_table(*point_table(result, currency, narrow=True)))
        if any(point.lost for point in result.points):
            rows = [lost_cells(point, result.unit) for point in result.points[1:]]
            parts.append(Text("lost, as a share of the time:"))
            parts.append(_table((result.unit.plural, "lost", *PARTS), rows))
        parts += [Text(line) for line in prediction_words(result)]
        parts += [Text(equality_words(one, result.unit)) for one in result.equality if one.verdict == NOT_COMPARED]
    if found.outlook is not None:
        parts += [Text("several machines: PREDICTION", style="bold"), _table(*found.outlook.rows_of_table())]
        parts.append(Text(found.outlook.assumes))
    parts += [Text(f"failed: {label}: {error}", style="yellow") for label, error in found.failures.items()]
    parts.append(Text(advice.sentence, style="bold"))
    return [*parts, *(Text(f"- {line}") for line in advice.details)]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def scaling_markdown(found: Scaling, advice: Recommendation, *, currency: str = "", facts: Sequence[str] = ()) -> str:
    """The study as Markdown: for a pull request, a W&B report, or a README.

    Args:
        facts: What made it: command, hardware, versions, commit, date.
    """
    lines = ["# Scaling study", "", f"**{advice.sentence}**", "", *(f"- {line}" for line in advice.details)]
    for result in found.modes:
        lines += ["", f"## {result.mode.capitalize()} scaling", "", f"{EXPLAINS[result.mode].capitalize()}.", ""]
        lines += markdown_table(*point_table(result, currency))
        if any(point.lost for point in result.points):
            lines += ["", "Lost, as a share of the time:", ""]
            rows = [lost_cells(point, result.unit) for point in result.points[1:]]
            lines += markdown_table((result.unit.plural, "lost", *PARTS), rows)
        lines += ["", *(f"{line}\n" for line in prediction_words(result))]
        lines += [f"- {equality_words(one, result.unit)}" for one in result.equality]
    if found.outlook is not None:
        lines += ["", "## Several machines: PREDICTION", "", *markdown_table(*found.outlook.rows_of_table())]
        lines += ["", found.outlook.assumes]
    if found.failures:
        lines += ["", "## Failed", "", *(f"- `{label}`: {error}" for label, error in found.failures.items())]
    return "\n".join([*lines, "", "## Made by", "", *(f"- {fact}" for fact in facts), ""])


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose cells are set to the right."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (list(columns), ["---:"] * len(columns), *cells)]
