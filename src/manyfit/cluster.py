"""Which processes train together: told by TF_CONFIG, by a Slurm job step, or started on this machine, in that order."""

import json
import os
from collections.abc import Mapping
from typing import Any, NoReturn

from manyfit import slurm
from manyfit.cluster_members import FROM_LOCAL, FROM_SLURM, FROM_TF_CONFIG, Cluster, split_address
from manyfit.errors import ConfigError
from manyfit.schema.place import MultiWorkerConfig

__all__ = [
    "FROM_LOCAL",
    "FROM_SLURM",
    "FROM_TF_CONFIG",
    "LOCAL_WORKER",
    "TF_CONFIG",
    "Cluster",
    "from_tf_config",
    "resolve",
    "split_address",
    "stray",
]

TF_CONFIG = "TF_CONFIG"
LOCAL_WORKER = "MANYFIT_LOCAL_WORKER"
"""Set in the processes that `manyfit.local_workers` starts, to a word that all workers of one start share."""

EXAMPLE = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'


def resolve(config: MultiWorkerConfig, environ: Mapping[str, str] = os.environ) -> Cluster | None:
    """The cluster that this process belongs to; None where its workers have yet to be started on this machine.

    Raises:
        ConfigError: nothing describes a cluster, its description has a mistake, or two descriptions contradict.
    """
    asked = config.local_workers
    if environ.get(TF_CONFIG):
        cluster = from_tf_config(environ[TF_CONFIG], job=environ.get(LOCAL_WORKER, ""))
        if asked is not None and cluster.source != FROM_LOCAL:
            raise _contradiction(asked, "TF_CONFIG is set", cluster)
        return cluster
    cluster = slurm.from_environment(environ)
    if cluster is not None and asked is not None:
        if cluster.num_workers > 1:
            raise _contradiction(asked, "Slurm has started this job step", cluster)
        return None  # one task of a job, as in an interactive session: the workers are processes beside it
    if cluster is None and asked is None:
        raise ConfigError(
            "strategy=multi_worker found no cluster: TF_CONFIG is not set, this is no task of a Slurm job step, and "
            "strategy.local_workers is null.",
            "Give strategy.local_workers=N for N processes on this machine, start it with srun, or set TF_CONFIG in "
            "every process.",
        )
    return cluster


def stray(environ: Mapping[str, str], strategy_name: str) -> str | None:
    """What to tell a user whose strategy does not use the cluster that the surroundings describe; None if none is."""
    if strategy_name == "multi_worker":
        return None
    if text := environ.get(TF_CONFIG):
        try:
            cluster = from_tf_config(text)
        except ConfigError:
            described = "TF_CONFIG is set"
        else:
            if cluster.num_workers == 1:
                return None
            described = f"TF_CONFIG makes this process rank {cluster.rank} of {cluster.num_workers} workers"
    elif (tasks := environ.get("SLURM_STEP_NUM_TASKS", "")).isdecimal() and int(tasks) > 1:
        described = f"Slurm started this process as one of {tasks} tasks"
    else:
        return None
    return (
        f"{described}, but strategy={strategy_name} trains in this process alone: each of them makes a run of its "
        "own. strategy=multi_worker makes one run of all."
    )


def _contradiction(asked: int, found: str, cluster: Cluster) -> ConfigError:
    return ConfigError(
        f"strategy.local_workers={asked} starts processes on this machine, but {found}: {cluster.describe()}.",
        "Leave strategy.local_workers out to be a part of that cluster"
        + (", or unset TF_CONFIG." if cluster.source == FROM_TF_CONFIG else ", or start without srun."),
    )


# --- TF_CONFIG --------------------------------------------------------------------------------------------------------


def from_tf_config(text: str, job: str = "") -> Cluster:
    """The cluster that TF_CONFIG's JSON describes: tasks `chief` (at most one, rank 0) and `worker`.

    Args:
        job: The word of the start that set it, where that was this project; the source is then `local`.

    Raises:
        ConfigError: it is no JSON, or describes no such cluster.
    """
    try:
        told = json.loads(text)
    except ValueError as error:
        _refuse(f"is no JSON ({error}): {text[:80]!r}")
    if not isinstance(told, dict) or not isinstance(told.get("cluster"), dict):
        _refuse("has no 'cluster'")
    jobs = told["cluster"]
    for name in jobs:
        if name not in ("chief", "worker"):
            _refuse(f"has the job '{name}'", _other_job(str(name)))
    chief, workers = _addresses(jobs, "chief"), _addresses(jobs, "worker")
    if len(chief) > 1:
        _refuse(f"has {len(chief)} chiefs", "Give one; the others are workers.")
    if not chief and not workers:
        _refuse("has no list of workers")
    kind, index = _task(told.get("task"))
    among = {"chief": chief, "worker": workers}[kind]
    if not 0 <= index < len(among):
        _refuse(f"makes this process {kind} {index}, but its list '{kind}' has {len(among)}: count from 0")
    try:
        return Cluster(
            FROM_LOCAL if job else FROM_TF_CONFIG,
            (*chief, *workers),
            index if kind == "chief" else index + len(chief),
            job=job,
            has_chief_task=bool(chief),
        )
    except ConfigError as error:
        raise ConfigError(f"TF_CONFIG: {error.message}", error.remedy) from error


def _task(task: Any) -> tuple[str, int]:
    if not isinstance(task, dict) or "type" not in task or "index" not in task:
        _refuse("does not say which task this process is")
    kind, index = task["type"], task["index"]
    if kind not in ("chief", "worker"):
        _refuse(f"makes this process the task '{kind}'", _other_job(str(kind)))
    if isinstance(index, str) and index.isdecimal():
        index = int(index)
    if not isinstance(index, int) or isinstance(index, bool):
        _refuse(f"has the task index {index!r}, which is no whole number")
    return kind, index


def _addresses(jobs: dict[str, Any], name: str) -> tuple[str, ...]:
    addresses = jobs.get(name, [])
    if not isinstance(addresses, list) or not all(isinstance(one, str) for one in addresses):
        _refuse(f"has '{name}': {json.dumps(addresses)[:80]}, which is no list of addresses")
    return tuple(addresses)


def _other_job(name: str) -> str:
    if name in ("ps", "evaluator"):
        return (
            "strategy=multi_worker has no parameter servers and evaluates on its workers: give tasks 'worker', and at "
            "most one 'chief'."
        )
    return "Its jobs are 'worker', and at most one 'chief'."


def _refuse(what: str, remedy: str = "") -> NoReturn:
    raise ConfigError(f"TF_CONFIG {what}.", remedy or f"It looks like {EXAMPLE}.")
