"""A comparison as tables: the same rows for the terminal, Markdown and the page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyfit.console import decimal
from manyfit.report import pairs
from manyfit.report.claims import Estimate
from manyfit.report.comparison import Claim, Comparison
from manyfit.report.cost import money
from manyfit.report.page import Cell, cut
from manyfit.report.runs import PARTS, Run
from manyfit.report.verdict_words import points, times

MOST_VALUES = 6
"""Different values of a setting that are listed."""
MOST_COLUMNS = 5
"""Runs whose settings are shown side by side; of more, each value is shown with the runs that have it."""


@dataclass(frozen=True)
class Sheet:
    """One table.

    Args:
        key: Which of the tables it is.
        rows: The first cell names the row.
        note: How to read it.
    """

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell | str, ...], ...]
    note: str = ""


def sheets(comparison: Comparison) -> list[Sheet]:
    """Every table that has a row."""
    made = (_runs, _claims, _times, _costs, _system, _differences)
    return [sheet for make in made if (sheet := make(comparison)).rows]


# --- the tables -------------------------------------------------------------------------------------------------------


def _name(run: Run) -> Cell:
    return Cell(run.name, full=str(run.folder), series=run.key)


def _number(value: float | None, pattern: str = ",.0f") -> str:
    return "-" if value is None else format(value, pattern)


def _runs(comparison: Comparison) -> Sheet:
    def row(run: Run) -> tuple[Cell | str, ...]:
        status = run.status + (", rehearsal" if run.rehearsal else "")
        return (
            _name(run),
            Cell(status, full=pairs.how_it_ended(run), tone=None if run.finished and not run.rehearsal else "mark"),
            _number(run.num_replicas),
            f"{_number(run.num_replicas)}x{_number(run.examples_per_replica)}",
            _number(run.images_per_second),
            decimal(run.best_accuracy),
            duration(run.total_seconds),
            _of_target(run, comparison.target),
        )

    columns = ["run", "status", "replicas", "batch", "images/s", "accuracy", "time"]
    note = (
        "Batch: replicas x images of one. Images/s without warm-up and validation; accuracy: the best on the "
        "validation split; time: of the process, without the probe."
    )
    if comparison.target is not None:
        asked = "as asked" if comparison.target_was_given else "the highest that every compared run reached"
        columns.append(f"to {comparison.target:g}")
        note += f" Time to an accuracy of {comparison.target:g}: {asked}."
    problems = [f"{run.name}: {problem}." for run in comparison.runs for problem in run.problems]
    rows = tuple(row(run)[: len(columns)] for run in comparison.runs)
    return Sheet("runs", "Runs", tuple(columns), rows, " ".join([note, *problems]))


def duration(seconds: float | None) -> str:
    """A duration in one unit, so that it fits a column.

    >>> duration(15.82), duration(152.9), duration(1525.0), duration(6900.0), duration(41000.0), duration(None)
    ('15.8 s', '153 s', '25.4 min', '1.92 h', '11.4 h', '-')
    """
    if seconds is None:
        return "-"
    if seconds < 600:
        return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.2f} h" if seconds < 36000 else f"{seconds / 3600:.1f} h"


def _of_target(run: Run, target: float | None) -> str:
    return "-" if target is None else duration(run.seconds_to(target))


def _claims(comparison: Comparison) -> Sheet:
    if not comparison.claims:
        return Sheet("claims", "", (), ())
    return Sheet(
        "claims",
        f"Against the baseline, {cut(comparison.baseline.name, 40)}",
        ("run", "scaling", "speed-up", "efficiency", "whole run", "accuracy", "cost"),
        tuple(_claim_row(claim) for claim in comparison.claims),
        "Speed-up: images/s over the baseline's. Efficiency: speed-up over the ratio of replicas, where nothing else "
        "was changed. Strong scaling keeps the images of a step, weak scaling those of a replica and step. Whole run: "
        "the baseline's seconds over these. Cost: of a run, less the baseline's. With 95 % intervals where there are "
        "repeats" + _about_accuracy(comparison.claims),
    )


def _about_accuracy(found: Sequence[Claim]) -> str:
    if not any(claim.accuracy and claim.accuracy.one_sample and claim.accuracy.low is not None for claim in found):
        return "."
    return "; of an accuracy without repeats, what validation sets of that size can tell apart (Agresti and Caffo)."


def _claim_row(claim: Claim) -> tuple[Cell | str, ...]:
    def told(estimate: Estimate | None, write: Callable[[float], str]) -> str:
        if estimate is None:
            return "-"
        if estimate.low is None or estimate.high is None:
            return write(estimate.value)
        return f"{write(estimate.value)}\n{write(estimate.low)} to {write(estimate.high)}"

    blocked = [mark for mark in claim.marks if mark.blocks]
    words = ", ".join(dict.fromkeys(mark.about for mark in blocked))
    kind = {None: "-", pairs.MIXED: "neither"}.get(claim.scaling, claim.scaling or "-")
    tone = {True: "good", False: "bad", None: None}[claim.is_faster]
    currency = claim.currency or "USD"
    return (
        Cell(
            claim.group.short_name, full=f"{claim.group.name}: {claim.group.first.folder}", series=claim.group.first.key
        ),
        Cell(
            f"not comparable: {words}" if blocked else kind,
            full="; ".join(mark.text for mark in claim.marks) or None,
            tone="mark" if blocked else None,
        ),
        Cell(told(claim.speed_up, times), tone=tone),
        told(claim.efficiency, lambda value: f"{100 * value:.0f} %"),
        told(claim.whole_run, times),
        told(claim.accuracy, points),
        told(claim.cost, lambda value: f"{'+' if value > 0 else ''}{money(value, currency)}"),
    )


def _times(comparison: Comparison) -> Sheet:
    split = {run.key: run.time_split for run in comparison.runs}
    parts = [part for part in PARTS if any(part in found for found in split.values())]
    rows = [
        (
            _name(run),
            *(_number(split[run.key].get(part), ",.1f") for part in parts),
            _number(sum(split[run.key].values()), ",.1f"),
        )
        for run in comparison.runs
        if split[run.key]
    ]
    return Sheet(
        "times",
        "Where the time went",
        ("run", *parts, "sum"),
        tuple(rows),
        "Seconds. Waiting for input is the share of the training that the probe measured; where none ran, it is part "
        "of the training. The probe is the measurement itself, and left out of every comparison.",
    )


def _parts_and_sum(split: Mapping[str, float], parts: Sequence[str]) -> list[float | None]:
    return [*(split.get(part) for part in parts), sum(split.values())]


def _costs(comparison: Comparison) -> Sheet:
    def row(run: Run) -> Iterator[Cell | str]:
        cost = comparison.costs[run.key]
        assert cost is not None
        yield _name(run)
        for value in (cost.per_hour, cost.run, cost.epoch, cost.million_images, cost.target):
            yield money(value, cost.currency)

    priced = [run for run in comparison.runs if comparison.costs.get(run.key)]
    target = "a target" if comparison.target is None else f"{comparison.target:g}"
    return Sheet(
        "costs",
        "Cost",
        ("run", "an hour", "a run", "an epoch", "a million images", f"to reach {target}"),
        tuple(tuple(row(run)) for run in priced),
        "A run: from start to end, without the probe. An epoch: training and validation. A million images: training at "
        "the steady speed.",
    )


def _system(comparison: Comparison) -> Sheet:
    columns = (
        ("GPU %", lambda means: _over_devices(means, "utilization_percent"), ",.0f"),
        ("GPU GiB", lambda means: _over_devices(means, "memory_used_bytes", 2**-30), ",.1f"),
        ("GPU W", lambda means: _over_devices(means, "power_watts"), ",.0f"),
        ("CPU %", lambda means: _over_devices(means, "cpu_percent"), ",.0f"),
        ("memory GiB", lambda means: _over_devices(means, "memory_bytes", 2**-30), ",.1f"),
    )
    rows = []
    for run in comparison.runs:
        means, energy = run.system_means("train"), run.joules_per_image
        cells = [_number(of(means), pattern) for _, of, pattern in columns]
        if any(cell != "-" for cell in cells):
            rows.append((_name(run), *cells, _number(energy, ",.3g")))
    return Sheet(
        "devices",
        "Devices during the training",
        ("run", *(name for name, _, _ in columns), "J an image"),
        tuple(rows),
        "Means over the training phase: utilisation, memory used and power of a GPU (those that the run used), "
        "utilisation of all CPU cores and memory of a machine (the mean over those of the workers), energy of all GPUs "
        "of the run alone. A dash: no samples.",
    )


def _over_devices(means: Mapping[str, float], metric: str, factor: float = 1.0) -> float | None:
    """The mean of one metric over the GPUs, or the machines, that have it."""
    found = [value for name, value in means.items() if name.rpartition(".")[2] == metric]
    return factor * sum(found) / len(found) if found else None


def _differences(comparison: Comparison) -> Sheet:
    found = comparison.differences
    note = "Only the settings that differ; all others are equal."
    if len(comparison.runs) <= MOST_COLUMNS:
        rows = tuple((key, *(_setting(value) for value in values)) for key, values in found.items())
        return Sheet(
            "settings", "Settings that differ", ("key", *(cut(run.name, 24) for run in comparison.runs)), rows, note
        )
    return Sheet(
        "settings",
        "Settings that differ",
        ("key", "value and runs"),
        tuple((key, _by_value(values, comparison.runs)) for key, values in found.items()),
        note,
    )


def _by_value(values: Sequence[Any], runs: Sequence[Run]) -> Cell:
    having: dict[str, list[str]] = {}
    for value, run in zip(values, runs, strict=True):
        having.setdefault(_setting(value), []).append(run.name)
    full = "; ".join(f"{value}: {', '.join(names)}" for value, names in having.items())
    if len(having) > MOST_VALUES:
        return Cell(f"{len(having)} different values", full=full)
    text = "; ".join(
        f"{value}: {cut(names[0], 24) if len(names) == 1 else f'{len(names)} runs'}" for value, names in having.items()
    )
    return Cell(text, full=full)


def _setting(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return format(value, ".10g") if isinstance(value, float) else str(value)
