"""A scaling study in words: the recommendation, what it rests on, predictions, and whether the result is the same."""

from collections.abc import Sequence
from dataclasses import dataclass

from manyfit.console import plural
from manyfit.report.cost import money
from manyfit.report.pairs import STRONG, WEAK
from manyfit.report.scaling_equality import DIFFERENT, DRIFTS, EQUAL, NOT_COMPARED, Equality
from manyfit.report.scaling_losses import LARGEST_ERROR, SAYS
from manyfit.report.scaling_result import ModeResult, Scaling, ScalingPoint
from manyfit.schema.cost import CostConfig

WORTH = 0.5
"""Added replicas are worth their price where they do at least this part of what they could."""

LEAST_GAIN = 0.02
"""A gain below this is noise, whatever the repeats say: there are few of them."""

NO_GPU = (
    "Logical devices share one CPU: these numbers rehearse the study, and measure no GPU. Nothing follows from them "
    "for the speed, efficiency or price of GPUs."
)
REHEARSAL = (
    "The pictures were drawn by code, not photographed: the speed is real, the accuracy says nothing about data."
)
EXPLAINS = {
    STRONG: "the batch of a step is the same at every count, and so is the training",
    WEAK: "each replica keeps its batch, so that a step grows with the count",
}


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
    paid_for = price is not None and price.per == "machine"
    chosen, sentence = _sentence(result.points, 0.0 if paid_for else WORTH)
    currency = price.currency if price is not None else ""
    details = [*_price(result.points, chosen, currency, on_gpu=found.on_gpu), *_lost(result.points[-1])]
    details += [equality_words(one) for one in result.equality if one.verdict != NOT_COMPARED]
    details += _accuracy(result)
    if not found.on_gpu:
        sentence = f"A rehearsal on one CPU, which measures no GPU. Here: {sentence[0].lower()}{sentence[1:]}"
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


def _sentence(points: Sequence[ScalingPoint], worth: float) -> tuple[ScalingPoint, str]:
    """The count to take, and the answer."""
    base = chosen = points[0]
    after, why = None, ""
    for point in points[1:]:
        why = _why_not(chosen, point, worth)
        if why:
            after = point
            break
        chosen = point
    what = f"{chosen.speed_up.value:.2f}x the speed of {base.num_replicas} ({chosen.efficiency.value:.0%} efficient)"
    what += _against_the_price(base, chosen)
    if after is None:
        return chosen, f"More replicas pay: {_replicas(chosen.num_replicas)} run at {what}."
    added = after.num_replicas - chosen.num_replicas
    number = {1: "second", 2: "third", 3: "fourth"}.get(chosen.num_replicas)
    more = f"the {number} one" if added == 1 and number else f"{added} more"
    gain, devices = after.speed_up.value / chosen.speed_up.value, after.num_replicas / chosen.num_replicas
    little = f"{gain:.2f}x the speed for {devices:.2g}x the replicas, {why}"
    if chosen is base:
        return chosen, f"More replicas do not pay: {more} would bring {little}."
    return chosen, f"{_replicas(chosen.num_replicas)} pay: {what}. Beyond that, {more} would bring {little}."


def _price(points: Sequence[ScalingPoint], chosen: ScalingPoint, currency: str, *, on_gpu: bool) -> list[str]:
    base = points[0]
    if base.cost is None or chosen.cost is None:
        if not on_gpu:
            return []
        return ["No price is known: give cost.price_per_hour, and the study says what a run costs on each count."]
    said = [f"{point.num_replicas}: {money(point.cost, currency)}" for point in points if point.cost is not None]
    return [f"A run costs, by replicas, {', '.join(said)}."]


def _against_the_price(base: ScalingPoint, chosen: ScalingPoint) -> str:
    """The second half of an answer that says to take more replicas."""
    if not base.cost or chosen.cost is None:
        return ""
    change = chosen.cost / base.cost - 1
    if abs(change) < LEAST_GAIN:
        return ", and a run costs the same"
    return f", and a run costs {abs(change):.0%} {'more' if change > 0 else 'less'}"


def _lost(point: ScalingPoint) -> list[str]:
    if point.lost is None:
        return ["Where the lost time goes was not measured: give probe=true."]
    parts = sorted(((share, name) for name, share in point.lost.items() if share >= 0.01), reverse=True)
    if not parts:
        return [f"On {_replicas(point.num_replicas)} next to nothing is lost."]
    said = [f"{share:.0%} {name} ({SAYS[name]})" for share, name in parts]
    return [
        f"On {_replicas(point.num_replicas)} {1 - point.efficiency.value:.0%} of the time is lost: {', '.join(said)}."
    ]


def _accuracy(result: ModeResult) -> list[str]:
    base, last = result.points[0], result.points[-1]
    if result.mode == STRONG or base.best_val_accuracy is None or last.best_val_accuracy is None:
        return []
    points = 100 * (last.best_val_accuracy.value - base.best_val_accuracy.value)
    return [
        f"The best validation accuracy is {points:+.2f} points on {_replicas(last.num_replicas)}, whose step is "
        "larger: another learning rate may suit it (schedule.scale_with=linear)."
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
    if not found.on_gpu:
        lines.append(NO_GPU)
    if found.rehearsal:
        lines.append(REHEARSAL)
    return tuple(lines)


def _replicas(count: int) -> str:
    return plural(count, "replica")


def equality_words(one: Equality) -> str:
    """Whether a count gave the result of the smallest, with what was compared and how closely."""
    if one.verdict == NOT_COMPARED:
        return f"{_replicas(one.num_replicas)}: the result was not compared ({one.why})."
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
        f"{_replicas(one.num_replicas)}: {verdict} as {_replicas(one.compared_with)}: {one.why} (training and "
        f"validation loss of every epoch, same seed, {pairs}: {one.first_difference:.1e} relative in epoch 1, "
        f"{one.largest_difference:.1e} at most, tolerance {one.tolerance:.0e}{accuracy})."
    )


def prediction_words(result: ModeResult) -> list[str]:
    """What would come, labelled as what it is; why there is none where there is none."""
    if result.model is None:
        return [result.no_prediction]
    lines = [
        f"PREDICTION, not measured: {_replicas(one.num_replicas)} would run at {one.speed_up:.2f}x the speed of "
        f"{result.points[0].num_replicas} ({one.efficiency:.0%} efficient), bound by {one.bound}."
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
