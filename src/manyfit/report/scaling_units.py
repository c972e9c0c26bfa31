"""What a scaling study counts: the replicas of one process, or workers that have some replicas each."""

from dataclasses import dataclass

from manyfit.console import plural

REPLICA, WORKER = "replica", "worker"


@dataclass(frozen=True)
class Unit:
    """What a study counts.

    Args:
        name: `replica`, or `worker`: a process, which may be on a machine of its own.
        replicas: Of each.
    """

    name: str = REPLICA
    replicas: int = 1

    @property
    def plural(self) -> str:
        """Its name for several."""
        return f"{self.name}s"

    @property
    def is_worker(self) -> bool:
        """Whether processes are counted."""
        return self.name == WORKER

    def of(self, num_replicas: int) -> int:
        """How many of it have that many replicas."""
        return num_replicas // self.replicas

    def words(self, num_replicas: int) -> str:
        """How many of it have that many replicas, in words.

        >>> Unit().words(4), Unit("worker").words(1), Unit("worker", 2).words(4)
        ('4 replicas', '1 worker', '2 workers with 4 replicas')
        """
        count = plural(self.of(num_replicas), self.name)
        return count if self.replicas == 1 else f"{count} with {plural(num_replicas, REPLICA)}"


REPLICAS = Unit()
