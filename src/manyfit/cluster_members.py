"""The processes that train together: their addresses by rank, and which of them this one is."""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from manyfit.errors import ConfigError

FROM_TF_CONFIG, FROM_SLURM, FROM_LOCAL = "TF_CONFIG", "Slurm", "local"
_MOST_SHOWN = 8


@dataclass(frozen=True)
class Cluster:
    """The processes of one training, and which of them this one is.

    Args:
        source: Who says so: `TF_CONFIG`, `Slurm` or `local`.
        workers: `host:port` of each, by rank; an IPv6 address in brackets.
        rank: This process's.
        job: What tells this start from any other with the same addresses: a Slurm job's number, for example.
        has_chief_task: Rank 0 is TF_CONFIG's task `chief`, which is not in its list of workers.
    """

    source: str
    workers: tuple[str, ...]
    rank: int
    job: str = ""
    has_chief_task: bool = False

    def __post_init__(self) -> None:
        _check_addresses(self.workers)
        if not 0 <= self.rank < len(self.workers):
            raise ConfigError(f"Rank {self.rank} is none of {len(self.workers)} workers ({self.source}).")

    @property
    def num_workers(self) -> int:
        """How many processes train together."""
        return len(self.workers)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the run folder and talks to the tracker."""
        return self.rank == 0

    def host(self, rank: int) -> str:
        """The host of a rank, without brackets."""
        return split_address(self.workers[rank])[0]

    def port(self, rank: int) -> int:
        """The port on which TensorFlow of that rank listens."""
        return split_address(self.workers[rank])[1]

    def name(self, rank: int) -> str:
        """A rank in words: `rank 1 (n2:20418)`."""
        return f"rank {rank} ({self.workers[rank]})"

    def tf_config(self) -> dict[str, Any]:
        """What TensorFlow reads from TF_CONFIG, for this process."""
        workers = list(self.workers)
        if not self.has_chief_task:
            return {"cluster": {"worker": workers}, "task": {"type": "worker", "index": self.rank}}
        jobs = {"chief": workers[:1]} | ({"worker": workers[1:]} if workers[1:] else {})
        task = {"type": "chief", "index": 0} if self.is_chief else {"type": "worker", "index": self.rank - 1}
        return {"cluster": jobs, "task": task}

    def describe(self) -> str:
        """One line about it.

        >>> Cluster("Slurm", ("n1:20417", "n2:20418"), 0, job="17").describe()
        '2 workers (Slurm job 17): n1:20417, n2:20418; this is rank 0'
        """
        count = f"{self.num_workers} worker" + ("s" if self.num_workers > 1 else "")
        source = f"Slurm job {self.job}" if self.source == FROM_SLURM and self.job else self.source
        shown = list(self.workers)
        if len(shown) > _MOST_SHOWN:
            shown = [*shown[: _MOST_SHOWN - 2], "...", shown[-1]]
        return f"{count} ({source}): {', '.join(shown)}; this is rank {self.rank}"

    def token(self) -> str:
        """What all ranks of this start share, and no other start has: not a secret, a guard against mix-ups."""
        told = json.dumps([self.source, self.job, self.workers])
        return hashlib.sha256(told.encode()).hexdigest()[:32]


def split_address(address: str) -> tuple[str, int]:
    """Host and port of an address.

    >>> split_address("n1:20417"), split_address("[::1]:2222")
    (('n1', 20417), ('::1', 2222))

    Raises:
        ConfigError: it has no host, or no port from 1 to 65535.
    """
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:/\[\]]+)):(\d{1,5})", address)
    if match is None or not 1 <= int(match[3]) <= 65535:
        raise ConfigError(
            f"The worker address {address!r} is not HOST:PORT.",
            "Give for example n1:2222, and an IPv6 address as [::1]:2222.",
        )
    return match[1] or match[2], int(match[3])


def _check_addresses(addresses: tuple[str, ...]) -> None:
    seen: dict[tuple[str, int], int] = {}
    for rank, address in enumerate(addresses):
        host, port = split_address(address)
        other = seen.setdefault((host.lower(), port), rank)
        if other != rank:
            raise ConfigError(
                f"Ranks {other} and {rank} have the same address {address}.",
                "Each process needs an address of its own: several on one host need different ports.",
            )
