"""Whether the points of a study gave the same result: rows of their records in, a verdict with its numbers out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

EQUAL, DRIFTS, DIFFERENT, NOT_COMPARED = "equal", "equal at first", "different", "not compared"
TOLERANCE = {"float32": 1e-3, "mixed_float16": 2e-2, "mixed_bfloat16": 5e-2}
"""Largest relative difference of an epoch's loss that rounding explains: the sums are taken in another order, and an
epoch has many steps over which that grows."""

GPU_TOLERANCE = 1e-2
"""The same for float32 on GPUs, whose products are TensorFloat-32 by default and rounded by the batch size as well."""

COMPARED = ("loss", "val_loss")


@dataclass(frozen=True)
class Equality:
    """The result of one replica count beside that of the smallest, the same seed by the same seed.

    Args:
        num_replicas: The count.
        compared_with: The smallest count.
        verdict: `equal`; `equal at first`: in the first epoch, after which rounding grew; `different`; `not compared`.
        pairs: Runs compared with one of the smallest count.
        first_difference: Largest relative difference of a loss after the first epoch.
        largest_difference: The same over all epochs.
        drifts_from: The first epoch in which it is above the tolerance.
        accuracy_difference: Largest absolute difference of the best validation accuracy.
        tolerance: See `tolerance`.
        why: What it means, or why nothing could be compared.
    """

    num_replicas: int
    compared_with: int
    verdict: str
    pairs: int = 0
    first_difference: float | None = None
    largest_difference: float | None = None
    drifts_from: int | None = None
    accuracy_difference: float | None = None
    tolerance: float | None = None
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The verdict as JSON."""
        return asdict(self)


def tolerance(precision: str, devices: Sequence[str]) -> float:
    """What rounding may make of an epoch's loss.

    >>> tolerance("float32", ["CPU:0"]), tolerance("float32", ["GPU:0 NVIDIA A100"])
    (0.001, 0.01)
    """
    on_gpu = any(str(device).startswith("GPU") for device in devices)
    return max(TOLERANCE.get(precision, TOLERANCE["float32"]), GPU_TOLERANCE if on_gpu else 0.0)


def equality(
    num_replicas: int,
    base: int,
    pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
    *,
    limit: float,
    weak: bool,
) -> Equality:
    """Compare the runs of a count with those of the smallest.

    Args:
        base: The smallest count.
        pairs: A record of the smallest count and one of this count, of the same seed.
        limit: The tolerance.
        weak: The global batch grew with the count, so that these are other trainings by design.
    """
    why = "weak scaling: the batch of a step grows with the replicas, so that each count is another training"
    why = why if weak else next((reason for pair in pairs if (reason := _why_not(*pair))), "")
    if not why and not pairs:
        why = "no run of the smallest count with the same seed finished"
    if why:
        return Equality(num_replicas, base, NOT_COMPARED, tolerance=limit, why=why)
    differences = [_differences(one, other) for one, other in pairs]
    epochs = [max(values) for values in zip(*differences, strict=False)]
    if not epochs:
        return Equality(num_replicas, base, NOT_COMPARED, tolerance=limit, why="no epoch of both runs has a loss")
    drift = next((epoch for epoch, value in enumerate(epochs, start=1) if not value <= limit), None)
    accuracies = [
        abs(a - b) for one, other in pairs if (a := _best(one)) is not None and (b := _best(other)) is not None
    ]
    verdict = EQUAL if drift is None else DIFFERENT if drift == 1 else DRIFTS
    return Equality(
        num_replicas,
        base,
        verdict,
        len(pairs),
        epochs[0],
        max(epochs),
        drift,
        max(accuracies) if accuracies else None,
        limit,
        _says(verdict, drift),
    )


def _why_not(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Why two records must differ by design; empty where they must agree."""
    for section, key, what in (
        ("data", "fingerprint", "the data is not the same"),
        ("batch", "global_batch_size", "the global batch is not the same"),
    ):
        if (one.get(section) or {}).get(key) != (other.get(section) or {}).get(key):
            return what
    model = other.get("model") or {}
    if model.get("trains_batch_norm") and not model.get("sync_batch_norm"):
        return "model.sync_batch_norm=false: each replica has batch-norm statistics of its own"
    return ""


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[float]:
    """The largest relative difference of a loss, epoch by epoch; infinite where only one of the two is finite."""
    found = []
    for mine, yours in zip(one.get("epochs") or [], other.get("epochs") or [], strict=False):
        values = [(mine.get(name), yours.get(name)) for name in COMPARED]
        found.append(max((_relative(a, b) for a, b in values if not (a is None and b is None)), default=math.inf))
    return found


def _relative(a: float | None, b: float | None) -> float:
    if a is None or b is None:
        return math.inf
    return abs(a - b) / max(abs(a), 1e-12)


def _best(record: Mapping[str, Any]) -> float | None:
    return (record.get("best") or {}).get("val_accuracy")


def _says(verdict: str, drift: int | None) -> str:
    if verdict == EQUAL:
        return "the losses of every epoch agree to rounding"
    if verdict == DRIFTS:
        return (
            f"the losses agree to rounding before epoch {drift}; from there rounding has grown, as it does in training"
        )
    return "the losses of the first epoch differ by more than rounding: run src/check.py with these overrides"
