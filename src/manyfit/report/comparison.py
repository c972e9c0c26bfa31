"""Did it pay: runs in, every claim that they allow out, and the verdict in a sentence."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from manyfit.console import why_no_speed
from manyfit.errors import UserError
from manyfit.report import claims, pairs
from manyfit.report.claims import Estimate
from manyfit.report.cost import Cost, cost_of, price_of
from manyfit.report.pairs import Mark
from manyfit.report.runs import Run
from manyfit.report.system_samples import number


@dataclass(frozen=True)
class Group:
    """A run and its repeats: the same but for seed and chance."""

    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        """The run that stands for all."""
        return self.runs[0]

    @property
    def name(self) -> str:
        """The first run's name, and how many more there are."""
        return self.first.name if len(self.runs) == 1 else f"{self.first.name} and {len(self.runs) - 1} more"

    @property
    def short_name(self) -> str:
        """The same with as few letters as can be."""
        return self.first.name if len(self.runs) == 1 else f"{self.first.name} +{len(self.runs) - 1}"

    def values(self, of: Callable[[Run], float | None]) -> list[float]:
        """What the runs say, those left out that don't."""
        return [value for run in self.runs if (value := of(run)) is not None]

    def mean(self, of: Callable[[Run], float | None]) -> Estimate | None:
        """The mean over the runs, with its interval; None where no run says anything."""
        values = self.values(of)
        return claims.mean(values) if values else None


@dataclass(frozen=True)
class Claim:
    """What may be said of a group against the baseline; None for what may not.

    Args:
        marks: What differs; those that block leave every number below None.
        scaling: `strong`, `weak` or `mixed`, where the number of replicas differs.
        speed_up: Images a second, times the baseline's.
        is_faster: True, False (slower), or None: within the noise.
        efficiency: Speed-up over the ratio of replicas; only where nothing but scaling was changed.
        whole_run: The baseline's seconds over these, start-up and validation included.
        accuracy: Difference of the best validation accuracy, 0 to 1.
        accuracy_is_noise: Whether that difference may be chance.
        cost: Difference of what a run costs, in `currency`: below zero is saved.
        other_settings: Settings that differ and don't go with scaling.
    """

    group: Group
    baseline: Group
    marks: tuple[Mark, ...] = ()
    scaling: str | None = None
    speed_up: Estimate | None = None
    is_faster: bool | None = None
    efficiency: Estimate | None = None
    whole_run: Estimate | None = None
    accuracy: Estimate | None = None
    accuracy_is_noise: bool | None = None
    cost: Estimate | None = None
    currency: str | None = None
    other_settings: tuple[str, ...] = ()

    @property
    def comparable(self) -> bool:
        """Whether anything may be claimed."""
        return not any(mark.blocks for mark in self.marks)


@dataclass(frozen=True)
class Comparison:
    """Runs, and what may be claimed of them.

    Args:
        runs: In the order in which they were given.
        groups: The runs and their repeats.
        baseline: What the others are compared with.
        claims: One for every other group.
        target: The validation accuracy to which times and costs count; None where no run has one.
        target_was_given: It was asked for; else it is the highest that every compared run reached.
        costs: Of each run by its key; None where its price is not known.
    """

    runs: tuple[Run, ...]
    groups: tuple[Group, ...]
    baseline: Group
    claims: tuple[Claim, ...]
    target: float | None
    target_was_given: bool
    costs: Mapping[str, Cost | None] = field(default_factory=dict)

    def cost(self, group: Group, part: str) -> Estimate | None:
        """The mean of one part of what the runs of a group cost."""
        known = [value for run in group.runs if (cost := self.costs[run.key]) and (value := getattr(cost, part))]
        return claims.mean(known) if known else None

    @property
    def differences(self) -> dict[str, list[Any]]:
        """The settings that differ between any two runs."""
        return pairs.differing(self.runs)


def compare(
    runs: Sequence[Run],
    *,
    baseline: Run | None = None,
    target: float | None = None,
    price: Mapping[str, Any] | None = None,
) -> Comparison:
    """Every claim that the runs allow.

    Args:
        baseline: One of the runs; by default a finished one with the fewest replicas, no rehearsal where there is one.
        target: The validation accuracy whose time and cost are of interest, 0 to 1.
        price: `price_per_hour`, `per` and `currency`, over what the runs' own configurations say.

    Raises:
        UserError: no runs, or a target that is no accuracy.
        ConfigError: a price that is none.
    """
    if not runs:
        raise UserError("No run was given.", "Give the folders of the runs.")
    if target is not None and not 0 < target <= 1:
        raise UserError(f"The target accuracy {target} is out of range.", "Give a share from 0 to 1, such as 0.95.")
    groups = _groups(runs)
    base = next(group for group in groups if (baseline or _baseline(runs)) in group.runs)
    prices = {run.key: price_of(run, price) for run in runs}
    found = [_claim(group, base) for group in groups if group is not base]
    goal = target if target is not None else _target(base, found)
    costs = {run.key: cost_of(run, prices[run.key], goal) for run in runs}
    found = [_with_cost(claim, costs) for claim in found]
    return Comparison(tuple(runs), tuple(groups), base, tuple(found), goal, target is not None, costs)


def _groups(runs: Sequence[Run]) -> list[Group]:
    groups: list[list[Run]] = []
    for run in runs:
        for group in groups:
            if all(pairs.are_repeats(run, other) for other in group):
                group.append(run)
                break
        else:
            groups.append([run])
    return [Group(tuple(group)) for group in groups]


def _baseline(runs: Sequence[Run]) -> Run:
    return min(runs, key=lambda run: (not run.finished, run.rehearsal, run.num_replicas or math.inf))


def _target(base: Group, found: Sequence[Claim]) -> float | None:
    """The highest accuracy, in tenths of a point, that every run reached that may be compared."""
    groups = [base, *(claim.group for claim in found if claim.comparable)]
    best = [value for group in groups for value in group.values(lambda run: run.best_accuracy)]
    reached = math.floor(min(best, default=0.0) * 1000 + 1e-9) / 1000
    return reached or None


def _claim(group: Group, base: Group) -> Claim:
    run, baseline = group.first, base.first
    found = tuple(pairs.marks(run, baseline))
    claim = Claim(
        group, base, found, pairs.scaling(run, baseline), other_settings=tuple(pairs.other_settings(run, baseline))
    )
    if not claim.comparable:
        return claim
    accuracy, noise = _accuracy(group, base)
    speeds = [one.values(lambda run: run.images_per_second) for one in (group, base)]
    if not all(speeds):
        silent = next(one for one in (*group.runs, *base.runs) if one.images_per_second is None)
        why = Mark("speed", f"no speed of {silent.name}: {why_no_speed(silent.record)}", False)
        return dataclasses.replace(claim, marks=(*found, why), accuracy=accuracy, accuracy_is_noise=noise)
    speed_up = claims.ratio(*speeds)
    spread = max((one.speed_spread or 0.0 for one in (*group.runs, *base.runs)), default=0.0)
    faster = speed_up.value > 1 if claims.differs(speed_up, spread) else None
    whole = [one.values(lambda run: run.total_seconds) for one in (base, group)]
    return dataclasses.replace(
        claim,
        speed_up=speed_up,
        is_faster=faster,
        efficiency=_efficiency(claim, speed_up),
        whole_run=claims.ratio(*whole) if all(whole) else None,
        accuracy=accuracy,
        accuracy_is_noise=noise,
    )


def _efficiency(claim: Claim, speed_up: Estimate) -> Estimate | None:
    """Speed-up over the ratio of replicas, where nothing but what goes with scaling was changed."""
    if claim.scaling is None or claim.other_settings:
        return None
    ours, theirs = claim.group.first.num_replicas, claim.baseline.first.num_replicas
    return speed_up.scaled(theirs / ours) if ours and theirs else None


def _accuracy(group: Group, base: Group) -> tuple[Estimate | None, bool | None]:
    """The difference, and whether it may be chance: by the spread of repeats, else by the size of the validation."""
    ours, theirs = (one.values(lambda run: run.best_accuracy) for one in (group, base))
    if not ours or not theirs:
        return None, None
    found = claims.difference(ours, theirs)
    if found.low is not None:
        return found, found.holds(0.0)
    num, num_base = (number(one.first.record["data"].get("num_validation")) for one in (group, base))
    if not num or not num_base:
        return found, None
    middle, baseline = sum(ours) / len(ours), sum(theirs) / len(theirs)
    if not (0 <= middle <= 1 and 0 <= baseline <= 1):
        return found, None
    sampled = claims.proportions(middle, baseline, num, num_base)
    return dataclasses.replace(found, low=sampled.low, high=sampled.high), sampled.holds(0.0)


def _with_cost(claim: Claim, costs: Mapping[str, Cost | None]) -> Claim:
    """What a run costs more or less, where all prices are known and of one currency."""
    if not claim.comparable:
        return claim
    known = [[costs[run.key] for run in group.runs] for group in (claim.group, claim.baseline)]
    currencies = {cost.currency if cost else None for side in known for cost in side}
    if len(currencies) != 1 or None in currencies:
        return claim
    ours, theirs = ([cost.run for cost in side if cost and cost.run is not None] for side in known)
    if not ours or not theirs:
        return claim
    return dataclasses.replace(claim, cost=claims.difference(ours, theirs), currency=currencies.pop())
