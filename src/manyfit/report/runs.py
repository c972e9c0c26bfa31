"""Runs as they lie on disk, whatever came of them: record, configuration, epochs, samples, and facts of these."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from manyfit.console import mean_images_per_second
from manyfit.errors import UserError
from manyfit.record import RunRecord
from manyfit.report.system_samples import number, read_samples, read_worker_samples, section
from manyfit.report.verdict import INPUT, flatten
from manyfit.schema import metrics
from manyfit.system.statistics import Statistics, energy_of_all

CONFIG_NAME = "config.yaml"
FINISHED = "finished"
START, FEATURES, TRAIN, WAITING, VALIDATION, PROBE, OTHER = PARTS = (
    "start",
    "features",
    "train",
    "waiting for input",
    "validation",
    "probe",
    "other",
)
"""What a run spends its time on, in the order of the charts. `other` is what the record does not name: saving models,
the tracker, the end."""


@dataclass(frozen=True)
class Run:
    """One run on disk.

    Args:
        folder: The run folder.
        name: Short, and another one than that of every run beside it.
        record: What `record.json` holds.
        settings: The dotted keys of `config.yaml` and their values; None where it cannot be read.
        samples: What `system.jsonl` holds, of rank 0 where there are several workers.
        worker_samples: Those of the other workers, by their rank.
        problems: What could not be read, in words.
    """

    folder: Path
    name: str
    record: Mapping[str, Any]
    settings: Mapping[str, Any] | None = None
    samples: tuple[Mapping[str, Any], ...] = ()
    worker_samples: Mapping[int, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What tells it from every other run."""
        return str(self.folder)

    @property
    def status(self) -> str:
        """`finished`, `failed`, `stopped` or `running`."""
        return str(self.record["status"])

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return self.status == FINISHED

    @property
    def verdict(self) -> Mapping[str, Any]:
        """What bounds it, as the probe measured; empty where none ran."""
        return section(self.record.get("verdict"))

    @property
    def rehearsal(self) -> bool:
        """Whether its pictures were drawn by code."""
        return bool(self.record.get("rehearsal"))

    @property
    def epochs(self) -> Sequence[Mapping[str, Any]]:
        """The row of each epoch that was finished."""
        return self.record["epochs"]

    @property
    def num_replicas(self) -> int | None:
        """Replicas that trained."""
        return number(self.record["strategy"].get("num_replicas"))

    @property
    def devices(self) -> tuple[str, ...]:
        """`GPU:0`, `CPU:1`, ..."""
        names = self.record["strategy"].get("devices")
        names = names if isinstance(names, list | tuple) else ()
        return tuple(str(name).rpartition("device:")[2] or str(name) for name in names)

    @property
    def on_gpu(self) -> bool:
        """Whether its replicas are GPUs."""
        return any(name.upper().startswith("GPU") for name in self.devices)

    @property
    def num_machines(self) -> int:
        """Machines that it ran on, as far as the addresses of its workers tell them apart."""
        workers = self.record["strategy"].get("workers")
        workers = workers if isinstance(workers, list | tuple) else ()
        return len({str(worker).rpartition(":")[0] for worker in workers}) or 1

    @property
    def num_devices(self) -> int | None:
        """Devices that are paid for: GPUs, or the one CPU of each machine that all its logical devices share."""
        if not self.devices:
            return None
        if not self.on_gpu:
            return self.num_machines
        return len(self.devices) * int(number(self.record["strategy"].get("num_workers")) or 1)

    @property
    def samples_by_rank(self) -> dict[int, tuple[Mapping[str, Any], ...]]:
        """The samples of every worker, rank 0 first."""
        return {0: self.samples, **self.worker_samples}

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """The kinds of its GPUs, as far as its samples say."""
        sampled = (sample for samples in self.samples_by_rank.values() for sample in samples)
        found = {str(gpu["name"]) for sample in sampled for gpu in sample["gpus"] if gpu.get("name")}
        return tuple(sorted(found))

    def system_means(self, phase: str) -> dict[str, float]:
        """The mean of each metric of the samples in a phase, as `gpu.0.utilization_percent`, of another worker than
        rank 0 as `rank-1.gpu.0.utilization_percent`; of a record without them (a run that was killed) from the
        samples."""
        system = self._system
        workers = system.get("workers")
        known = [("", system)] + [
            (f"rank-{one.get('rank')}.", one)
            for one in (workers if isinstance(workers, list | tuple) else ())
            if isinstance(one, dict)
        ]
        return {
            prefix + name: mean
            for prefix, one in known
            for name, values in section(section(one.get("phases")).get(phase)).items()
            if (mean := number(section(values).get("mean"))) is not None
        }

    @property
    def joules_per_image(self) -> float | None:
        """Energy of the GPUs for training on one image."""
        return number(self._system.get("joules_per_image"))

    @cached_property
    def _system(self) -> Mapping[str, Any]:
        recorded = section(self.record.get("system"))
        if recorded.get("phases"):
            return recorded
        if not self.samples:
            return {}
        seen = self.examples_seen[-1] if self.epochs else None
        found = {rank: _section_of(samples, seen) for rank, samples in self.samples_by_rank.items()}
        workers = [{"rank": rank, **found[rank]} for rank in self.worker_samples]
        return {**found[0], **energy_of_all(list(found.values())), "workers": workers}

    @property
    def examples_per_step(self) -> int | None:
        """Rows of one update of the weights, over all replicas and micro-batches."""
        return self._times_accumulation("global_batch_size")

    @property
    def examples_per_replica(self) -> int | None:
        """Rows that one replica gets for one update of the weights."""
        return self._times_accumulation("per_replica_batch_size")

    def _times_accumulation(self, key: str) -> int | None:
        batch = self.record["batch"]
        size = number(batch.get(key))
        return None if size is None else size * (number(batch.get("gradient_accumulation")) or 1)

    @property
    def examples_per_epoch(self) -> int | None:
        """Training examples that count in one epoch; padding does not."""
        steps, size = number(self.record["batch"].get("steps_per_epoch")), self.examples_per_step
        num_train = number(self.record["data"].get("num_train"))
        if num_train is None:
            return None
        return num_train if steps is None or size is None else min(num_train, steps * size)

    @property
    def images_per_second(self) -> float | None:
        """Speed of the training, without warm-up and validation."""
        said = number(section(self.record.get("throughput")).get("images_per_second"))
        rows = [{"images_per_second": number(row.get("images_per_second"))} for row in self.epochs]
        speed = said or mean_images_per_second(rows)
        return speed if speed and speed > 0 else None

    @property
    def speed_spread(self) -> float | None:
        """Twice the standard deviation of the epochs' speeds, relative to their mean; None of fewer than three."""
        rates = [rate for row in self.epochs[1:] if (rate := number(row.get("images_per_second")))]
        return 2 * statistics.stdev(rates) / statistics.mean(rates) if len(rates) > 2 else None

    @property
    def best_accuracy(self) -> float | None:
        """The best validation accuracy, 0 to 1."""
        best = number(self.record["best"].get("val_accuracy"))
        known = [value for row in self.epochs if (value := number(row.get("val_accuracy"))) is not None]
        return best if best is not None else max(known, default=None)

    @property
    def total_seconds(self) -> float | None:
        """From the start of the process to its end, the probe left out: what the training itself took.

        None for a run that is not over.
        """
        total = number(self.record["timing"].get("total_seconds"))
        own = None if total is None else total - (number(self.record["timing"].get("probe_seconds")) or 0.0)
        return own if own and own > 0 else None

    @property
    def epoch_seconds(self) -> float | None:
        """Training and validation of an epoch: the median of those after the first, which compiles."""
        took = [sum(seconds) for row in self.epochs if (seconds := _seconds_of(row))]
        took = took[1:] or took
        return statistics.median(took) if took else None

    @cached_property
    def elapsed(self) -> tuple[float | None, ...]:
        """Seconds of the run at the end of each epoch; where the row does not say, the sum of what is known."""
        passed: float | None = number(self.record["timing"].get("startup_seconds")) or 0.0
        found: list[float | None] = []
        for row in self.epochs:
            said, seconds = number(row.get("elapsed_seconds")), _seconds_of(row)
            summed = passed + sum(seconds) if passed is not None and seconds else None
            passed = summed if said is None else said
            found.append(passed)
        return tuple(found)

    @property
    def examples_seen(self) -> tuple[int | None, ...]:
        """Training examples at the end of each epoch."""
        size = self.examples_per_epoch
        return tuple(
            None if size is None else size * int(number(row.get("epoch")) or index)
            for index, row in enumerate(self.epochs, start=1)
        )

    def seconds_to(self, accuracy: float) -> float | None:
        """Seconds of the run until its validation accuracy first reached `accuracy`; None where it never did."""
        for row, elapsed in zip(self.epochs, self.elapsed, strict=True):
            reached = number(row.get("val_accuracy"))
            if reached is not None and reached >= accuracy:
                return elapsed
        return None

    @property
    def time_split(self) -> dict[str, float]:
        """Seconds of each of `PARTS` that took any; waiting for input is the share of the training the probe found."""
        timing = self.record["timing"]
        prepared = number(timing.get("prepare_seconds")) or 0.0
        started = number(timing.get("startup_seconds")) or 0.0
        train = sum(number(row.get("train_seconds")) or 0.0 for row in self.epochs)
        waited = train * (number(section(self.verdict.get("shares")).get(INPUT)) or 0.0)
        parts = {
            START: max(0.0, started - prepared),
            FEATURES: prepared,
            TRAIN: train - waited,
            WAITING: waited,
            VALIDATION: sum(number(row.get("validation_seconds")) or 0.0 for row in self.epochs),
            PROBE: number(timing.get("probe_seconds")) or 0.0,
        }
        total = number(timing.get("total_seconds"))
        parts[OTHER] = max(0.0, total - sum(parts.values())) if total is not None else 0.0
        return {name: seconds for name, seconds in parts.items() if seconds > 0}


def load_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in `folders`, in that order.

    Raises:
        UserError: a folder holds no run, or one that cannot be read; a folder is given twice.
    """
    seen: dict[Path, Path] = {}
    for folder in folders:
        if folder.resolve() in seen:
            raise UserError(f"{folder} is given twice.", "Give each run once; a repeat is a run of its own.")
        seen[folder.resolve()] = folder
    names = _names(list(seen))
    return [_load(folder, name) for folder, name in zip(seen, names, strict=True)]


def _load(folder: Path, name: str) -> Run:
    record = RunRecord.load(folder).data
    problems = []
    settings = None
    try:
        settings = _settings(folder / CONFIG_NAME)
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        reason = str(getattr(error, "strerror", None) or error).splitlines() or ["not YAML"]
        problems.append(f"{CONFIG_NAME} cannot be read ({reason[0][:120]})")
    samples, problem = read_samples(folder)
    worker_samples, worker_problems = read_worker_samples(folder)
    problems += [*([problem] if problem else []), *worker_problems]
    return Run(folder, name, record, settings, samples, worker_samples, tuple(problems))


def _section_of(samples: Sequence[Mapping[str, Any]], num_images: int | None) -> dict[str, Any]:
    found = Statistics()
    for sample in samples:
        if sample.get("phase"):
            found.add(sample)
    node = samples[0].get("node") if samples else None
    indices = sorted({gpu["index"] for sample in samples for gpu in sample["gpus"] if "index" in gpu}, key=str)
    return {"node": node, "gpu_indices": indices, **found.section(num_images)}


def _settings(path: Path) -> dict[str, Any]:
    config = OmegaConf.create(path.read_text(encoding="utf-8"))
    if not isinstance(config, DictConfig):
        raise ValueError("not a mapping of keys to values")
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return flatten({str(key): value for key, value in plain.items()})


def _names(folders: Sequence[Path]) -> list[str]:
    """The last parts of each path that tell them apart: usually the folder's name.

    >>> _names([Path("/study/a/run"), Path("/study/b/run")]), _names([Path("/x/one"), Path("/x/two")])
    (['a', 'b'], ['one', 'two'])
    """
    depth = 1
    parts = [folder.parts for folder in folders]
    while len({part[-depth:] for part in parts}) < len(parts):
        depth += 1
    tails = [list(part[-depth:]) for part in parts]
    while depth > 1 and len({tail[-1] for tail in tails}) == 1:  # `run`, as a study names every one
        tails, depth = [tail[:-1] for tail in tails], depth - 1
    return ["/".join(tail) or str(folder) for tail, folder in zip(tails, folders, strict=True)]


def _seconds_of(row: Mapping[str, Any]) -> list[float]:
    """What a row says that its epoch took: training, validation."""
    return [seconds for name in ("train", "validation") if (seconds := number(row.get(f"{name}_seconds"))) is not None]


def further_metrics(runs: Sequence[Run]) -> list[str]:
    """What any of the runs counted in its validation beside loss and accuracy."""
    names = dict.fromkeys(name for run in runs for row in run.epochs for name in row if name.startswith("val_"))
    return [bare for name in names if (bare := name.removeprefix("val_")) not in metrics.ALWAYS]


def named(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Key and name of each run, for `Page.series`."""
    return ((run.key, run.name) for run in runs)
