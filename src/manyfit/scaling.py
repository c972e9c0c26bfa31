"""A scaling study: the same training on several numbers of replicas or workers, each by itself, repeats interleaved.

Strong scaling keeps the global batch, weak scaling the batch of a replica. What a point trains is said here, and
nowhere else; what its record means is said in `manyfit.report.scaling`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from manyfit.errors import ConfigError, UserError
from manyfit.record import check_unused
from manyfit.report.ring import Link
from manyfit.report.runs import load_runs
from manyfit.report.scaling import Training
from manyfit.report.scaling_units import REPLICAS, Unit
from manyfit.scaling_workers import STRATEGY, Workers, command_of, environment_of
from manyfit.study import FAILED, KEPT, Command, Point, Result, as_group, run_study

WORDS = ("replicas", "workers", "mode", "repeats", "wandb", "gigabits", "microseconds")
"""What is the study's own on the command line; every other word is an override of the training."""

RUNS = "runs"


def take_words(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The study's own words, and the rest; over workers it needs a strategy of several processes.

    >>> take_words(["replicas=[1,2]", "data=mnist", "repeats=3"])
    ({'replicas': '[1,2]', 'repeats': '3'}, ['data=mnist'])
    >>> take_words(["workers=[1,2]", "data=mnist"])
    ({'workers': '[1,2]'}, ['strategy=multi_worker', 'data=mnist'])
    """
    pairs = [(text.partition("="), text) for text in arguments]
    own = {key: value for (key, equals, value), _ in pairs if equals and key in WORDS}
    rest = [text for (key, equals, _), text in pairs if not (equals and key in WORDS)]
    if "workers" in own and not any(key == "strategy" for (key, _, _), _ in pairs):
        rest.insert(0, STRATEGY)
    return own, rest


@dataclass(frozen=True)
class Plan:
    """What a study trains.

    Args:
        counts: Replica counts, ascending; of all workers together.
        modes: `strong`, `weak` or both.
        repeats: How often each, with other seeds.
        sizes: The global batch size of each mode and count.
        seed: Of the first repeat; each further repeat takes the next.
        devices: The GPUs of which a point takes the first, or each worker all; None for the machine's.
        overrides: Of every point.
        group: In W&B; None without W&B, empty to name it after the study's folder.
        to_wandb: Make a view and a report in W&B of it.
        says: What was decided for the user, in words.
        workers: Of which `counts` are multiples; None where the replicas of one process are counted.
        link: Between machines, for a prediction; None for none.
    """

    counts: tuple[int, ...]
    modes: tuple[str, ...]
    repeats: int
    sizes: Mapping[tuple[str, int], int]
    seed: int
    devices: tuple[int, ...] | None
    overrides: tuple[str, ...]
    group: str | None
    to_wandb: bool
    says: tuple[str, ...]
    workers: Workers | None = None
    link: Link | None = None

    @property
    def unit(self) -> Unit:
        """What is counted."""
        return self.workers.each if self.workers is not None else REPLICAS

    def of_folder(self, folder: Path) -> "Plan":
        """The plan with a group in W&B that bears the folder's name, unless it has one."""
        if self.group != "":
            return self
        group = re.sub(r"[^\w.+-]+", "-", f"scale-{folder.name}")[:128]
        return replace(self, group=group, overrides=(*self.overrides, f"tracker.group={group}"))

    def points(self) -> list[tuple[int, int, Point]]:
        """Replica count, global batch size and point of each training, in the order in which they run.

        The largest count comes first: what it cannot have is known before any long work. Every other round runs
        backwards, so that a machine that slows down steadily meets every point alike. Modes share equal trainings.
        """
        pairs = sorted({(count, size) for (_, count), size in self.sizes.items()}, reverse=True)
        rounds = [pairs if repeat % 2 else pairs[::-1] for repeat in range(1, self.repeats + 1)]
        return [
            (count, size, self._point(count, size, repeat))
            for repeat, order in enumerate(rounds, start=1)
            for count, size in order
        ]

    def _point(self, count: int, size: int, repeat: int) -> Point:
        if self.workers is not None:
            where = self.workers.overrides(self.devices, self.unit.of(count))
        elif self.devices is not None:
            where = (f"strategy.devices=[{','.join(map(str, self.devices[:count]))}]",)
        else:
            where = (f"strategy.replicas={count}",)
        batch = ("batch.per_replica_batch_size=null", f"batch.global_batch_size={size}")
        overrides = (*self.overrides, *where, *batch, f"seed={self.seed + repeat - 1}")
        return Point(f"{self.unit.plural}-{self.unit.of(count)}_batch-{size}", overrides, repeat)

    def trainings(self, results: Sequence[Result]) -> list[Training]:
        """The finished trainings, once for each mode that they belong to."""
        done = {result.point.label: result for result in results if result.succeeded and result.record}
        runs = dict(zip(done, load_runs([result.folder for result in done.values()]), strict=True))
        return [
            Training(mode, count, repeat, runs[label])
            for (mode, count), size in self.sizes.items()
            for repeat in range(1, self.repeats + 1)
            if (label := self._point(count, size, repeat).label) in runs
        ]


def run_scaling(
    plan: Plan,
    folder: Path,
    *,
    command: Command | None = None,
    show: Callable[[str], Any] = lambda line: None,
) -> list[Result]:
    """Train every point that is not finished yet, below `folder/runs/`; a point that fails stops no other.

    Args:
        plan: Of this folder (`Plan.of_folder`).
        command: Starts a point; by default `src/train.py` does, on as many nodes of a Slurm job as it has workers.

    Raises:
        ConfigError: the folder holds something else; or a point's configuration is refused by the training itself, such
            as more GPUs than there are.
        UserError: no point finished.
    """
    if not (folder / RUNS).is_dir():
        check_unused(folder)
    ordered = plan.points()
    counts = {point.label: (count, size) for count, size, point in ordered}
    started = command or command_of(plan.workers, {name: plan.unit.of(count) for name, (count, _) in counts.items()})
    ended_so_far = 0

    def shown(point: Point) -> str:
        count, size = counts[point.label]
        repeat = f", time {point.repeat} of {plan.repeats}" if plan.repeats > 1 else ""
        return f"[{ended_so_far + 1}/{len(ordered)}] {plan.unit.words(count)}, global batch {size}{repeat}"

    def ended(result: Result) -> None:
        nonlocal ended_so_far
        if result.status == FAILED and result.exit_code == ConfigError.exit_code:
            # The same would be said of it again, and what it needs is not there: nothing long has run for it.
            raise ConfigError(
                f"{result.point.name}: {result.error}",
                f"All it said is in {result.log}. What is finished is kept: the same command with other "
                f"{plan.unit.plural}, or on a machine that has them, goes on.",
            )
        if result.status == KEPT:
            show(f"{shown(result.point)}: kept from an earlier start")
        else:
            show(f"  {result.seconds or 0:.0f} s" if result.succeeded else f"  failed: {result.error}")
        ended_so_far += 1

    results = run_study(
        [point for _, _, point in ordered],
        folder / RUNS,
        command=started,
        environment=as_group("scale", folder) | environment_of(plan.workers),
        on_start=lambda point: show(f"{shown(point)} ..."),
        on_end=ended,
    )
    if not any(result.succeeded and result.record for result in results):
        raise UserError(f"No point finished: {results[0].error}", f"See {results[0].log}.")
    return results
