"""May two runs be compared, and as what: what differs between them, what stands against a claim, strong or weak."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from manyfit.console import plural
from manyfit.report.runs import Run
from manyfit.report.system_samples import number

STRONG, WEAK, MIXED = "strong", "weak", "mixed"
MISSING = "(not set)"

_NO_MATTER = (
    "seed",
    "tracker.",
    "cost.",
    "verbose",
    "probe",
    "profile.",
    "data.root",
    "data.source",
    "data.cache_dir",
    "data.cache_gb",
)
"""Settings that two repeats may differ in: what was trained on is compared by its fingerprint."""
_OF_SCALING = ("strategy.", "batch.", "gradient_accumulation", "optimizer.learning_rate", "schedule.")
"""Settings that go with another number of replicas."""
_NO_MODEL = ("model.feature_cache", "model.sync_batch_norm")
"""Settings of the group `model` that leave the network as it is."""
_VERSIONS = ("tensorflow", "keras", "manyfit")
_LEAST_DIFFERENCE_OF_MEMORY = 0.05


@dataclass(frozen=True)
class Mark:
    """One thing that the reader of a comparison must know.

    Args:
        about: One word: `data`, `model`, `precision`, `epochs`, `rehearsal`, `versions`, `machine`, ...
        text: What differs, baseline first.
        blocks: No speed-up, saving or change of accuracy may be claimed.
    """

    about: str
    text: str
    blocks: bool


def marks(run: Run, baseline: Run) -> list[Mark]:
    """What differs between two runs and bears on a comparison, what stands against a claim first."""
    found = [mark for check in _CHECKS for mark in check(run, baseline)]
    return sorted(found, key=lambda mark: not mark.blocks)


def scaling(run: Run, baseline: Run) -> str | None:
    """What was fixed while the number of replicas changed: None where it did not change or is not known.

    `strong`: the examples of a step; `weak`: the examples of a replica and step; `mixed`: neither.
    """
    if run.num_replicas is None or baseline.num_replicas is None or run.num_replicas == baseline.num_replicas:
        return None
    if run.examples_per_step is None or baseline.examples_per_step is None:
        return None
    if run.examples_per_step == baseline.examples_per_step:
        return STRONG
    return WEAK if run.examples_per_replica == baseline.examples_per_replica else MIXED


def differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The settings in which any two of the runs differ, and the value of each run."""
    known = [run.settings or {} for run in runs]
    keys = dict.fromkeys(key for settings in known for key in settings)
    rows = {key: [settings.get(key, MISSING) for settings in known] for key in keys}
    return {key: values for key, values in rows.items() if any(not _same(value, values[0]) for value in values[1:])}


def other_settings(run: Run, baseline: Run) -> list[str]:
    """The differing settings that go neither with a repeat nor with another number of replicas."""
    return [key for key in differing([baseline, run]) if not _among(key, (*_NO_MATTER, *_OF_SCALING))]


def are_repeats(run: Run, other: Run) -> bool:
    """Whether two finished runs are the same but for seed and chance."""
    if not (run.finished and other.finished) or run.settings is None or other.settings is None:
        return False
    same_size = (run.num_replicas, run.examples_per_step) == (other.num_replicas, other.examples_per_step)
    alike = all(_among(key, _NO_MATTER) for key in differing([run, other]))
    return same_size and alike and not any(mark.blocks for mark in marks(run, other))


def _among(key: str, names: Sequence[str]) -> bool:
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in names)


def _same(value: Any, other: Any) -> bool:
    return (
        type(value) is type(other)
        and value == other
        or (
            isinstance(value, int | float)
            and isinstance(other, int | float)
            and value == other
            and isinstance(value, bool) == isinstance(other, bool)
        )
    )


# --- the checks: each yields what differs, baseline first -------------------------------------------------------------


def _status(run: Run, baseline: Run) -> Iterator[Mark]:
    for one in (baseline, run):
        if not one.finished:
            yield Mark("status", f"{one.name} is not finished: {how_it_ended(one)}", True)


def how_it_ended(run: Run) -> str:
    """In words, for a run that is not finished as well.

    >>> from pathlib import Path
    >>> how_it_ended(Run(Path("a"), "a", {"status": "failed", "epochs": [], "error": "KeyError: 'x'"}, {"epochs": 5}))
    "failed after 0 of 5 epochs (KeyError: 'x')"
    """
    asked = (run.settings or {}).get("epochs")
    after = (
        f"after {len(run.epochs)} of {plural(asked, 'epoch')}" if asked else f"after {plural(len(run.epochs), 'epoch')}"
    )
    error = str(run.record.get("error") or "").splitlines()
    why = f" ({error[0][:160]})" if error and not run.finished else ""
    if run.status == "running":
        return f"still running, or killed, {after}"
    return f"{run.status} {after}{why}"


def _readable(run: Run, baseline: Run) -> Iterator[Mark]:
    for one in (baseline, run):
        if one.settings is None:
            yield Mark("settings", f"what was asked of {one.name} is not known: its config.yaml cannot be read", True)


def _rehearsal(run: Run, baseline: Run) -> Iterator[Mark]:
    if run.rehearsal != baseline.rehearsal:
        drawn = run if run.rehearsal else baseline
        yield Mark("rehearsal", f"{drawn.name} is a rehearsal on drawn pictures, the other is not", True)
    elif run.rehearsal:
        yield Mark(
            "rehearsal", "both are rehearsals on drawn pictures: their accuracy says nothing about photos", False
        )


def _data(run: Run, baseline: Run) -> Iterator[Mark]:
    ours, theirs = run.record["data"], baseline.record["data"]
    prints = theirs.get("fingerprint"), ours.get("fingerprint")
    keys = ("name", "num_train", "num_validation", "class_names")
    apart = {key: (theirs.get(key), ours.get(key)) for key in keys if theirs.get(key) != ours.get(key)}
    if None not in prints and prints[0] == prints[1]:
        return
    if None in prints and not apart:
        yield Mark("data", "whether the data are the same is not known: a fingerprint is missing", bool(any(prints)))
    elif apart:
        yield Mark("data", f"the data differ: {_said(apart)}", True)
    else:
        yield Mark("data", "the data differ: the same names and numbers, other files or another split", True)


def _model(run: Run, baseline: Run) -> Iterator[Mark]:
    keys = ("name", "weights", "num_parameters", "num_trainable_parameters")
    apart = {f"{key}": (baseline.record["model"].get(key), run.record["model"].get(key)) for key in keys}
    apart = {key: pair for key, pair in apart.items() if pair[0] != pair[1]}
    for key, values in differing([baseline, run]).items():
        name = key.removeprefix("model.")
        if name != key and name not in apart and key not in _NO_MODEL and run.settings and baseline.settings:
            apart[name] = (values[0], values[1])
    if apart:
        yield Mark("model", f"the models differ: {_said(apart)}", True)


def _setting(key: str, about: str, name: str) -> Callable[[Run, Run], Iterator[Mark]]:
    def check(run: Run, baseline: Run) -> Iterator[Mark]:
        if run.settings is None or baseline.settings is None:
            return
        values = baseline.settings.get(key), run.settings.get(key)
        if values[0] != values[1]:
            yield Mark(about, f"{name} {values[0]} against {values[1]}", True)

    return check


def _phases(run: Run, baseline: Run) -> Iterator[Mark]:
    if run.settings is None or baseline.settings is None:
        return
    ours, theirs = (
        {key: value for key, value in (one.settings or {}).items() if key.startswith("phases.")}
        for one in (run, baseline)
    )
    if ours != theirs:
        counts = [len({key.split(".")[1] for key in found}) for found in (theirs, ours)]
        said = f"{counts[0] or 'none'} against {counts[1] or 'none'}" if counts[0] != counts[1] else "other settings"
        yield Mark("phases", f"the phases of the training differ: {said}", True)


def _versions(run: Run, baseline: Run) -> Iterator[Mark]:
    ours, theirs = run.record["versions"], baseline.record["versions"]
    apart = [key for key in dict.fromkeys([*theirs, *ours]) if ours.get(key) != theirs.get(key)]
    for blocks in (True, False):
        named = [key for key in apart if (key in _VERSIONS) == blocks]
        if named:
            said = ", ".join(f"{key} {theirs.get(key)} against {ours.get(key)}" for key in named)
            yield Mark("versions", f"versions differ: {said}", blocks)
    commits = [str(one.record["git"].get("commit"))[:10] for one in (baseline, run)]
    if commits[0] != commits[1]:
        yield Mark("versions", f"the project's own code differs: commit {commits[0]} against {commits[1]}", False)
    elif commits[0] != "None" and any(one.record["git"].get("dirty") for one in (run, baseline)):
        yield Mark("versions", "the project's own code had changes that no commit holds", False)


def _machine(run: Run, baseline: Run) -> Iterator[Mark]:
    if run.on_gpu != baseline.on_gpu:
        kinds = ["GPU" if one.on_gpu else "CPU" for one in (baseline, run)]
        yield Mark("machine", f"devices differ: {kinds[0]} against {kinds[1]}", True)
    elif run.gpu_names and baseline.gpu_names and run.gpu_names != baseline.gpu_names:
        names = [", ".join(one.gpu_names) for one in (baseline, run)]
        yield Mark("machine", f"devices differ: {names[0]} against {names[1]}", True)
    ours, theirs = run.record["host"], baseline.record["host"]
    if ours.get("cpu_usable") != theirs.get("cpu_usable"):
        yield Mark("machine", f"CPU cores {theirs.get('cpu_usable')} against {ours.get('cpu_usable')}", True)
    memory = [number(one.get("memory_bytes")) or 0 for one in (theirs, ours)]
    if abs(memory[0] - memory[1]) > _LEAST_DIFFERENCE_OF_MEMORY * max(memory):
        yield Mark("machine", f"memory {memory[0] / 2**30:.0f} GiB against {memory[1] / 2**30:.0f} GiB", True)
    if ours.get("name") != theirs.get("name"):
        yield Mark(
            "machine", f"two machines, as far as their names say: {theirs.get('name')}, {ours.get('name')}", False
        )
    elif _overlap(run, baseline):
        yield Mark("machine", "both ran at the same time on one machine, which slows each other", False)


def _logical(run: Run, baseline: Run) -> Iterator[Mark]:
    many = [one for one in (run, baseline) if not one.on_gpu and (one.num_replicas or 1) > 1 and one.num_machines == 1]
    if many:
        yield Mark(
            "machine", "the replicas are logical devices of one CPU: this rehearses scaling and measures no GPU", False
        )


def _features(run: Run, baseline: Run) -> Iterator[Mark]:
    found = [one.record["timing"].get("feature_seconds") for one in (baseline, run)]
    if None not in found and (found[0] == 0) != (found[1] == 0):
        cold = baseline if found[0] else run
        yield Mark(
            "time",
            f"only {cold.name} computed its features, the other found them: their total times differ by that",
            False,
        )


def _said(apart: Mapping[str, tuple[Any, Any]]) -> str:
    said = [f"{key} {_short(pair[0])} against {_short(pair[1])}" for key, pair in apart.items()]
    return ", ".join(said[:2]) + (f" and {len(said) - 2} more" if len(said) > 2 else "")


def _short(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    if value is None:
        text = "null"
    elif isinstance(value, list | tuple):
        text = f"{len(value)} names"
    return text if len(text) <= 60 else text[:59] + "…"


def _overlap(run: Run, other: Run) -> bool:
    """Whether two runs ran at the same time; a run without an end is taken to have none."""
    try:
        ours, theirs = (
            (datetime.fromisoformat(one.record["started"]), datetime.fromisoformat(one.record["ended"]))
            for one in (run, other)
        )
    except (KeyError, TypeError, ValueError):
        return False
    return ours[0] < theirs[1] and theirs[0] < ours[1]


_CHECKS: tuple[Callable[[Run, Run], Iterator[Mark]], ...] = (
    _status,
    _readable,
    _rehearsal,
    _data,
    _model,
    _setting("precision.name", "precision", "precision"),
    _setting("epochs", "epochs", "epochs"),
    _phases,
    _versions,
    _machine,
    _logical,
    _features,
)


def as_dict(mark: Mark) -> Mapping[str, Any]:
    """The mark as JSON."""
    return {"about": mark.about, "text": mark.text, "blocks": mark.blocks}
