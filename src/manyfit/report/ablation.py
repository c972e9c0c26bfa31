"""Which switch paid, and by how much: an ablation's records in, table and JSON out."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from manyfit.console import mean_images_per_second, seconds

BASELINE = "baseline"
LEAST_NOISE = 0.02
"""Differences below this are noise even where the baseline seems steadier: it has been run a few times only."""
UNKNOWN_NOISE = 0.25
"""What is taken for noise where the baseline ran once: its own scatter is not known."""


@dataclass(frozen=True)
class Change:
    """One switch, changed from what the baseline has.

    Args:
        name: Of the switch.
        text: The override that changes it.
        turned_on: The baseline lacks it; else the baseline has it and this takes it away.
        also: Further overrides, which say nothing by themselves.
    """

    name: str
    text: str
    turned_on: bool
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """One training.

    Args:
        epoch_seconds: Training seconds of an epoch, the median of those after the first.
        images_per_second: Without warm-up and validation.
        total_seconds: Of the process, start-up included.
        val_accuracy: The best one.
    """

    epoch_seconds: float | None
    images_per_second: float | None
    total_seconds: float | None
    val_accuracy: float | None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Measured":
        """What a record says."""
        epochs = record.get("epochs") or []
        took = [row["train_seconds"] for row in epochs[1:] or epochs if row.get("train_seconds")]
        return cls(
            statistics.median(took) if took else None,
            mean_images_per_second(epochs),
            (record.get("timing") or {}).get("total_seconds"),
            (record.get("best") or {}).get("val_accuracy"),
        )


@dataclass(frozen=True)
class Row:
    """What came of one change.

    Args:
        ratio: Its images/s over the baseline's.
        gain: Images/s with the switch over those without, whichever of the two the baseline is.
        verdict: `pays`, `costs`, `no difference` (within the noise) or `failed`.
        error: Why it failed.
    """

    name: str
    change: str
    turned_on: bool
    measured: Measured | None
    ratio: float | None
    gain: float | None
    verdict: str
    error: str | None = None


@dataclass(frozen=True)
class Ablation:
    """All that an ablation says.

    Args:
        baseline: The mean of its runs.
        speeds: Images/s of the baseline's runs, in the order in which they ran.
        noise: A relative difference of speeds up to this says nothing.
        rows: The changes, the largest gain first.
    """

    baseline: Measured
    speeds: tuple[float, ...]
    noise: float
    rows: tuple[Row, ...]

    @property
    def drift(self) -> float:
        """How much faster the baseline was at the end than at the start, relative to the start."""
        return self.speeds[-1] / self.speeds[0] - 1 if self.speeds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The ablation as JSON."""
        return {**asdict(self), "drift": self.drift}


def ablation(
    changes: Sequence[Change],
    baseline: Sequence[Mapping[str, Any]],
    records: Mapping[str, Sequence[Mapping[str, Any]]],
    errors: Mapping[str, str | None] | None = None,
) -> Ablation:
    """The claims that records allow.

    Args:
        changes: What was changed.
        baseline: The baseline's records, in the order in which they ran.
        records: The records of each change by its name; none where it failed.
        errors: Why a change failed, by its name.
    """
    measured = [Measured.of(record) for record in baseline]
    speeds = tuple(one.images_per_second for one in measured if one.images_per_second)
    spread = (max(speeds) - min(speeds)) / statistics.mean(speeds) if speeds else 0.0
    noise = max(LEAST_NOISE, spread) if len(speeds) > 1 else UNKNOWN_NOISE
    base = _mean(measured)
    errors = errors or {}
    rows = [_row(change, records.get(change.name, ()), base, noise, errors.get(change.name)) for change in changes]
    return Ablation(base, speeds, noise, tuple(sorted(rows, key=lambda row: -(row.gain or 0.0))))


def _row(change: Change, records: Sequence[Mapping[str, Any]], base: Measured, noise: float, error: str | None) -> Row:
    if not records:
        return Row(change.name, change.text, change.turned_on, None, None, None, "failed", error)
    measured = _mean([Measured.of(record) for record in records])
    if not measured.images_per_second or not base.images_per_second:
        why = "too short to measure"
        return Row(change.name, change.text, change.turned_on, measured, None, None, "no difference", why)
    ratio = measured.images_per_second / base.images_per_second
    gain = ratio if change.turned_on else 1 / ratio
    verdict = "pays" if gain > 1 + noise else "costs" if gain < 1 / (1 + noise) else "no difference"
    return Row(change.name, change.text, change.turned_on, measured, ratio, gain, verdict)


def _mean(measured: Sequence[Measured]) -> Measured:
    def of(name: str) -> float | None:
        known = [value for one in measured if (value := getattr(one, name)) is not None]
        return statistics.mean(known) if known else None

    return Measured(of("epoch_seconds"), of("images_per_second"), of("total_seconds"), of("val_accuracy"))


def ablation_tables(result: Ablation) -> list[Table | Text]:
    """The table, what the baseline did from its first run to its last, and which switch paid."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("changed", overflow="fold")
    for name in ("s/epoch", "images/s", "x base", "total"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("the switch", no_wrap=True)
    table.add_row(BASELINE, *_cells(result.baseline, 1.0), "")
    for row in result.rows:
        said = f"{row.verdict} {row.gain:.2f}x" if row.verdict in ("pays", "costs") else row.verdict
        cells = _cells(row.measured, row.ratio) if row.measured else ["-"] * 4
        table.add_row(Text(row.change), *cells, Text(said, style=_STYLES.get(row.verdict, "")))
    lines: list[Table | Text] = [table, Text(_about_noise(result))]
    lines += [Text(f"{row.name} ({row.change}): {row.error}") for row in result.rows if row.error]
    return [*lines, Text(_summary(result), style="bold")]


_STYLES = {"pays": "green", "costs": "red", "failed": "yellow"}


def _cells(measured: Measured, ratio: float | None) -> list[str]:
    def number(value: float | None, pattern: str) -> str:
        return "-" if value is None else format(value, pattern)

    return [
        number(measured.epoch_seconds, ".2f"),
        number(measured.images_per_second, ",.0f"),
        number(ratio, ".2f"),
        seconds(measured.total_seconds),
    ]


def _about_noise(result: Ablation) -> str:
    if len(result.speeds) < 2:
        return (
            "The baseline was measured once, so that its scatter is not known: a difference below "
            f"{result.noise:.0%} is taken for noise."
        )
    runs = ", ".join(f"{speed:,.0f}" for speed in result.speeds)
    return (
        f"The baseline ran {len(result.speeds)} times: {runs} images/s, from first to last {result.drift:+.0%}. "
        f"A difference below {result.noise:.0%} is noise."
    )


def _summary(result: Ablation) -> str:
    def named(verdict: str) -> list[str]:
        return [f"{row.name} {row.gain:.2f}x" for row in result.rows if row.verdict == verdict and row.gain is not None]

    paid, cost = named("pays"), named("costs")
    parts = [f"What pays: {', '.join(paid) or 'nothing beyond the noise'}."]
    if cost:
        parts.append(f"What costs: {', '.join(cost)}.")
    missing = [row for row in result.rows if row.verdict == "pays" and row.turned_on]
    if missing:
        parts.append(f"To have it: {' '.join(row.change for row in missing)}")
    return " ".join(parts)
