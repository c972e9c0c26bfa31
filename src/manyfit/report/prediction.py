"""Predictions as a CSV file, as lines on a terminal, and as a page of thumbnails; however many there are."""

import csv
import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table
from rich.text import Text

from manyfit.console import plural
from manyfit.files import remove_quietly, unwritable
from manyfit.report.page import Cell, Page, Picture

MOST_THUMBNAILS = 200
"""Pictures on a page, at most: it stays a file of a few megabytes."""
MOST_UNREADABLE = 200
_UNREADABLE_ON_SCREEN = 10
_SURE, _UNSURE = 0.9, 0.6


@dataclass(frozen=True)
class Shown:
    """One prediction as it is shown."""

    path: str
    label: str
    probability: float


@dataclass(frozen=True)
class Explained:
    """What speaks for the labels of the pictures on a page.

    Args:
        text: How it was found, or why it was not.
        overlays: Data URIs by path.
    """

    text: str
    overlays: dict[str, str] = field(default_factory=dict)


@dataclass
class Tally:
    """What is known of a class after any number of predictions."""

    count: int = 0
    sum_of_probabilities: float = 0.0
    sure: int = 0
    unsure: int = 0


@dataclass
class Overview:
    """What is kept of any number of predictions: counts a class, the most and the least sure, what was unreadable.

    Args:
        class_names: The model's classes.
        most_pictures: How many predictions are kept; half of them the most, half the least sure.
    """

    class_names: Sequence[str]
    most_pictures: int = MOST_THUMBNAILS
    num_predicted: int = 0
    num_unreadable: int = 0
    tallies: dict[str, Tally] = field(default_factory=dict)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    _most: list[tuple[float, int, Shown]] = field(default_factory=list)
    _least: list[tuple[float, int, Shown]] = field(default_factory=list)

    def add(self, shown: Shown) -> None:
        """Count a prediction, and keep it if it is among the most or the least sure."""
        tally = self.tallies.setdefault(shown.label, Tally())
        tally.count += 1
        tally.sum_of_probabilities += shown.probability
        tally.sure += shown.probability >= _SURE
        tally.unsure += shown.probability < _UNSURE
        self.num_predicted += 1
        most = max(1, self.most_pictures // 2)
        # The number breaks ties, so that equals fill both: the earlier of them are the surest.
        for heap, sign in ((self._most, 1), (self._least, -1)):
            item = (sign * shown.probability, -sign * self.num_predicted, shown)
            (heapq.heappush if len(heap) < most else heapq.heappushpop)(heap, item)

    def add_unreadable(self, path: str, reason: str) -> None:
        """Count a file that could not be read."""
        self.num_unreadable += 1
        if len(self.unreadable) < MOST_UNREADABLE:
            self.unreadable.append((path, reason))

    @property
    def kept(self) -> tuple[list[Shown], list[Shown]]:
        """The most sure and the least sure, the surest first, none in both."""
        most = [shown for _, _, shown in sorted(self._most, reverse=True)]
        known = {id(shown) for shown in most}
        least = [shown for _, _, shown in sorted(self._least) if id(shown) not in known]
        return most, least

    def sentence(self) -> str:
        """What came out, in one line."""
        counts = sorted(self.tallies.items(), key=lambda item: -item[1].count)
        parts = [f"{tally.count:,} {name}" for name, tally in counts[:5]]
        parts += [f"{len(counts) - 5} other classes"] if len(counts) > 5 else []
        said = f"{plural(self.num_predicted, 'picture')}: {', '.join(parts)}." if parts else "No picture could be read."
        if self.num_unreadable:
            said += f" {plural(self.num_unreadable, 'file')} could not be read."
        return said


def class_table(overview: Overview) -> Table:
    """How many pictures were taken for each class, and how sure of that the model is."""
    table = Table()
    table.add_column("class", overflow="ellipsis", max_width=24)
    for name in _COLUMNS[1:]:
        table.add_column(name, justify="right")
    for row in _class_rows(overview):
        table.add_row(*(Text(cell) for cell in row))
    return table


def unreadable_lines(overview: Overview) -> list[str]:
    """The first files that could not be read, each with its reason."""
    lines = [f"  {printable(path)}: {reason}" for path, reason in overview.unreadable[:_UNREADABLE_ON_SCREEN]]
    more = overview.num_unreadable - len(lines)
    return [*lines, *([f"  and {more:,} more"] if more else [])]


def prediction_line(shown: Shown) -> str:
    """A prediction for a terminal."""
    return f"{shown.probability:.4f}  {shown.label}  {printable(shown.path)}"


def printable(path: str) -> str:
    """A path that any file and any terminal can hold: bytes that are no UTF-8 as their escapes."""
    return path.encode("utf-8", "backslashreplace").decode("utf-8")


@contextmanager
def csv_files(
    path: Path, class_names: Sequence[str]
) -> Iterator[tuple[Callable[..., None], Callable[[str, str], None]]]:
    """Two functions that write a row: of a prediction to `path`, of an unreadable file to `PATH.unreadable.csv`.

    Rows are written as they come, beside `path`; it is there, whole, once the block ends without an error. The second
    file is there only where it has a row.

    Raises:
        TrainingError: a file cannot be written.
    """
    beside = path.with_suffix(".unreadable.csv")
    partial = [one.with_name(f".{one.name}.{os.getpid()}.tmp") for one in (path, beside)]
    try:
        with (
            partial[0].open("w", newline="", encoding="utf-8") as file,
            partial[1].open("w", newline="", encoding="utf-8") as other,
        ):
            rows, bad = csv.writer(file, lineterminator="\n"), csv.writer(other, lineterminator="\n")
            rows.writerow(["path", "label", "probability", *class_names])
            bad.writerow(["path", "reason"])
            num_bad = 0

            def add(shown: Shown, probabilities: Sequence[float]) -> None:
                numbers = (f"{number:.6f}" for number in probabilities)
                rows.writerow([printable(shown.path), shown.label, f"{shown.probability:.6f}", *numbers])

            def add_unreadable(name: str, reason: str) -> None:
                nonlocal num_bad
                num_bad += 1
                bad.writerow([printable(name), reason])

            yield add, add_unreadable
        os.replace(partial[0], path)
        if num_bad:
            os.replace(partial[1], beside)
        else:
            beside.unlink(missing_ok=True)  # of an earlier start
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        for one in partial:
            remove_quietly(one)


def prediction_page(
    overview: Overview,
    *,
    title: str,
    subtitle: str,
    notes: Sequence[str],
    thumbnail: Callable[[str], str | None],
    explained: Explained | None = None,
) -> Page:
    """A page of thumbnails, the surest first.

    Args:
        notes: Sentences below the first one.
        thumbnail: Makes the data URI of the picture in a file, or None.
        explained: What speaks for the labels, where that was asked for.
    """
    page = Page(title, subtitle)
    page.verdict(overview.sentence(), notes)
    page.section("How sure the model is", "The probability is the model's own; it is not always right about itself.")
    page.table(_COLUMNS, _class_rows(overview))
    most, least = overview.kept
    if explained is not None:
        page.section("What speaks for the label", explained.text)
        if explained.overlays:
            page.overlay_switch("Show it over the pictures")
    overlays = {} if explained is None else explained.overlays

    def picture(shown: Shown) -> Picture:
        return _picture(shown, thumbnail, overlays.get(shown.path))

    if len(most) + len(least) == overview.num_predicted:
        page.section("All pictures, the surest first")
        page.gallery([picture(shown) for shown in (*most, *least)])
    else:
        page.section(f"The {len(most)} surest")
        page.gallery([picture(shown) for shown in most])
        page.section(f"The {len(least)} least sure", "What is worth a look first.")
        page.gallery([picture(shown) for shown in least])
    if overview.num_unreadable:
        hidden = overview.num_unreadable - len(overview.unreadable)
        page.section("Files that could not be read")
        rows = [(Cell(os.path.basename(path), path), reason) for path, reason in overview.unreadable]
        page.table(("file", "why"), rows, note=f"{hidden:,} more are not shown." if hidden else "")
    return page


_COLUMNS = ("class", "pictures", "mean probability", f"at least {_SURE:g}", f"below {_UNSURE:g}")


def _class_rows(overview: Overview) -> list[tuple[str, ...]]:
    counts = sorted(overview.tallies.items(), key=lambda item: -item[1].count)
    return [
        (
            name,
            f"{tally.count:,}",
            f"{tally.sum_of_probabilities / tally.count:.4f}",
            f"{tally.sure:,}",
            f"{tally.unsure:,}",
        )
        for name, tally in counts
    ]


def _picture(shown: Shown, thumbnail: Callable[[str], str | None], overlay: str | None) -> Picture:
    name = os.path.basename(shown.path)
    return Picture(thumbnail(shown.path), f"{shown.label} {shown.probability:.3f}", name, shown.path, overlay)
