"""A self-check: what one replica and many gave, the verdict, and tables for a terminal."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Comparison:
    """What R = 1 and R = N gave.

    Args:
        losses: The loss of each step, float64 [steps, 2]: one replica, N replicas.
        weight_difference: Largest difference of any weight, relative to the largest weight of its tensor.
        worst_weight: The tensor with that difference.
    """

    num_replicas: int
    devices: tuple[str, ...]
    losses: np.ndarray
    weight_difference: float
    worst_weight: str
    tolerance: float

    @property
    def loss_difference(self) -> float:
        """Largest relative difference of a step's loss."""
        return float(
            np.max(np.abs(self.losses[:, 1] - self.losses[:, 0]) / np.maximum(np.abs(self.losses[:, 0]), 1e-12))
        )

    @property
    def passed(self) -> bool:
        """Whether everything is finite and the same to rounding."""
        differences = (self.loss_difference, self.weight_difference)
        return bool(np.isfinite(self.losses).all()) and all(value <= self.tolerance for value in differences)


def self_check_tables(comparison: Comparison, versions: Mapping[str, str | None]) -> list[Table | Text]:
    """The loss of every step on one replica and on many, the largest differences, and the verdict."""
    many = f"{comparison.num_replicas} replicas"
    steps = Table(title="mean loss up to each step", title_justify="left")
    for name in ("step", "1 replica", many, "difference"):
        steps.add_column(name, justify="right")
    for step, (one, other) in enumerate(comparison.losses, start=1):
        steps.add_row(str(step), f"{one:.7f}", f"{other:.7f}", f"{abs(other - one):.1e}")
    rows = [
        ("devices", ", ".join(comparison.devices)),
        ("loss, largest relative difference", f"{comparison.loss_difference:.1e}"),
        ("weights, largest relative difference", f"{comparison.weight_difference:.1e} {_place(comparison)}"),
        ("tolerance", f"{comparison.tolerance:.0e}"),
        ("versions", ", ".join(f"{name} {versions[name]}" for name in ("python", "tensorflow", "keras"))),
    ]
    facts = Table.grid(padding=(0, 2))
    for name, value in rows:
        facts.add_row(Text(name), Text(value))
    return [steps, facts, _verdict(comparison)]


def _place(comparison: Comparison) -> str:
    return f"(in {comparison.worst_weight.replace('|', '/')})" if comparison.worst_weight else ""


def _verdict(comparison: Comparison) -> Text:
    if comparison.passed:
        return Text(f"PASS: {comparison.num_replicas} replicas give the numbers of one.", style="bold green")
    return Text(
        f"FAIL: {comparison.num_replicas} replicas do not give the numbers of one. Do not train on this set-up: try "
        "strategy.cross_device_ops=one_device, then NCCL_P2P_DISABLE=1, then precision=float32, and compare again.",
        style="bold red",
    )
