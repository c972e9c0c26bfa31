"""Did more replicas pay: a study's records in, speed-up, efficiency, losses, predictions and equality out."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from manyfit.report.claims import Estimate, mean
from manyfit.report.pairs import STRONG, WEAK, marks
from manyfit.report.ring import Link, Outlook, outlook
from manyfit.report.runs import Run
from manyfit.report.scaling_equality import equality, tolerance
from manyfit.report.scaling_losses import Model, Parts, fitted, lost, parts_of, predict
from manyfit.report.scaling_result import ModeResult, Scaling, ScalingPoint, Training
from manyfit.schema.cost import CostConfig

BOTH = "both"
MODES = (STRONG, WEAK)


def scaling(
    trainings: Sequence[Training],
    *,
    precision: str = "float32",
    price: CostConfig | None = None,
    target_accuracy: float | None = None,
    failures: Mapping[str, str] | None = None,
    link: Link | None = None,
) -> Scaling:
    """All that the records of a study allow to be said.

    Args:
        precision: Of all of them, for what rounding explains.
        price: Of the machine; None where it is not known: then nothing is said about cost.
        target_accuracy: To measure the time to; by default the highest that every run reached.
        failures: What did not finish.
        link: Between machines, for the outlook; None for none.
    """
    if target_accuracy is None:
        reached = [training.best_val_accuracy for training in trainings]
        known = [accuracy for accuracy in reached if accuracy is not None]
        target_accuracy = min(known) if known and len(known) == len(reached) else None
    measured = [training for training in trainings if training.images_per_second]
    results, unlike = [], {}
    for mode in MODES:
        own = [training for training in measured if training.mode == mode]
        if own:
            base = min(own, key=lambda training: (training.num_replicas, training.repeat))
            why = {one.run.name: blocked for one in own if (blocked := _not_comparable(one.run, base.run))}
            unlike |= why
            own = [training for training in own if training.run.name not in why]
            results.append(_mode(mode, own, precision, price, target_accuracy))
    devices = max((one.run.devices for one in trainings), key=len)
    short = dict.fromkeys(one.run.name for one in trainings if not one.images_per_second)
    return Scaling(
        tuple(results),
        on_gpu=any(one.run.on_gpu for one in trainings),
        devices=devices,
        rehearsal=any(one.run.rehearsal for one in trainings),
        target_accuracy=target_accuracy,
        unmeasured=tuple(short),
        failures={**(failures or {}), **unlike},
        unit=trainings[0].unit,
        across_machines=any(one.run.num_machines > 1 for one in trainings),
        outlook=_outlook(measured, link),
    )


def _outlook(trainings: Sequence[Training], link: Link | None) -> Outlook | None:
    """What more machines would bring: from the one worker, or from all replicas of the one process."""
    if link is None or not trainings:
        return None
    unit = trainings[0].unit
    on_one = [one for one in trainings if not unit.is_worker or one.num_replicas == unit.replicas]
    most = max((one.num_replicas for one in on_one), default=0)
    own = [one for one in on_one if one.num_replicas == most]
    # Of one kind of scaling, whose steps have one size.
    own = [one for one in own if one.mode == own[0].mode]
    return outlook([one.record for one in own], _mean_speed(own), link) if own else None


def _not_comparable(run: Run, base: Run) -> str:
    """What stands against comparing a run with one of the smallest count, in words; empty where nothing does."""
    found = [mark.text for mark in marks(run, base) if mark.blocks]
    return f"not compared with {base.name}: {'; '.join(found)}" if found else ""


def _mode(
    mode: str, trainings: Sequence[Training], precision: str, price: CostConfig | None, target_accuracy: float | None
) -> ModeResult:
    counts = sorted({training.num_replicas for training in trainings})
    by_count = {n: sorted((one for one in trainings if one.num_replicas == n), key=lambda t: t.repeat) for n in counts}
    base = by_count[counts[0]]
    parts = {
        # The speed that the speed-up says, so that what is lost sums to what the efficiency lacks.
        n: parts_of([one.record for one in own], _mean_speed(base) * statistics.geometric_mean(_ratios(base, own)))
        for n, own in by_count.items()
    }
    points: list[ScalingPoint] = []
    for own in by_count.values():
        points.append(_point(mode, own, base, parts, price, target_accuracy, points[-1] if points else None))
    known = [found for n in counts if (found := parts[n]) is not None]
    model = fitted(known)
    unit = trainings[0].unit
    predictions = []
    if isinstance(model, Model):
        predictions = predict(model, known, fixed_batch=mode == STRONG, each=unit.replicas)
    limit = tolerance(precision, trainings[0].run.devices)
    return ModeResult(
        mode,
        tuple(points),
        tuple(predictions),
        model if isinstance(model, Model) else None,
        "" if isinstance(model, Model) else model,
        tuple(equality(n, counts[0], _pairs(base, by_count[n]), limit=limit, weak=mode == WEAK) for n in counts[1:]),
        unit,
    )


def _point(
    mode: str,
    own: Sequence[Training],
    base: Sequence[Training],
    parts: Mapping[int, Parts | None],
    price: CostConfig | None,
    target_accuracy: float | None,
    before: ScalingPoint | None,
) -> ScalingPoint:
    first, count = own[0], own[0].num_replicas
    batch = first.record["batch"]
    ratios = _ratios(base, own)
    more = count / base[0].num_replicas
    speed_up = _geometric_mean(ratios)
    added = None
    if before is not None:
        gained = speed_up.value / before.speed_up.value - 1
        added = gained / (count / before.num_replicas - 1)
    here, there = parts[count], parts[base[0].num_replicas]
    seconds, base_seconds = (_seconds([one.seconds for one in runs]) for runs in (own, base))
    known = seconds is not None and base_seconds is not None and mode == STRONG
    reach = [one.seconds_to(target_accuracy) for one in own] if target_accuracy is not None else []
    reached = [took for took in reach if took is not None]
    return ScalingPoint(
        num_replicas=count,
        mode=mode,
        repeats=len(own),
        global_batch_size=batch["global_batch_size"],
        per_replica_batch_size=batch["per_replica_batch_size"],
        images_per_second=_geometric_mean([one.images_per_second or 0.0 for one in own]),
        speed_up=speed_up,
        efficiency=speed_up.scaled(1 / more),
        best_val_accuracy=_accuracy(own),
        seconds=seconds,
        time_ratio=base_seconds.value / seconds.value if known else None,  # pyright: ignore[reportOptionalMemberAccess]
        seconds_to_accuracy=_seconds(reached) if len(reached) == len(own) else None,
        added_efficiency=added,
        lost=lost(there, here) if here is not None and there is not None else None,
        bound=(first.record.get("verdict") or {}).get("bound"),
        cost=_mean_of([one.cost(price, one.seconds) for one in own]),
        cost_to_accuracy=_mean_of([one.cost(price, took) for one, took in zip(own, reach, strict=False)]),
        run=first.run.key,
        runs=tuple(one.run.key for one in own),
        num_workers=first.unit.of(count) if first.unit.is_worker else None,
    )


def _mean_speed(trainings: Sequence[Training]) -> float:
    return sum(one.images_per_second or 0.0 for one in trainings) / len(trainings)


def _pairs(base: Sequence[Training], own: Sequence[Training]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    seeds = {training.repeat: training.record for training in base}
    return [(seeds[training.repeat], training.record) for training in own if training.repeat in seeds]


def _ratios(base: Sequence[Training], own: Sequence[Training]) -> list[float]:
    """Speed over that of the smallest count in the same round, or over its mean where that round lacks one."""
    speeds = {training.repeat: training.images_per_second for training in base}
    mean = _mean_speed(base)
    return [(one.images_per_second or 0.0) / (speeds.get(one.repeat) or mean) for one in own]


def _geometric_mean(values: Sequence[float]) -> Estimate:
    """The mean of logarithms, so that no interval of what is positive reaches below 0."""
    logs = mean([math.log(value) for value in values])
    ends = [None if end is None else math.exp(end) for end in (logs.low, logs.high)]
    return Estimate(math.exp(logs.value), ends[0], ends[1], logs.samples)


def _seconds(values: Sequence[float | None]) -> Estimate | None:
    known = [value for value in values if value]
    return _geometric_mean(known) if known else None


def _mean_of(values: Sequence[float | None]) -> float | None:
    """The mean; None where one is missing or there is none."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def _accuracy(trainings: Sequence[Training]) -> Estimate | None:
    """The mean of the best accuracies; its interval ends where accuracies do."""
    known = [value for training in trainings if (value := training.best_val_accuracy) is not None]
    if not known:
        return None
    found = mean(known)
    if found.low is None or found.high is None:
        return found
    return Estimate(found.value, max(0.0, found.low), min(1.0, found.high), found.samples)
