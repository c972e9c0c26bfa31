"""The samples in a run's `system.jsonl`: read with care, since a run may end in the middle of a line."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SAMPLES_NAME = "system.jsonl"
WORKERS_NAME = "workers"
"""Where the workers beside rank 0 keep theirs: `workers/rank-N/`."""
_LARGEST = 1e18
PHASES = ("start", "features", "train", "validation", "end")


def read_samples(folder: Path) -> tuple[tuple[dict[str, Any], ...], str | None]:
    """The samples of a run in the order of their time, and what was wrong with the file, if anything.

    Lines that are cut, garbled or without a time are left out and counted. Values that are no finite numbers are None.
    """
    path = Path(folder) / SAMPLES_NAME
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return (), None
    except OSError as error:
        return (), f"{SAMPLES_NAME} cannot be read ({error.strerror or error})"
    samples = [sample for line in lines if line.strip() and (sample := _sample(line)) is not None]
    bad = sum(bool(line.strip()) for line in lines) - len(samples)
    samples.sort(key=lambda sample: sample["elapsed_seconds"])
    return tuple(samples), f"{bad} of {len(lines)} lines of {SAMPLES_NAME} cannot be read" if bad else None


def read_worker_samples(folder: Path) -> tuple[dict[int, tuple[dict[str, Any], ...]], list[str]]:
    """The same of the workers beside rank 0, by their rank, of a run that has some."""
    found, problems = {}, []
    for own in sorted((Path(folder) / WORKERS_NAME).glob("rank-*")):
        rank = own.name.removeprefix("rank-")
        samples, problem = read_samples(own)
        if samples and rank.isdecimal():
            found[int(rank)] = samples
        problems += [f"rank {rank}: {problem}"] if problem else []
    return dict(sorted(found.items())), problems


def _sample(line: bytes) -> dict[str, Any] | None:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or number(raw.get("elapsed_seconds")) is None:
        return None
    gpus = raw.get("gpus")
    plain = {key: value if isinstance(value, str) else number(value) for key, value in raw.items() if key != "gpus"}
    plain["gpus"] = [
        {key: value if isinstance(value, str) else number(value) for key, value in gpu.items()}
        for gpu in (gpus if isinstance(gpus, list) else ())
        if isinstance(gpu, dict)
    ]
    return plain


def number(value: Any) -> Any:
    """The value where it is a number that something may have measured, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        return None
    return value


def section(value: Any) -> dict[str, Any]:
    """The value where it is a section of a record, else an empty one."""
    return value if isinstance(value, dict) else {}


def phases(samples: Sequence[Mapping[str, Any]], shortest: float = 0.0) -> list[tuple[str, float, float]]:
    """Each stretch of one phase: its name, its first and its last second; gaps between stretches are closed.

    Args:
        shortest: Seconds; a stretch below them is counted to the one before, where there is one.

    >>> phases([{"elapsed_seconds": t, "phase": p} for t, p in ((0, "start"), (2, "train"), (4, "train"), (5, "end"))])
    [('start', 0, 2), ('train', 2, 5), ('end', 5, 5)]
    """
    found: list[tuple[str, float, float]] = []
    for sample in samples:
        phase, second = sample.get("phase"), sample["elapsed_seconds"]
        if phase not in PHASES:
            continue
        if found:
            name, first, _ = found[-1]
            found[-1] = (name, first, second)
            if name == phase:
                continue
        found.append((phase, second, second))
    kept: list[tuple[str, float, float]] = []
    for name, first, until in found:
        if kept and (until - first < shortest or kept[-1][0] == name):
            kept[-1] = (kept[-1][0], kept[-1][1], until)
        else:
            kept.append((name, first, until))
    return kept


def nodes_of(samples: Sequence[Mapping[str, Any]]) -> list[str]:
    """The machines that the samples speak of."""
    return sorted({str(sample.get("node") or "") for sample in samples})
