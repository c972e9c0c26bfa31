"""Which processes train together, as Slurm tells it: the tasks of one job step, their hosts, and ports for them.

TensorFlow's own `SlurmClusterResolver` cannot be told that there is no GPU, sorts hosts as text (n10 before n8, which
gives ranks to the wrong ones) and takes the same port in every job.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from manyfit.cluster_members import FROM_SLURM, Cluster
from manyfit.errors import ConfigError
from manyfit.slurm_hosts import addresses, expand_counts, expand_hosts, in_brackets

FIRST_PORT, LAST_PORT = 20_000, 31_999
"""Below what Linux hands out to clients by itself (32768 and up), so that nobody else has one by chance."""

SPECIAL_STEPS = 0xFFFFFFF0
"""Step numbers from here on are no steps of `srun`: the batch script, an interactive shell, and the like."""

FEWER_NODES = "MANYFIT_FEWER_NODES"
"""Set where a step of one task in a job of several nodes is meant: `src/scale.py` compares numbers of nodes."""

MOST_TASKS = LAST_PORT + 1 - FIRST_PORT


@dataclass(frozen=True)
class Step:
    """A job step as its variables tell it.

    Args:
        job: The number of its job.
        number: Its own in the job.
        restarts: How often the job was put back into the queue.
        rank: This task's.
        num_tasks: How many tasks the step has.
        nodes: The names of its nodes, in Slurm's order.
        tasks_per_node: How many tasks each of them has.
        distribution: How the tasks were laid out over the nodes: `block`, `cyclic`, `plane=N`, ...
    """

    job: int
    number: int
    restarts: int
    rank: int
    num_tasks: int
    nodes: tuple[str, ...]
    tasks_per_node: tuple[int, ...]
    distribution: str

    def node_of_rank(self) -> list[int]:
        """The index of each rank's node.

        Raises:
            ConfigError: the layout is one whose ranks cannot be told from outside.
        """
        kind, _, size = self.distribution.partition("=")
        together = {"block": max(self.tasks_per_node), "cyclic": 1, "plane": int(size or 1)}.get(kind)
        if together is None:
            raise ConfigError(
                f"Slurm laid the tasks of step {self.job}.{self.number} out as '{self.distribution}', which does not "
                "say on which node each rank is.",
                "Start it with srun --distribution=block (or cyclic), and without SLURM_HOSTFILE.",
            )
        left = list(self.tasks_per_node)
        places: list[int] = []
        while any(left):
            for node, waiting in enumerate(left):
                taken = min(together, waiting)
                places += [node] * taken
                left[node] -= taken
        return places


def from_environment(environ: Mapping[str, str]) -> Cluster | None:
    """The tasks of the job step that this process is a task of; None outside of a step.

    Rank r listens on port `base + r`. The base follows from job, step and restart: jobs of near numbers that share a
    node have different ports, and so have two starts of one job, whose old sockets may still be closing.

    Raises:
        ConfigError: the job has several tasks or nodes but this process was not started by `srun`; what Slurm says
            cannot be understood, or contradicts itself; the address of a node cannot be found.
    """
    if not environ.get("SLURM_JOB_ID"):
        return None
    if not _in_step(environ):
        _refuse_several(environ, "this process was started without srun", tasks=_job_tasks(environ))
        return None
    step = read_step(environ)
    if step.num_tasks == 1 and environ.get(FEWER_NODES) != "1":
        _refuse_several(environ, "this step has one task", tasks=1)
    places = step.node_of_rank()
    _check_own_place(step, places, environ)
    hosts = addresses([step.nodes[node] for node in dict.fromkeys(places)])
    base = base_port(step.job, step.number, step.restarts, step.num_tasks)
    workers = [f"{in_brackets(hosts[step.nodes[node]])}:{base + rank}" for rank, node in enumerate(places)]
    return Cluster(FROM_SLURM, tuple(workers), step.rank, job=f"{step.job}.{step.number}")


def _in_step(environ: Mapping[str, str]) -> bool:
    """Whether `srun` started this process; the batch script has a rank as well, but no step."""
    number = environ.get("SLURM_STEP_ID", "")
    return number.isdecimal() and int(number) < SPECIAL_STEPS and "SLURM_PROCID" in environ


def read_step(environ: Mapping[str, str]) -> Step:
    """The job step that a task's variables describe.

    Raises:
        ConfigError: one of them is missing or cannot be understood, or they contradict each other.
    """
    if _count(environ, "SLURM_HET_SIZE", 1) > 1:
        raise ConfigError(
            "This job is heterogeneous (SLURM_HET_SIZE), and a task sees the nodes of its own part alone.",
            "Start the training in a job of one part, or set TF_CONFIG in every task.",
        )
    step = Step(
        job=_count(environ, "SLURM_JOB_ID", None),
        number=_count(environ, "SLURM_STEP_ID", None),
        restarts=_count(environ, "SLURM_RESTART_COUNT", 0),
        rank=_count(environ, "SLURM_PROCID", None),
        num_tasks=_count(environ, "SLURM_STEP_NUM_TASKS", None),
        nodes=tuple(expand_hosts(_text(environ, "SLURM_STEP_NODELIST"))),
        tasks_per_node=tuple(expand_counts(_text(environ, "SLURM_STEP_TASKS_PER_NODE"))),
        distribution=_distribution(environ),
    )
    if len(step.nodes) != len(step.tasks_per_node) or sum(step.tasks_per_node) != step.num_tasks:
        raise ConfigError(
            f"Slurm contradicts itself: SLURM_STEP_NUM_TASKS={step.num_tasks}, "
            f"SLURM_STEP_TASKS_PER_NODE={environ['SLURM_STEP_TASKS_PER_NODE']}, "
            f"SLURM_STEP_NODELIST={environ['SLURM_STEP_NODELIST']}.",
            "Were they set by hand, or left over from another step? Start the training with srun.",
        )
    if step.rank >= step.num_tasks:
        raise ConfigError(
            f"SLURM_PROCID={step.rank} is none of the {step.num_tasks} tasks of the step.", "Start it with srun."
        )
    return step


def _distribution(environ: Mapping[str, str]) -> str:
    """How tasks are laid out over nodes: what comes before the colon is that, the rest is within a node."""
    asked = environ.get("SLURM_DISTRIBUTION") or "block"
    first = re.split(r"[:,]", asked.lower())[0]
    if first == "plane":
        return f"plane={_count(environ, 'SLURM_DIST_PLANESIZE', 1)}"
    return "block" if first in ("*", "") else first


def _check_own_place(step: Step, places: Sequence[int], environ: Mapping[str, str]) -> None:
    """Every task knows where it is itself: so all ranks together check the whole layout."""
    expected = places[step.rank]
    node = _count(environ, "SLURM_NODEID", expected)
    name = environ.get("SLURMD_NODENAME") or step.nodes[expected]
    if node != expected or name != step.nodes[expected]:
        raise ConfigError(
            f"By its layout ({step.distribution}) rank {step.rank} is on {step.nodes[expected]} (node {expected}), but "
            f"Slurm says that it is on {name} (node {node}).",
            "Start the training with srun --distribution=block.",
        )


# --- outside of a step ------------------------------------------------------------------------------------------------


def _job_tasks(environ: Mapping[str, str]) -> int:
    """How many tasks the job was asked for; a batch script without any has one a node."""
    return _count(environ, "SLURM_NTASKS", _count(environ, "SLURM_JOB_NUM_NODES", 1))


def _refuse_several(environ: Mapping[str, str], why: str, tasks: int) -> None:
    """Refuse to train on one node of several in silence."""
    nodes = _count(environ, "SLURM_JOB_NUM_NODES", 1)
    if nodes > 1 or tasks > 1:
        has = f"{nodes} nodes" if nodes > 1 else f"{tasks} tasks"
        srun = f"srun --nodes={nodes} --ntasks-per-node=1" if nodes > 1 else f"srun --ntasks={tasks}"
        raise ConfigError(
            f"strategy=multi_worker would train alone: Slurm job {environ['SLURM_JOB_ID']} has {has}, but {why}.",
            f"Put srun before the command: {srun} python src/train.py ... For this node alone: strategy=mirrored.",
        )


# --- ports ------------------------------------------------------------------------------------------------------------


def base_port(job: int, step: int, restarts: int, num_tasks: int) -> int:
    """The port of rank 0, such that all ranks of a step have theirs within the range.

    The range is cut into equal parts; jobs, steps and restarts that are near each other have different ones.

    >>> base_port(17, 0, 0, 2), base_port(18, 0, 0, 2), base_port(17, 1, 0, 2)
    (20272, 20288, 21840)

    Raises:
        ConfigError: more tasks than the range has room for.
    """
    if num_tasks > MOST_TASKS:
        raise ConfigError(
            f"The step has {num_tasks} tasks, but {FIRST_PORT} to {LAST_PORT} are ports for {MOST_TASKS}.",
            "Start fewer tasks, one a node, or set TF_CONFIG in every task.",
        )
    width = max(16, num_tasks)
    parts = (LAST_PORT + 1 - FIRST_PORT) // width
    return FIRST_PORT + width * ((job + 98 * step + 31 * restarts) % parts)


# --- variables --------------------------------------------------------------------------------------------------------


def _text(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name)
    if not value:
        raise ConfigError(f"This process is a task of a Slurm step, but {name} is not set.", "Start it with srun.")
    return value


def _count(environ: Mapping[str, str], name: str, default: int | None) -> int:
    """A variable that holds a whole number."""
    if name not in environ and default is not None:
        return default
    value = _text(environ, name)
    if not value.isdecimal():
        raise ConfigError(f"{name}={value} is no whole number.", "Was it set by hand? Start the training with srun.")
    return int(value)
