"""An ablation: the same short training with one switch changed at a time, each in a process of its own.

A switch is looked at where its key exists in the configuration; which values it has is said here, and nowhere else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from manyfit.errors import ConfigError, UserError
from manyfit.report.ablation import BASELINE, Change
from manyfit.study import Command, Point, Result, as_group, interleaved, run_study, train_command

EPOCHS = 3
"""Epochs of each training unless asked otherwise; the first one is not counted."""


@dataclass(frozen=True)
class Switch:
    """Something that should pay.

    Args:
        name: For people.
        key: Its dotted key.
        off: The value without it.
        on: The value with it.
        override: The key on the command line, where it is another: a group's name.
        where: Whether it can do anything in a configuration, given its dotted keys and values.
    """

    name: str
    key: str
    off: Any
    on: Any
    override: str = ""
    where: Callable[[Mapping[str, Any]], bool] = lambda settings: True

    def change(self, settings: Mapping[str, Any]) -> Change | None:
        """The change from what a configuration has to what it has not; None where there is nothing to change."""
        if self.key not in settings or not self.where(settings):
            return None
        turn_on = settings[self.key] == self.off
        text = f"{self.override or self.key}={_text(self.on if turn_on else self.off)}"
        return Change(self.name, text, turned_on=turn_on)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _one_replica(settings: Mapping[str, Any]) -> bool:
    return settings.get("strategy.replicas") in (1, "auto") and len(settings.get("strategy.devices") or [0]) == 1


def _is_frozen(settings: Mapping[str, Any]) -> bool:
    return settings.get("model.trainable") == "none"


def switches() -> tuple[Switch, ...]:
    """All that is looked at; the mixed precision is the one that this machine's kind of device is made for."""
    mixed = "mixed_float16" if has_gpu() else "mixed_bfloat16"
    return (
        Switch("many steps a call", "steps_per_execution", 1, "auto"),
        Switch("feature cache", "model.feature_cache", "off", "auto", where=_is_frozen),
        Switch("picture cache", "data.cache", "off", "auto"),
        Switch("parallel decoding", "data.parallel_map", False, True),
        Switch("prefetching", "data.prefetch", False, True),
        Switch("mixed precision", "precision.name", "float32", mixed, override="precision"),
        Switch("XLA", "jit_compile", False, True, where=_one_replica),
    )


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU, without starting TensorFlow."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount() > 0
    except pynvml.NVMLError:
        return False


def batch_change(record: Mapping[str, Any]) -> Change | None:
    """Twice the batch of a run; None where the data set is too small for it."""
    batch = record["batch"]
    size = 2 * batch["per_replica_batch_size"]
    rows = size * record["strategy"]["num_replicas"] * batch["gradient_accumulation"]
    if rows > record["data"]["num_train"]:
        return None
    also = ("batch.global_batch_size=null",)
    return Change("twice the batch", f"batch.per_replica_batch_size={size}", turned_on=True, also=also)


def run_ablation(
    settings: Mapping[str, Any],
    overrides: Sequence[str],
    folder: Path,
    *,
    repeats: int = 1,
    only: Sequence[str] = (),
    command: Command = train_command,
    show: Callable[[str], Any] = lambda line: None,
) -> tuple[list[Change], list[Result]]:
    """Train the baseline, then every change, then the baseline again; the changes that were looked at, and all results.

    Args:
        settings: The composed configuration's dotted keys and their values.
        overrides: What makes the baseline.
        repeats: How often; the baseline stands before, between and after.
        only: Keys of the switches to look at (`batch` for the batch size); all of them where it is empty.

    Raises:
        ConfigError: a key of `only` is none of the switches'.
        UserError: the baseline failed, so that there is nothing to compare with.
    """
    changes = _changes(settings, only)
    baseline = [*overrides, *_defaults(settings, overrides, folder)]

    def run(points: Sequence[Point]) -> list[Result]:
        return run_study(
            points,
            folder,
            command=command,
            environment=as_group("ablate", folder),
            on_start=lambda point: show(f"{_shown(point)} ..."),
            on_end=lambda result: show(_outcome(result)),
        )

    [first] = run([Point(BASELINE, tuple(baseline))])
    if not first.succeeded or first.record is None:
        raise UserError(f"The baseline failed, so that there is nothing to compare: {first.error}", f"See {first.log}.")
    doubled = batch_change(first.record) if not only or "batch" in only else None
    changes += [doubled] if doubled else []
    # What batch=auto found holds for all of them.
    size = first.record["batch"]["per_replica_batch_size"]
    pinned = [f"batch.per_replica_batch_size={size}"] if settings.get("batch.name") == "auto" else []
    points = [Point(change.name, (*baseline, *pinned, *change.also, change.text)) for change in changes]
    # The baseline's first time was above: its second closes the first round, and so on.
    ordered = [
        replace(point, repeat=point.repeat + 1) if point.name == BASELINE else point
        for point in interleaved([*points, Point(BASELINE, tuple(baseline))], repeats)
    ]
    return changes, [first, *run(ordered)]


def _changes(settings: Mapping[str, Any], only: Sequence[str]) -> list[Change]:
    known = {switch.key: switch for switch in switches()} | {"precision": None, "batch": None}
    unknown = [key for key in only if key not in known]
    if unknown:
        raise ConfigError(f"{unknown[0]} is no switch.", f"Choices: {', '.join(key for key in known)}.")
    chosen = [switch for switch in switches() if not only or {switch.key, switch.override} & set(only)]
    return [change for change in (switch.change(settings) for switch in chosen) if change is not None]


def _defaults(settings: Mapping[str, Any], overrides: Sequence[str], folder: Path) -> list[str]:
    """What a short training needs and the user did not say."""
    given = {text.partition("=")[0].lstrip("+") for text in overrides}
    added = [] if "epochs" in given else [f"epochs={EPOCHS}"]
    if "probe" in settings and "probe" not in given:
        added.append("probe=false")
    if "tracker.group" in settings and settings["tracker.group"] is None:
        added.append(f"tracker.group=ablate-{folder.name}"[:128])
    return added


def _shown(point: Point) -> str:
    return f"{point.name}, time {point.repeat}" if point.repeat > 1 else point.name


def _outcome(result: Result) -> str:
    if not result.succeeded:
        return f"  failed: {result.error}"
    took = f"{result.seconds:.0f} s" if result.seconds is not None else ""
    return f"  {took}{' (kept from an earlier start)' if result.status == 'kept' else ''}"
