"""Where the time of more replicas goes, and what still more would bring: measured parts of a step in, shares out.

All of it is arithmetic on seconds an image: T(N) = 1 / (images a second on N replicas). Perfect scaling from b
replicas to N gives T(b) b/N; what T(N) is more than that is lost, and 1 - efficiency is its share of T(N).
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manyfit.console import plural
from manyfit.report.verdict import COMPUTE, INPUT, LAUNCH, SYNCHRONISATION

IMBALANCE, PADDING = "imbalance", "padding"
PARTS = (INPUT, SYNCHRONISATION, IMBALANCE, LAUNCH, PADDING, COMPUTE)
SAYS = {
    INPUT: "waiting for pictures",
    SYNCHRONISATION: "summing gradients over the replicas",
    IMBALANCE: "waiting for replicas that are slower in some steps; one that always is counts as compute",
    LAUNCH: "the fixed cost of a step, which no smaller share of the batch makes smaller",
    PADDING: "rows of weight 0 that fill the last step",
    COMPUTE: "arithmetic that takes longer on smaller pieces or shared hardware",
}
"""What a lost part is, in words."""
WORKERS_SAY = SAYS | {
    SYNCHRONISATION: "sending and summing gradients between the workers",
    IMBALANCE: "waiting for workers that are slower in some steps, and the latency of the messages of a sum",
}
"""The same where the replicas are in several processes: to meet takes messages as well."""

NEEDED_COUNTS = 3
LARGEST_ERROR = 0.2
"""A model that misses a measured point by more than this predicts nothing."""


@dataclass(frozen=True)
class Parts:
    """Where the time of an image goes on some number of replicas.

    Args:
        num_replicas: Replicas.
        global_batch_size: Examples of a step, padding included.
        seconds: T(N), seconds an image, from the speed of the training.
        parts: What they go to, seconds an image; they sum to `seconds`.
        input_alone: Seconds an image that the input takes when nobody makes it wait; None where not measured.
        launch_is_known: Whether the fixed cost of a step was measured; otherwise it is in `compute`.
    """

    num_replicas: int
    global_batch_size: int
    seconds: float
    parts: Mapping[str, float]
    input_alone: float | None = None
    launch_is_known: bool = True


def parts_of(records: Sequence[Mapping[str, Any]], images_per_second: float) -> Parts | None:
    """Where the time of one point's runs goes, the mean over its runs; None where no run was probed.

    Args:
        records: Records of runs on the same number of replicas with the same batch.
        images_per_second: Their mean speed.
    """
    probed = [record for record in records if (record.get("verdict") or {}).get("shares")]
    if not probed:
        return None
    shares = [_shares(record) for record in probed]
    seconds = 1 / images_per_second
    batch = probed[0]["batch"]
    size = batch["global_batch_size"] * batch.get("gradient_accumulation", 1)
    alone = [value for record in probed if (value := _numbers(record).get("input_seconds"))]
    return Parts(
        probed[0]["strategy"]["num_replicas"],
        size,
        seconds,
        {name: seconds * statistics.mean(share[name] for share in shares) for name in PARTS},
        statistics.mean(alone) / size if alone else None,
        all(_numbers(record).get("launch_seconds") is not None for record in probed),
    )


def _numbers(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return record["verdict"].get("numbers") or {}


def _shares(record: Mapping[str, Any]) -> dict[str, float]:
    """The verdict's shares with padding and imbalance taken apart; they sum to 1."""
    batch = record["batch"]
    size = batch["global_batch_size"] * batch.get("gradient_accumulation", 1)
    rows = size * (batch.get("steps_per_epoch") or 1)
    padding = (batch.get("padding_rows") or 0) / rows
    shares = {name: 0.0 for name in PARTS} | dict(record["verdict"]["shares"])
    total = sum(shares.values())
    shares = {name: share / total * (1 - padding) for name, share in shares.items()}
    shares[PADDING] = padding
    numbers = _numbers(record)
    barrier, alone = numbers.get("step_seconds_with_barrier"), numbers.get("step_seconds_without_all_reduce")
    together = numbers.get("step_seconds_cached")
    if barrier is not None and alone is not None and together is not None and together > alone:
        # Waiting for the slowest replica is what a meeting costs that sums nothing.
        waiting = min(1.0, max(0.0, barrier - alone) / (together - alone))
        shares[IMBALANCE] = waiting * shares[SYNCHRONISATION]
        shares[SYNCHRONISATION] -= shares[IMBALANCE]
    return shares


def lost(base: Parts, point: Parts) -> dict[str, float]:
    """What is lost between `base` and `point`, as shares of the point's time; they sum to 1 - efficiency.

    A part is lost as far as it did not shrink to base/N of what it was; a negative one was gained.

    >>> base = Parts(1, 32, 1.0, {"compute": 0.9, "launch": 0.1})
    >>> point = Parts(2, 32, 0.8, {"compute": 0.45, "launch": 0.1, "synchronisation": 0.25})
    >>> {name: round(share, 4) for name, share in lost(base, point).items() if share}
    {'synchronisation': 0.3125, 'launch': 0.0625}
    """
    ratio = base.num_replicas / point.num_replicas
    return {name: (point.parts.get(name, 0.0) - ratio * base.parts.get(name, 0.0)) / point.seconds for name in PARTS}


# --- what more replicas would bring -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """The time of a step on N replicas, by its measured parts:

        t(N) = max(launch + compute r(N) + ring 2 (N-1)/N,  input B(N))

    with B(N) the global batch, r(N) = B(N)/N the rows of a replica, and 2 (N-1)/N the share of the gradients that each
    replica sends and receives when they are summed round a ring (Patarasuk and Yuan 2009). With ring = input = 0 and
    a fixed batch it is Amdahl's law, whose serial part is the launch; with a fixed batch a replica Gustafson's.

    Args:
        launch: Seconds of a step that no smaller batch makes smaller.
        compute: Seconds for each row of a replica.
        ring: Seconds of a sum over the replicas at N -> infinity is 2 x this; imbalance is part of it.
        input: Seconds for each row of the global batch, the input alone.
        error: The largest relative miss at the points measured.
    """

    launch: float
    compute: float
    ring: float
    input: float
    error: float = 0.0

    def step_seconds(self, num_replicas: int, global_batch_size: int) -> float:
        """Seconds of a step on that many replicas."""
        return max(sum(self.parts(num_replicas, global_batch_size).values()), self.input * global_batch_size)

    def parts(self, num_replicas: int, global_batch_size: int) -> dict[str, float]:
        """Seconds of a step on data that is there, by what they go to."""
        return {
            LAUNCH: self.launch,
            COMPUTE: self.compute * global_batch_size / num_replicas,
            SYNCHRONISATION: self.ring * 2 * (num_replicas - 1) / num_replicas,
        }

    def bound(self, num_replicas: int, global_batch_size: int) -> str:
        """The part that would take most of a step, beside the arithmetic; `compute` where it outweighs them all."""
        parts = self.parts(num_replicas, global_batch_size)
        if self.input * global_batch_size > sum(parts.values()):
            return INPUT
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True)
class Prediction:
    """What a number of replicas that was not measured would bring, if the model holds.

    Args:
        speed_up: Over the smallest count measured.
        efficiency: Of that.
        bound: What would then take most of a step.
    """

    num_replicas: int
    global_batch_size: int
    images_per_second: float
    speed_up: float
    efficiency: float
    bound: str


def fitted(points: Sequence[Parts]) -> Model | str:
    """The model of the points, by least squares a part; why there is none, in words, where there is none."""
    if len(points) < NEEDED_COUNTS:
        return (
            f"A prediction needs {NEEDED_COUNTS} counts whose steps were probed; there "
            f"{'is' if len(points) == 1 else 'are'} {len(points)}: with fewer nothing would check the model."
        )
    if not all(point.launch_is_known for point in points):
        return "A prediction needs the fixed cost of a step, which was not measured: give probe=true."

    def seconds(point: Parts, *names: str) -> float:
        return point.global_batch_size * sum(point.parts.get(name, 0.0) for name in names)

    rows = [point.global_batch_size / point.num_replicas for point in points]
    ring = [2 * (point.num_replicas - 1) / point.num_replicas for point in points]
    model = Model(
        launch=statistics.mean(seconds(point, LAUNCH) for point in points),
        compute=_slope(rows, [seconds(point, COMPUTE, PADDING) for point in points]),
        ring=_slope(ring, [seconds(point, SYNCHRONISATION, IMBALANCE) for point in points]),
        input=statistics.mean([point.input_alone for point in points if point.input_alone is not None] or [0.0]),
    )
    misses = [
        model.step_seconds(point.num_replicas, point.global_batch_size) / (point.seconds * point.global_batch_size) - 1
        for point in points
    ]
    error = max(abs(miss) for miss in misses)
    if error > LARGEST_ERROR:
        worst = max(zip(misses, points, strict=True), key=lambda pair: abs(pair[0]))
        where = plural(worst[1].num_replicas, "replica")
        return (
            f"No prediction: the model misses the speed measured on {where} by {error:.0%}, more than "
            f"{LARGEST_ERROR:.0%}."
        )
    return Model(model.launch, model.compute, model.ring, model.input, error)


def _slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Least squares of y = slope x."""
    squares = sum(x * x for x in xs)
    return max(0.0, sum(x * y for x, y in zip(xs, ys, strict=True)) / squares) if squares else 0.0


def predict(model: Model, points: Sequence[Parts], *, fixed_batch: bool, each: int = 1) -> list[Prediction]:
    """What the next counts would bring, from the largest measured one on: 8 and 16, or the next two doublings.

    Args:
        points: What the model was fitted to, ascending.
        fixed_batch: Whether the global batch is fixed (strong scaling) or that of a replica.
        each: Replicas of a worker, of which the counts are multiples.
    """
    base, last = points[0], points[-1]
    counts = [each * count for count in (8, 16) if each * count > last.num_replicas]
    counts = counts if len(counts) == 2 else [2 * last.num_replicas, 4 * last.num_replicas]
    found = []
    for count in counts:
        size = last.global_batch_size
        if not fixed_batch:
            size = size * count // last.num_replicas
        elif size % count:
            continue  # the batch does not split over that many
        # Anchored at the largest count measured: what the model misses there it does not add.
        measured = model.step_seconds(last.num_replicas, last.global_batch_size) / last.global_batch_size
        an_image = last.seconds * (model.step_seconds(count, size) / size) / measured
        speed_up = base.seconds / an_image
        found.append(
            Prediction(
                count,
                size,
                1 / an_image,
                speed_up,
                speed_up * base.num_replicas / count,
                model.bound(count, size),
            )
        )
    return found
