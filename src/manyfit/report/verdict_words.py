"""A comparison in sentences that a colleague would say."""

from collections.abc import Sequence

from manyfit.console import decimal, plural, seconds
from manyfit.report import pairs
from manyfit.report.comparison import Claim, Comparison, Group
from manyfit.report.cost import money
from manyfit.report.page import cut
from manyfit.report.runs import Run
from manyfit.report.verdict import COMPUTE

_WIDE = 1.5
"""Ends of an interval of a ratio that are further apart than this factor."""
_TIMES_DIFFER_FROM = 0.1
"""From this relative difference on, the whole run's gain is told beside the speed-up."""


def headline(comparison: Comparison) -> str:
    """The verdict in one sentence: of the claim with the most replicas, of these the fastest."""
    best = leading(comparison)
    if best is not None:
        return sentence(best, comparison)
    if not comparison.claims:
        group = comparison.baseline
        return f"Nothing to compare with: {alone(group)}"
    about = dict.fromkeys(mark.about for claim in comparison.claims for mark in claim.marks if mark.blocks)
    reasons = [mark.text for claim in comparison.claims for mark in claim.marks if mark.blocks]
    said = reasons[0] if len(set(reasons)) == 1 else f"they differ in {_listed(list(about))}"
    return f"No speed-up can be claimed: {said}."


def leading(comparison: Comparison) -> Claim | None:
    """The claim that the headline is about; None where nothing can be claimed."""
    known = [claim for claim in comparison.claims if claim.comparable]
    return max(
        known,
        key=lambda claim: (
            claim.speed_up is not None,
            claim.group.first.num_replicas or 0,
            claim.speed_up.value if claim.speed_up else 0.0,
        ),
        default=None,
    )


def details(comparison: Comparison) -> list[str]:
    """What the headline leaves out: the other claims, what can't be compared, what it rests on."""
    best = leading(comparison)
    known = bound(best.group.runs) if best else ""
    lines = [
        sentence(claim, comparison, with_bound=bound(claim.group.runs) != known)
        for claim in comparison.claims
        if claim.comparable and claim is not best
    ]
    for claim in comparison.claims:
        if not claim.comparable:
            why = "; ".join(mark.text for mark in claim.marks if mark.blocks)
            lines.append(f"{claim.group.name} can't be compared with {claim.baseline.name}: {why}.")
    compared = [comparison.baseline, *(claim.group for claim in comparison.claims if claim.comparable)]
    if len(compared) > 1:
        lines.append(_rests_on(comparison.baseline, compared))
        texts = dict.fromkeys(
            mark.text for claim in comparison.claims if claim.comparable for mark in claim.marks if not mark.blocks
        )
        lines += [f"Mind that {text}." for text in texts]
    return lines


def sentence(claim: Claim, comparison: Comparison, *, with_bound: bool = True) -> str:
    """One claim in one sentence; `with_bound` says what bounds its runs, too."""
    parts = [_speed(claim), _efficiency(claim), _whole_run(claim), _accuracy(claim), _cost(claim)]
    said = ", ".join(part for part in parts if part)
    why = bound(claim.group.runs) if with_bound else ""
    samples = " One sample each." if _one_each(claim) else ""
    samples += " A rehearsal on drawn pictures." if claim.group.first.rehearsal else ""
    return f"{subject(claim, comparison)}: {said}{f'; {why}' if why else ''}.{samples}"


def subject(claim: Claim, comparison: Comparison) -> str:
    """What is compared: the replicas, the settings that differ, or the name."""
    run, baseline = claim.group.first, claim.baseline.first
    values = pairs.differing([baseline, run])
    settings = ", ".join(f"{key}={_value(values[key][1])}" for key in claim.other_settings[:2])
    settings += f" and {len(claim.other_settings) - 2} more" if len(claim.other_settings) > 2 else ""
    alike = [one for one in comparison.claims if one.group.first.num_replicas == run.num_replicas]
    if run.num_replicas == baseline.num_replicas:
        batch = ""
        if run.examples_per_step != baseline.examples_per_step:
            batch = f"{_count(run.examples_per_step)} images a step instead of {_count(baseline.examples_per_step)}"
        said = [part for part in (settings, batch) if part]
        return ", ".join(said) or cut(claim.group.name, 60)
    said = plural(run.num_replicas, "replica") + (f" with {settings}" if settings else "")
    return said if len(alike) < 2 or settings else f"{said} ({cut(claim.group.name)})"


def alone(group: Group) -> str:
    """A group in one sentence where there is nothing to compare it with."""
    run = group.first
    parts = [plural(run.num_replicas, "replica")]
    if speed := group.mean(lambda one: one.images_per_second):
        parts.append(f"{speed.value:,.0f} images/s")
    if accuracy := group.mean(lambda one: one.best_accuracy):
        parts.append(f"validation accuracy {decimal(accuracy.value)}")
    if total := group.mean(lambda one: one.total_seconds):
        parts.append(f"{seconds(total.value)} in all")
    why = bound(group.runs)
    ended = "" if run.finished else f" ({pairs.how_it_ended(run)})"
    return f"{', '.join(parts)}{ended}{f'; {why}' if why else ''}."


def times(value: float) -> str:
    """A ratio with three digits at most.

    >>> times(3.618), times(0.8123), times(12.34), times(0.031)
    ('3.6x', '0.81x', '12x', '0.031x')
    """
    if value >= 10:
        return f"{value:.0f}x"
    return f"{value:.1f}x" if value >= 1.95 else f"{value:.2f}x" if value >= 0.1 else f"{value:.2g}x"


def points(share: float) -> str:
    """A difference of accuracies in percentage points: `+0.2 pt`."""
    value = round(100 * share, 1)
    return f"{value + 0.0:+.1f} pt"


def _speed(claim: Claim) -> str:
    found = claim.speed_up
    if found is None:
        profiled = any(mark.about == "speed" and "profiled" in mark.text for mark in claim.marks)
        return "no speed, since an epoch was profiled" if profiled else "too short to measure a speed"
    interval = f"95 %: {times(found.low)} to {times(found.high)}" if found.low and found.high else ""
    if claim.is_faster is None:
        told = f"{times(found.value)}{f', {interval}' if interval else ''}"
        return f"speed too uncertain to tell ({told})" if _uncertain(claim) else f"no faster than the noise ({told})"
    if claim.is_faster:
        return f"{times(found.value)} faster{f' ({interval})' if interval else ''}"
    return f"slower, {times(found.value)} the speed{f' ({interval})' if interval else ''}"


def _uncertain(claim: Claim) -> bool:
    """Whether the interval of the speed-up holds 1 and so much else that its middle says nothing."""
    found = claim.speed_up
    return claim.is_faster is None and bool(found and found.low and found.high and found.high > _WIDE * found.low)


def _efficiency(claim: Claim) -> str:
    kind = {
        pairs.STRONG: "strong scaling",
        pairs.WEAK: "weak scaling",
        pairs.MIXED: "both batch sizes changed",
        None: "",
    }[claim.scaling]
    run, baseline = claim.group.first, claim.baseline.first
    if claim.scaling in (pairs.WEAK, pairs.MIXED):
        kind += f": {_count(run.examples_per_step)} images a step instead of {_count(baseline.examples_per_step)}"
    if claim.efficiency is None or _uncertain(claim):
        return kind
    return f"{claim.efficiency.value * 100:.0f} % efficient ({kind})"


def _whole_run(claim: Claim) -> str:
    if claim.whole_run is None or claim.speed_up is None or _uncertain(claim):
        return ""
    whole = claim.whole_run.value
    if abs(whole / claim.speed_up.value - 1) < _TIMES_DIFFER_FROM:
        return ""
    if abs(whole - 1) < 0.02:
        return "the whole run takes as long"
    change = 1 / whole - 1
    return f"the whole run takes {abs(change) * 100:.0f} % {'less' if change < 0 else 'more'} time"


def _accuracy(claim: Claim) -> str:
    if claim.accuracy is None:
        return ""
    change = points(claim.accuracy.value)
    if claim.accuracy_is_noise is None:
        return f"accuracy {change}"
    if claim.accuracy_is_noise:
        return f"accuracy within noise ({change})"
    return f"accuracy {'better' if claim.accuracy.value > 0 else 'worse'} by {change.lstrip('+-')}"


def _cost(claim: Claim) -> str:
    if claim.cost is None or claim.currency is None:
        return ""
    amount = claim.cost.value
    text = money(abs(amount), claim.currency)
    if amount == 0 or not any(digit in "123456789" for digit in text):
        return "the same cost per run"
    return f"{text} {'less' if amount < 0 else 'more'} per run"


def bound(runs: Sequence[Run]) -> str:
    """What bounds the run that was probed last, and what to try, from its record."""
    found = [run.verdict for run in runs if run.verdict.get("bound")]
    if not found:
        return ""
    name, advice = found[-1]["bound"], found[-1].get("advice")
    named = "bound by its arithmetic" if name == COMPUTE else f"bound by {name}"
    return f"{named}: {advice}" if advice else named


def _rests_on(baseline: Group, compared: Sequence[Group]) -> str:
    counts = [len(group.runs) for group in compared]
    against = f"Compared with {baseline.name} ({plural(baseline.first.num_replicas, 'replica')})"
    if max(counts) == 1:
        return f"{against}: one run each; repeats with other seeds (seed=1, seed=2) would tell how sure this is."
    numbers = _listed([str(count) for count in counts])
    if min(counts) == 1:
        return f"{against}: {numbers} runs; no interval where one side is a single run."
    return f"{against}: {numbers} runs; intervals are 95 % (Student's t)."


def _one_each(claim: Claim) -> bool:
    return len(claim.group.runs) == len(claim.baseline.runs) == 1


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _value(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else cut(str(value))


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"
