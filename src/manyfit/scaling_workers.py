"""A scaling study over workers: how many replicas each has, and how the processes of a point are started."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from manyfit.cluster import TF_CONFIG
from manyfit.config import AUTO, MultiWorkerConfig, RunConfig
from manyfit.console import plural
from manyfit.errors import ConfigError
from manyfit.local_places import gpu_shares
from manyfit.report.scaling_units import WORKER, Unit
from manyfit.slurm import FEWER_NODES, SPECIAL_STEPS
from manyfit.study import Command, Point, train_command

STRATEGY = "strategy=multi_worker"


@dataclass(frozen=True)
class Workers:
    """The workers of a study.

    Args:
        each: What one of them is.
        by_slurm: Slurm starts those of a point on nodes of their own; otherwise they are processes of this machine.
    """

    each: Unit
    by_slurm: bool

    def overrides(self, devices: Sequence[int] | None, count: int) -> tuple[str, ...]:
        """What makes a training one of that many workers.

        Args:
            devices: The GPUs of each; None for the first ones.
        """
        own = f"strategy.replicas={self.each.replicas}"
        if devices is not None:
            own = f"strategy.devices=[{','.join(map(str, devices))}]"
        return (own,) if self.by_slurm else (own, f"strategy.local_workers={count}")

    def says(self, counts: Sequence[int]) -> str:
        """What was decided about them."""
        where = "runs on a node of its own (srun)" if self.by_slurm else "is a process of this machine"
        numbers = ", ".join(map(str, counts))
        return f"Numbers of workers: {numbers}; each has {plural(self.each.replicas, 'replica')} and {where}."


def workers_of(config: RunConfig, counts: Sequence[int], environ: Mapping[str, str] = os.environ) -> Workers:
    """The workers of a study on `counts` of them.

    Raises:
        ConfigError: a strategy of one process, a number of workers beside `counts`, nodes or GPUs that are not there,
            or surroundings that describe another cluster.
    """
    strategy = config.strategy
    if not isinstance(strategy, MultiWorkerConfig):
        raise ConfigError(
            f"workers=[...] compares numbers of processes, but strategy={strategy.name} trains in one.",
            f"Leave strategy out, or give {STRATEGY}; for the devices of one process give 'replicas=[1,2,4]'.",
        )
    if strategy.local_workers is not None:
        raise ConfigError(
            f"strategy.local_workers={strategy.local_workers}: a study sets the number of workers itself.",
            f"Give 'workers=[1,{max(2, strategy.local_workers)}]'.",
        )
    if environ.get(TF_CONFIG):
        raise ConfigError(
            "TF_CONFIG is set, which describes one cluster; a study starts another one for every point.",
            "Unset TF_CONFIG: the points are processes of this machine, or of a Slurm allocation.",
        )
    by_slurm = _by_slurm(environ, counts[-1])
    if config.jit_compile and counts[-1] > 1:
        raise ConfigError("jit_compile=true works on one replica alone.", "Set jit_compile=false.")
    return Workers(Unit(WORKER, _replicas(strategy, counts, environ, by_slurm)), by_slurm)


def command_of(workers: Workers | None, counts: Mapping[str, int], environ: Mapping[str, str] = os.environ) -> Command:
    """What starts a point: the training, which starts its workers itself, or `srun` with it.

    Args:
        workers: None for a study of one process.
        counts: The workers of each point, by its label.
    """
    if workers is None or not workers.by_slurm:
        return train_command
    cpus = environ.get("SLURM_CPUS_PER_TASK")

    def srun(point: Point, folder: Path) -> list[str]:
        count = counts[point.label]
        # Workers end by themselves when one is lost, with its name; --cpus-per-task is not taken from sbatch any more.
        own = ["srun", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--kill-on-bad-exit=0"]
        own += [f"--cpus-per-task={cpus}"] if cpus else []
        return [*own, *train_command(point, folder)]

    return srun


def environment_of(workers: Workers | None) -> dict[str, str]:
    """Variables of the processes of every point."""
    return {FEWER_NODES: "1"} if workers is not None and workers.by_slurm else {}


def _by_slurm(environ: Mapping[str, str], most: int) -> bool:
    """Whether this is a Slurm job of several nodes, on which the points can be started."""
    job = environ.get("SLURM_JOB_ID")
    nodes = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or "1"
    if not job or not nodes.isdecimal() or int(nodes) == 1:
        return False
    step = environ.get("SLURM_STEP_ID", "")
    if step.isdecimal() and int(step) < SPECIAL_STEPS:
        raise ConfigError(
            f"src/scale.py was started with srun (step {job}.{step}), but starts each point with srun itself.",
            "Start it in the batch script, or in the shell that salloc gives, without srun.",
        )
    if most > int(nodes):
        raise ConfigError(
            f"workers asks for {most} nodes, but Slurm job {job} has {nodes}.",
            f"Give numbers up to {nodes}, or ask for more: sbatch --nodes={most}.",
        )
    if shutil.which("srun", path=environ.get("PATH")) is None:
        raise ConfigError(f"This is Slurm job {job}, but there is no srun on the PATH.", "Add its folder to PATH.")
    return True


def _replicas(strategy: MultiWorkerConfig, counts: Sequence[int], environ: Mapping[str, str], by_slurm: bool) -> int:
    """How many replicas each worker has, at every point the same."""
    gpus = 0
    if strategy.device != "cpu":
        on_node = environ.get("SLURM_GPUS_ON_NODE", "") if by_slurm else ""
        visible = gpu_shares(1, environ, strategy.device)[0]
        gpus = int(on_node) if on_node.isdecimal() else len(visible.split(",")) if visible else 0
    asked = len(strategy.devices) if strategy.devices is not None else strategy.replicas
    most = 1 if by_slurm else counts[-1]  # of a machine
    if gpus and asked == AUTO:
        asked = gpus // most
    if gpus and (not asked or most * asked > gpus):
        fewer = [count for count in counts if count * max(1, asked) <= gpus]
        possible = f"'workers=[{','.join(map(str, fewer))}]'" if len(fewer) > 1 else "fewer replicas a worker"
        raise ConfigError(
            f"workers=[{','.join(map(str, counts))}] with {max(1, asked)} GPU{'s' if asked > 1 else ''} each asks for "
            f"{most * max(1, asked)} of this machine; found {gpus}.",
            f"Give {possible}, or strategy.device=cpu to rehearse the study on processes that share the CPU.",
        )
    return 1 if asked == AUTO else int(asked)
