"""`batch=auto`: the per-replica batch size at which this model is fastest on these devices, found by trying.

The sizes are tried in a child process (`manyfit.batch_probe`), so that running out of memory ends the child alone and
leaves the devices clean. What was measured is kept for the next run of the same model on the same devices.
"""

import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from manyfit.batch_child import MULTIPLE, Child
from manyfit.config import RunConfig
from manyfit.errors import ConfigError, UserError
from manyfit.files import to_json, write_atomically
from manyfit.record import environment
from manyfit.schema.place import AutoBatchConfig

MIN_GAIN = 0.05
"""A larger batch must be faster by this share: less is noise, and fewer steps an epoch learn less."""

Measure = Callable[[int], float | None]
"""Images a second at a per-replica size; None where it does not fit into the memory."""


@dataclass(frozen=True)
class Search:
    """What a search found.

    Args:
        per_replica_batch_size: The smallest size within 5 % of the fastest.
        curve: Images a second at each size that was tried, None where the memory did not suffice.
        stopped_by: Why no larger size was tried: `gain`, `memory`, `steps` (the floor of steps an epoch).
        measured: Sizes that were measured for this run; the others were known.
        seconds: What it took.
    """

    per_replica_batch_size: int
    curve: dict[int, float | None]
    stopped_by: str
    measured: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The search for the record."""
        return {
            "per_replica_batch_size": self.per_replica_batch_size,
            "curve": [{"per_replica_batch_size": size, "images_per_second": v} for size, v in self.curve.items()],
            "stopped_by": self.stopped_by,
            "reused": not self.measured,
            "seconds": self.seconds,
        }


def largest_size(num_train: int, num_replicas: int, gradient_accumulation: int, min_steps: int, remainder: str) -> int:
    """The largest per-replica size whose epoch has `min_steps` steps; a multiple of 8 where that can be.

    Below 8 it is even if it can be, since some augmentations mix examples in pairs.

    >>> largest_size(2000, 1, 1, 20, "pad"), largest_size(2000, 4, 1, 20, "pad"), largest_size(37, 1, 1, 20, "pad")
    (104, 24, 1)
    """
    rows = num_replicas * gradient_accumulation
    if remainder == "drop" or min_steps == 1:
        size = num_train // min_steps // rows
    else:
        size = (num_train - 1) // (min_steps - 1) // rows  # ceil(num_train / step) >= min_steps
    size = min(size, num_train // rows)
    step = MULTIPLE if size >= MULTIPLE else 2
    return max(1, size - size % step)


def find_size(measure: Measure, largest: int) -> Search:
    """Double the size until it gains less than 5 %, no longer fits, or an epoch would have too few steps.

    A gain that is too small is measured again, both sizes: a machine that was busy for a moment must not end it.

    Raises:
        ConfigError: not even the smallest size fits into the memory.
    """
    if largest < MULTIPLE:
        return Search(largest, {}, "steps")
    curve: dict[int, float | None] = {}
    stopped_by, previous = "steps", 0
    for size in _sizes(largest):
        speed = curve[size] = measure(size)
        if speed is None:
            stopped_by = "memory"
            break
        if previous and not _gains(curve, previous, size):
            for again in (previous, size):
                curve[again] = max(curve[again] or 0.0, measure(again) or 0.0)
            if not _gains(curve, previous, size):
                stopped_by = "gain"
                break
        previous = size
    speeds = {size: speed for size, speed in curve.items() if speed}
    if not speeds:
        raise ConfigError(
            f"batch=auto: {MULTIPLE} examples a replica do not fit into the memory of the device.",
            "Give a smaller model.image_size, precision=mixed_float16, or batch.per_replica_batch_size=1.",
        )
    best = max(speeds.values())
    return Search(min(size for size, speed in speeds.items() if speed * (1 + MIN_GAIN) >= best), curve, stopped_by)


def _sizes(largest: int) -> list[int]:
    sizes = [MULTIPLE]
    while 2 * sizes[-1] <= largest:
        sizes.append(2 * sizes[-1])
    return sizes if largest < 1.25 * sizes[-1] else [*sizes, largest]


def _gains(curve: Mapping[int, float | None], smaller: int, larger: int) -> bool:
    # Between two sizes that are no doubling, a smaller gain is as much.
    needed = MIN_GAIN * min(1.0, larger / smaller - 1)
    return (curve[larger] or 0.0) >= (curve[smaller] or 0.0) * (1 + needed)


def resolve(
    config: RunConfig,
    *,
    facts: Mapping[str, Any],
    num_train: int,
    num_replicas: int,
    cache_dir: Path,
    show: Callable[[str], Any],
) -> tuple[RunConfig, Search | None]:
    """The configuration with a size in the place of `batch=auto`; as it is, and None, where there is nothing to find.

    Args:
        facts: What else determines the speed: the devices, the shape of the pictures, the number of classes.
        num_train: Training examples.
        cache_dir: The project's cache; measurements are kept below it.
        show: Told the curve, a line a size.

    Raises:
        UserError: the sizes cannot be tried, or none fits.
    """
    batch = config.batch
    if not isinstance(batch, AutoBatchConfig) or batch.per_replica_batch_size is not None:
        return config, None
    largest = largest_size(num_train, num_replicas, config.gradient_accumulation, batch.min_steps, batch.remainder)
    started = time.monotonic()
    with _Meter(config, _Known(cache_dir / "batch_size", _key(config, facts)), show) as meter:
        search = find_size(meter.measure, largest)
    search = replace(search, measured=len(meter.measured), seconds=time.monotonic() - started)
    show(_said(search, batch.min_steps))
    return replace(config, batch=replace(batch, per_replica_batch_size=search.per_replica_batch_size)), search


def _said(search: Search, min_steps: int) -> str:
    why = {
        "gain": "a larger one gains less than 5 %",
        "memory": "a larger one does not fit into the memory",
        "steps": f"a larger one would leave an epoch fewer than {min_steps} steps (batch.min_steps)",
    }[search.stopped_by]
    source = "" if search.measured or not search.curve else ", measured by an earlier run"
    return f"batch=auto: {search.per_replica_batch_size} a replica; {why}{source}."


# --- what is known ----------------------------------------------------------------------------------------------------


def _key(config: RunConfig, facts: Mapping[str, Any]) -> dict[str, Any]:
    """All that determines the speed of a step on data that is there, as far as it can be known."""
    surroundings = environment()
    asked = dataclasses.asdict(config)
    strategy = {key: asked["strategy"][key] for key in ("name", "cross_device_ops")}
    names = ("model", "precision", "optimizer", "ema", "gradient_accumulation", "jit_compile", "augment")
    versions = {name: surroundings["versions"].get(name) for name in ("tensorflow", "keras")}
    host = {name: surroundings["host"][name] for name in ("platform", "cpu_usable")}
    settings = {name: asked[name] for name in names if name in asked}
    settings["optimizer"] = {key: settings["optimizer"][key] for key in ("name", "weight_decay", "global_clipnorm")}
    return {**settings, "strategy": strategy, "facts": dict(facts), "versions": versions, "host": host}


class _Known:
    """The curve that earlier runs measured for the same key."""

    def __init__(self, folder: Path, key: dict[str, Any]):
        self.key = json.loads(to_json(key))
        digest = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()
        self.path = folder / f"{digest[:32]}.json"
        self.curve: dict[int, float | None] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            if stored.get("key") == self.key:
                self.curve = {int(size): speed and float(speed) for size, speed in stored["curve"].items()}

    def keep(self, size: int, speed: float | None) -> None:
        """Add a measurement; a cache that cannot be written is none."""
        self.curve[size] = speed
        with contextlib.suppress(OSError, UserError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            curve = dict(sorted(self.curve.items()))
            write_atomically(self.path, to_json({"key": self.key, "curve": curve}, indent=1) + "\n")


# --- what is measured -------------------------------------------------------------------------------------------------


class _Meter:
    """Answers with what is known, and else has the child measure it; a size asked for again is measured again."""

    def __init__(self, config: RunConfig, known: _Known, show: Callable[[str], Any]):
        self.measured: set[int] = set()
        self._child = Child(config)
        self._known = known
        self._show = show
        self._asked: set[int] = set()

    def __enter__(self) -> "_Meter":
        return self

    def __exit__(self, *_: object) -> None:
        self._child.close()

    def measure(self, size: int) -> float | None:
        """Images a second at `size`, None where it does not fit; the best of several measurements."""
        curve, again = self._known.curve, size in self._asked
        self._asked.add(size)
        if size not in curve or (again and self.measured):
            if not self.measured:
                self._show("batch=auto: trying batch sizes in a process of their own ...")
            speed = self._child.measure(size)
            self.measured.add(size)
            self._known.keep(size, max(speed or 0.0, curve.get(size) or 0.0) or None)
        elif again:
            return curve[size]
        speed = curve[size]
        found = "does not fit into memory" if speed is None else f"{speed:,.1f} images/s"
        self._show(f"  {size:>5} a replica: {found}{' (measured again)' if again else ''}")
        return speed
