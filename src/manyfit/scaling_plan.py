"""What a scaling study trains, from its own words and the configuration: everything is checked before anything runs."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from manyfit.config import DEFAULT_PER_REPLICA_BATCH_SIZE, MultiWorkerConfig, RunConfig, WandbConfig
from manyfit.errors import ConfigError
from manyfit.report.pairs import STRONG, WEAK
from manyfit.report.ring import Link
from manyfit.report.scaling import BOTH, MODES
from manyfit.scaling import Plan
from manyfit.scaling_workers import workers_of
from manyfit.schema.augment import check_rows
from manyfit.schema.checks import AUTO, nearest

_OWNED = {"strong": "batch.per_replica_batch_size", "weak": "batch.global_batch_size"}
"""The size that each kind of scaling changes from point to point."""


def make_plan(
    words: Mapping[str, str], config: RunConfig, overrides: Sequence[str], environ: Mapping[str, str] = os.environ
) -> Plan:
    """What is to be trained, with everything checked that can be without TensorFlow.

    Args:
        words: The study's own words, as `take_words` gives them.
        config: The checked configuration that `overrides` make.
        overrides: Of every training, as typed.
        environ: Where a Slurm job shows.

    Raises:
        ConfigError: a word that cannot be read, a key that the study sets itself, or a point that cannot train.
    """
    workers = None
    if "workers" in words or isinstance(config.strategy, MultiWorkerConfig):
        numbers = _worker_counts(words)
        workers = workers_of(config, numbers, environ)
        counts = tuple(number * workers.each.replicas for number in numbers)
    else:
        counts = _counts(words["replicas"], "replicas") if "replicas" in words else _possible_counts(config)
    modes = _modes(words.get("mode", STRONG))
    repeats = _count("repeats", words.get("repeats", "1"))
    _refuse_owned(overrides, modes, counts, over_workers=workers is not None)
    sizes, says = _sizes(config, modes, counts)
    devices = tuple(config.strategy.devices) if config.strategy.devices is not None else None
    if workers is None:
        _check_points(config, sizes, devices)
        _check_gpus(config, counts, devices)
    else:
        for (_, count), size in sizes.items():
            check_rows(config.augment, size // count)
        says = (workers.says(numbers), *says)
    return Plan(
        counts=counts,
        modes=modes,
        repeats=repeats,
        sizes=sizes,
        seed=config.seed,
        devices=devices,
        overrides=(*_kept(overrides), *_defaults(overrides)),
        group=(config.tracker.group or "") if isinstance(config.tracker, WandbConfig) else None,
        to_wandb=_to_wandb(words.get("wandb", "false"), config),
        says=says,
        workers=workers,
        link=_link(words),
    )


# --- the study's own words --------------------------------------------------------------------------------------------


def _worker_counts(words: Mapping[str, str]) -> tuple[int, ...]:
    if "replicas" in words:
        raise ConfigError(
            f"replicas={words['replicas']} counts the replicas of one process, but a study over workers keeps those of "
            "each worker.",
            "Give 'workers=[1,2]' with strategy.replicas=N, N replicas a worker; or 'replicas=[1,2]' with "
            "strategy=mirrored.",
        )
    if "workers" not in words:
        raise ConfigError(
            "strategy=multi_worker: a study needs the numbers of workers to compare.", "Give 'workers=[1,2]'."
        )
    return _counts(words["workers"], "workers")


def _counts(text: str, word: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.strip().removeprefix("[").removesuffix("]").split(",")]
    if not all(re.fullmatch(r"\d{1,6}", part) and int(part) for part in parts):
        raise ConfigError(f"{word}={text} is no list of {word[:-1]} counts.", f"Give for example '{word}=[1,2,4]'.")
    counts = tuple(sorted({int(part) for part in parts}))
    if len(counts) < 2:
        other = max((2, *counts))
        raise ConfigError(f"{word}={text} is one count: a study compares several.", f"Give '{word}=[1,{other}]'.")
    return counts


def _possible_counts(config: RunConfig) -> tuple[int, ...]:
    """1, 2, 4 ... up to the GPUs that there are, and those."""
    known = len(config.strategy.devices) if config.strategy.devices is not None else num_gpus()
    if config.strategy.device == "cpu" or not known or known < 2:
        raise ConfigError(
            "replicas is not given, and there are not several GPUs to take it from.",
            "Give 'replicas=[1,2,4]'; with strategy.device=cpu they are logical devices of the CPU, for a rehearsal.",
        )
    return tuple(sorted({2**power for power in range(known.bit_length()) if 2**power <= known} | {known}))


def _modes(text: str) -> tuple[str, ...]:
    if text not in (*MODES, BOTH):
        raise ConfigError(f"mode={text} is not one of its choices.", nearest(text, (*MODES, BOTH)))
    return MODES if text == BOTH else (text,)


def _count(key: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,4}", text) or not int(text):
        raise ConfigError(f"{key}={text} is not a count.", "Give a whole number >= 1.")
    return int(text)


def _link(words: Mapping[str, str]) -> Link | None:
    """The network between machines that the user describes; None where nothing is said of one."""
    given = {key: words[key] for key in ("gigabits", "microseconds") if key in words}
    if not given:
        return None
    if "gigabits" not in given:
        raise ConfigError(
            f"microseconds={given['microseconds']} is the latency of a network whose bandwidth is not known.",
            "Give gigabits=N as well: gigabits a second between two machines, each way.",
        )
    numbers = {}
    for key, text in given.items():
        try:
            numbers[key] = float(text)
        except ValueError:
            raise ConfigError(f"{key}={text} is no number.", f"Give for example {key}=100.") from None
    return Link(**numbers)


def _to_wandb(text: str, config: RunConfig) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"wandb={text} is not one of its choices.", "Choices: true, false.")
    asked, tracker = text.lower() == "true", config.tracker
    if asked and not isinstance(tracker, WandbConfig):
        raise ConfigError(f"wandb={text} shows the runs in W&B, but tracker={tracker.name}.", "Give tracker=wandb.")
    if asked and tracker.mode == "disabled":  # pyright: ignore[reportAttributeAccessIssue]
        raise ConfigError(f"wandb={text} shows the runs in W&B, but tracker.mode=disabled.", "Give tracker.mode=auto.")
    return asked


# --- what each point trains -------------------------------------------------------------------------------------------


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+")


def _refuse_owned(overrides: Sequence[str], modes: Sequence[str], counts: Sequence[int], *, over_workers: bool) -> None:
    """Refuse what the study itself sets, where a value of the user's could only be ignored."""
    for text in overrides:
        key, value = _key(text), text.partition("=")[2]
        if key == "strategy.replicas" and not over_workers:
            raise ConfigError(f"{text}: a study sets the replica count itself.", f"Give 'replicas=[1,{value}]'.")
        if key.partition(".")[0] == "resume":
            raise ConfigError(
                f"{text} goes on with one training, and a study has many.",
                "Give the study's folder again as hydra.run.dir=PATH: what is finished is kept.",
            )
        if len(modes) == 1 and key == _OWNED[modes[0]] and value != "null":
            other = {STRONG: WEAK, WEAK: STRONG}[modes[0]]
            kept, size = _OWNED[other], int(value) if value.isdigit() else 0
            size = size * counts[-1] if modes[0] == STRONG else size // counts[-1]
            raise ConfigError(
                f"{text}: {modes[0]} scaling changes this size with the replica count.",
                f"Give {kept}={size or 'SIZE'}, or mode={other}.",
            )


def _kept(overrides: Sequence[str]) -> list[str]:
    """The user's overrides without those that each point has a value of its own for, and without the price: another
    one is no other training."""
    own = {"strategy.replicas", "strategy.devices", "strategy.local_workers", "seed", *_OWNED.values()}
    return [text for text in overrides if _key(text) not in own and not _key(text).startswith("cost.")]


def _defaults(overrides: Sequence[str]) -> list[str]:
    """What a study needs and the user did not say: where the time goes is a question that it answers."""
    return [] if any(_key(text) == "probe" for text in overrides) else ["probe=true"]


def _sizes(
    config: RunConfig, modes: Sequence[str], counts: Sequence[int]
) -> tuple[dict[tuple[str, int], int], tuple[str, ...]]:
    """The global batch size of every mode and count, and what was decided in words.

    A size that is given is kept. Otherwise the largest count has the batch of a replica, 32 unless given, on each: so
    a strong and a weak study share that point.
    """
    batch, most = config.batch, counts[-1]
    if batch.name == AUTO:
        raise ConfigError(
            "batch=auto finds another size for every replica count, and a study keeps one.",
            "Let src/train.py batch=auto find it once, and give batch.global_batch_size (strong) or "
            "batch.per_replica_batch_size (weak).",
        )
    if batch.global_batch_size is not None and WEAK in modes and batch.global_batch_size % most:
        raise _uneven(batch.global_batch_size, counts)
    given = batch.per_replica_batch_size
    if batch.global_batch_size is not None:
        given = max(1, batch.global_batch_size // most)
    each = given or DEFAULT_PER_REPLICA_BATCH_SIZE
    whole = batch.global_batch_size or each * most
    uneven = [count for count in counts if whole % count]
    if STRONG in modes and uneven:
        raise _uneven(whole, counts)
    sizes = {(mode, count): whole if mode == STRONG else each * count for mode in modes for count in counts}
    says = []
    if STRONG in modes:
        share = ", ".join(str(whole // count) for count in counts)
        says.append(f"Strong scaling: {whole} examples a step at every point, {share} a replica.")
    if WEAK in modes:
        says.append(
            f"Weak scaling: {each} examples a replica and step, {', '.join(str(each * n) for n in counts)} in all."
        )
    return sizes, tuple(says)


def _uneven(size: int, counts: Sequence[int]) -> ConfigError:
    least = math.lcm(*counts)
    near = sorted({max(least, size // least * least), (size // least + 1) * least})
    return ConfigError(
        f"batch.global_batch_size={size} does not split evenly over {', '.join(map(str, counts))} replicas.",
        f"Give batch.global_batch_size={' or '.join(map(str, near))}.",
    )


def _check_points(config: RunConfig, sizes: Mapping[tuple[str, int], int], devices: tuple[int, ...] | None) -> None:
    """Refuse a point whose configuration contradicts itself, before the first one trains."""
    for (_, count), size in sizes.items():
        if devices is not None and count > len(devices):
            raise ConfigError(
                f"strategy.devices={list(devices)} are {len(devices)} GPUs, but replicas asks for {count}.",
                f"Give strategy.devices with {count} indices, or replicas up to {len(devices)}.",
            )
        own = list(devices[:count]) if devices is not None else None
        strategy = replace(config.strategy, replicas=AUTO if own else count, devices=own)
        replace(config, strategy=strategy)
        check_rows(config.augment, size // count)


def _check_gpus(config: RunConfig, counts: Sequence[int], devices: tuple[int, ...] | None) -> None:
    """Refuse more GPUs than the driver knows; where there is no driver, the first point's training says so."""
    known = None if config.strategy.device == "cpu" else num_gpus()
    if known is None:
        return
    wanted = max(devices) + 1 if devices is not None else counts[-1]
    if wanted > known:
        fewer = [count for count in counts if count <= known]
        possible = f"'replicas=[{','.join(map(str, fewer))}]'" if len(fewer) > 1 else "a machine with more GPUs"
        raise ConfigError(
            f"replicas={list(counts)} asks for {wanted} GPUs; found {known}.",
            f"Give {possible}, or strategy.device=cpu to rehearse the study on logical devices of the CPU.",
        )


def num_gpus() -> int | None:
    """NVIDIA GPUs of this machine, without starting TensorFlow; None where there is no driver to ask."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
