"""A scaling study in words: the recommendation, what it rests on, predictions, and whether the result is the same."""

from collections.abc import Sequence
from dataclasses import dataclass

from manyfit.console import plural
from manyfit.report.cost import money
from manyfit.report.pairs import STRONG, WEAK
from manyfit.report.scaling_equality import DIFFERENT, DRIFTS, EQUAL, NOT_COMPARED, Equality
from manyfit.report.scaling_losses import LARGEST_ERROR, SAYS, WORKERS_SAY
from manyfit.report.scaling_result import ModeResult, Scaling, ScalingPoint
from manyfit.report.scaling_units import REPLICAS, Unit
from manyfit.schema.cost import CostConfig

WORTH = 0.5
"""Added replicas are worth their price where they do at least this part of what they could."""

LEAST_GAIN = 0.02
"""A gain below this is noise, whatever the repeats say: there are few of them."""

NO_GPU = (
    "Logical devices share one CPU: these numbers rehearse the study, and measure no GPU. Nothing follows from them "
    "for the speed, efficiency or price of GPUs."
)
NO_NETWORK = (
    "The workers are processes of one machine that share its cores and talk over loopback: these numbers rehearse the "
    "study, and measure no GPU and no network. Nothing follows for the speed, efficiency or price of several machines."
)
ONE_MACHINE = (
    "The workers are processes of one machine: these numbers measure its GPUs, and no network between machines."
)
REHEARSAL = (
    "The pictures were drawn by code, not photographed: the speed is real, the accuracy says nothing about data."
)
EXPLAINS = {
    STRONG: "the batch of a step is the same at every count, and so is the training",
    WEAK: "each replica keeps its batch, so that a step grows with the count",
}


def caveats_of_place(found: Scaling) -> tuple[str, ...]:
    """What the devices of a study, or its pictures, do not allow to be concluded."""
    lines = []
    if found.shares_a_cpu:
        lines.append(NO_NETWORK if found.unit.is_worker else NO_GPU)
    elif found.unit.is_worker and not found.across_machines:
        lines.append(ONE_MACHINE)
    return (*lines, REHEARSAL) if found.rehearsal else tuple(lines)


@dataclass(frozen=True)
class Recommendation:
    """What to do.

    Args:
        num_replicas: To train on; None where the study can't say.
        sentence: The answer.
        details: What it rests on, a sentence each.
    """

    num_replicas: int | None
    sentence: str
    details: tuple[str, ...]


def recommend(found: Scaling, price: CostConfig | None = None) -> Recommendation:
    """Whether the second device, and those after it, are worth their price.

    A count is worth it where every step up to it brought more than the noise, and the replicas that it added did at
    least half of what they could. Where the price is the whole machine's, its devices are paid for: any gain will do.
    Strong scaling decides where both kinds were measured.

    Args:
        price: What the costs were made from.
    """
    result = found.mode(STRONG) or found.mode(WEAK)
    if result is None or len(result.points) < 2:
        why = "One count was measured" if result is not None else "Nothing was measured"
        return Recommendation(None, f"{why}: there is nothing to compare.", _caveats(found))
    paid_for = price is not None and price.per == "machine" and not found.across_machines
    unit = found.unit
    chosen, sentence = _sentence(result.points, 0.0 if paid_for else WORTH, unit)
    currency = price.currency if price is not None else ""
    details = [*_price(result.points, chosen, currency, unit, known=not found.shares_a_cpu)]
    details += _lost(result.points[-1], unit)
    details += [equality_words(one, unit) for one in result.equality if one.verdict != NOT_COMPARED]
    details += _accuracy(result)
    if found.shares_a_cpu:
        no = "network" if unit.is_worker else "GPU"
        sentence = f"A rehearsal on one CPU, which measures no {no}. Here: {sentence[0].lower()}{sentence[1:]}"
        return Recommendation(None, sentence, (*details, *_caveats(found)))
    return Recommendation(chosen.num_replicas, sentence, (*details, *_caveats(found)))


def _why_not(before: ScalingPoint, after: ScalingPoint, worth: float) -> str:
    """What speaks against going from one count to the next; empty where it is worth it."""
    least = after.speed_up.value if after.speed_up.low is None else after.speed_up.low
    if after.speed_up.value < before.speed_up.value * (1 + LEAST_GAIN):
        return "nothing beyond the noise"
    if least <= before.speed_up.value:
        return "which these repeats cannot tell from noise"
    share = after.added_efficiency or 0.0
    return f"{share:.0%} of what they could add" if share < worth else ""


def _sentence(points: Sequence[ScalingPoint], worth: float, unit: Unit) -> tuple[ScalingPoint, str]:
    """The count to take, and the answer."""
    base = chosen = points[0]
    after, why = None, ""
    for point in points[1:]:
        why = _why_not(chosen, point, worth)
        if why:
            after = point
            break
        chosen = point
    what = f"{chosen.speed_up.value:.2f}x the speed of {unit.of(base.num_replicas)} "
    what += f"({chosen.efficiency.value:.0%} efficient)"
    what += _against_the_price(base, chosen)
    if after is None:
        return chosen, f"More {unit.plural} pay: {unit.words(chosen.num_replicas)} run at {what}."
    added = unit.of(after.num_replicas - chosen.num_replicas)
    number = {1: "second", 2: "third", 3: "fourth"}.get(unit.of(chosen.num_replicas))
    more = f"the {number} one" if added == 1 and number else f"{added} more"
    gain, devices = after.speed_up.value / chosen.speed_up.value, after.num_replicas / chosen.num_replicas
    little = f"{gain:.2f}x the speed for {devices:.2g}x the {unit.plural}, {why}"
    if chosen is base:
        return chosen, f"More {unit.plural} do not pay: {more} would bring {little}."
    return chosen, f"{unit.words(chosen.num_replicas)} pay: {what}. Beyond that, {more} would bring {little}."


def _price(
    points: Sequence[ScalingPoint], chosen: ScalingPoint, currency: str, unit: Unit, *, known: bool
) -> list[str]:
    base = points[0]
    if base.cost is None or chosen.cost is None:
        if not known:
            return []
        return ["No price is known: give cost.price_per_hour, and the study says what a run costs on each count."]
    said = [f"{unit.of(one.num_replicas)}: {money(one.cost, currency)}" for one in points if one.cost is not None]
    return [f"A run costs, by {unit.plural}, {', '.join(said)}."]


def _against_the_price(base: ScalingPoint, chosen: ScalingPoint) -> str:
    """The second half of an answer that says to take more replicas."""
    if not base.cost or chosen.cost is None:
        return ""
    change = chosen.cost / base.cost - 1
    if abs(change) < LEAST_GAIN:
        return ", and a run costs the same"
    return f", and a run costs {abs(change):.0%} {'more' if change > 0 else 'less'}"


def _lost(point: ScalingPoint, unit: Unit) -> list[str]:
    if point.lost is None:
        return ["Where the lost time goes was not measured: give probe=true."]
    parts = sorted(((share, name) for name, share in point.lost.items() if share >= 0.01), reverse=True)
    if not parts:
        return [f"On {unit.words(point.num_replicas)} next to nothing is lost."]
    says = WORKERS_SAY if unit.is_worker else SAYS
    said = [f"{share:.0%} {name} ({says[name]})" for share, name in parts]
    return [
        f"On {unit.words(point.num_replicas)} {1 - point.efficiency.value:.0%} of the time is lost: {', '.join(said)}."
    ]


def _accuracy(result: ModeResult) -> list[str]:
    base, last = result.points[0], result.points[-1]
    if result.mode == STRONG or base.best_val_accuracy is None or last.best_val_accuracy is None:
        return []
    points = 100 * (last.best_val_accuracy.value - base.best_val_accuracy.value)
    return [
        f"The best validation accuracy is {points:+.2f} points on {result.unit.words(last.num_replicas)}, whose step "
        "is larger: another learning rate may suit it (schedule.scale_with=linear)."
    ]


def _caveats(found: Scaling) -> tuple[str, ...]:
    lines = []
    if any(point.repeats == 1 for point in found.points):
        lines.append("A count that ran once is one sample, without an interval: repeats=3 gives one.")
    if found.failures:
        count = len(found.failures)
        lines.append(
            f"{plural(count, 'training')} failed or cannot be compared, and {'is' if count == 1 else 'are'} left out."
        )
    if found.unmeasured:
        count = plural(len(found.unmeasured), "training")
        lines.append(f"{count} too short to measure a speed: give more epochs or data.")
    return (*lines, *caveats_of_place(found))


def equality_words(one: Equality, unit: Unit = REPLICAS) -> str:
    """Whether a count gave the result of the smallest, with what was compared and how closely."""
    if one.verdict == NOT_COMPARED:
        return f"{unit.words(one.num_replicas)}: the result was not compared ({one.why})."
    verdict = {
        EQUAL: "the same result",
        DRIFTS: "the same result at first",
        DIFFERENT: "NOT the same result",
    }[one.verdict]
    pairs = "1 pair of runs" if one.pairs == 1 else f"{one.pairs} pairs of runs"
    accuracy = ""
    if one.accuracy_difference is not None:
        accuracy = f"; best validation accuracies within {100 * one.accuracy_difference:.2f} points"
    return (
        f"{unit.words(one.num_replicas)}: {verdict} as {unit.words(one.compared_with)}: {one.why} (training and "
        f"validation loss of every epoch, same seed, {pairs}: {one.first_difference:.1e} relative in epoch 1, "
        f"{one.largest_difference:.1e} at most, tolerance {one.tolerance:.0e}{accuracy})."
    )


def prediction_words(result: ModeResult) -> list[str]:
    """What would come, labelled as what it is; why there is none where there is none."""
    if result.model is None:
        return [result.no_prediction]
    lines = [
        f"PREDICTION, not measured: {result.unit.words(one.num_replicas)} would run at {one.speed_up:.2f}x the speed "
        f"of {result.unit.of(result.points[0].num_replicas)} ({one.efficiency:.0%} efficient), bound by {one.bound}."
        for one in result.predictions
    ]
    lines = lines or ["No further count divides the batch of a step: give a larger batch.global_batch_size."]
    return [*lines, model_words(result)]


def model_words(result: ModeResult) -> str:
    """The model of the predictions with its numbers."""
    model = result.model
    if model is None:
        return result.no_prediction
    return (
        "Model: a step takes max(launch + compute x rows of a replica + ring x 2(N-1)/N, input x rows of the step), "
        f"with launch {1e3 * model.launch:.3g} ms, compute {1e6 * model.compute:.3g} µs a row, ring "
        f"{1e3 * model.ring:.3g} ms, input {1e6 * model.input:.3g} µs a row, each a least-squares fit of the measured "
        f"parts. It misses the measured speeds by at most {model.error:.0%} (above {LARGEST_ERROR:.0%} it would "
        "predict nothing), and knows nothing of other machines, links between machines, or memory that runs out."
    )
