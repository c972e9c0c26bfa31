"""How a script becomes one of the workers of a run: found, assembled and watched, before TensorFlow is imported."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from manyfit.cluster import resolve
from manyfit.config import MultiWorkerConfig, StrategyConfig, TPUConfig
from manyfit.console import Console
from manyfit.files import to_plain
from manyfit.peers import Peers, alone, assemble
from manyfit.record import RunRecord, environment
from manyfit.report.verdict import flatten
from manyfit.tpu_address import find


def run_workers(strategy: StrategyConfig) -> int | None:
    """Start the workers on this machine, wait for them, and return their exit code; None where this process is one."""
    if not isinstance(strategy, MultiWorkerConfig) or resolve(strategy) is not None:
        return None
    from manyfit import local_workers

    return local_workers.run(strategy.local_workers or 1, sys.argv, device=strategy.device)


@contextlib.contextmanager
def assembled(strategy: StrategyConfig, facts: Mapping[str, Any], console: Console) -> Iterator[Peers]:
    """The other workers, which are there, and about to do the same; nobody for strategies of one process.

    An error inside ends all workers, with its message.

    Args:
        facts: What must be the same in all of them, beside versions and code.

    Raises:
        UserError: a worker is missing, or does something else; there is no TPU for `strategy=tpu`.
    """
    if isinstance(strategy, TPUConfig):
        find(strategy)  # before TensorFlow, which takes minutes to say so
    cluster = resolve(strategy) if isinstance(strategy, MultiWorkerConfig) else None
    if cluster is None or not isinstance(strategy, MultiWorkerConfig):
        yield alone()
        return
    console.print(cluster.describe(), whole_lines=True)
    with assemble(
        cluster,
        seconds=strategy.assemble_seconds,
        facts=flatten(to_plain(facts)) | _program(),
        lost_after_seconds=strategy.lost_after_seconds,
        show=lambda text: console.print(text, whole_lines=True),
    ) as peers:
        yield peers


def console_of(strategy: StrategyConfig, *, verbose: bool = False) -> Console:
    """The screen, which belongs to the chief; the other workers have their logs."""
    cluster = resolve(strategy) if isinstance(strategy, MultiWorkerConfig) else None
    if cluster is not None and not cluster.is_chief:
        return Console(stdout=open(os.devnull, "w", encoding="utf-8"), live=False)
    return Console(live=False if verbose else None)


class OnLost:
    """What is done when another worker is lost, in a thread: tell it, and let the record say it.

    Attributes:
        record: Once there is one.
    """

    def __init__(self, console: Console, peers: Peers):
        self.record: RunRecord | None = None
        self._console = console
        self._peers = peers

    def __call__(self, message: str) -> None:
        """Take note of the end."""
        self._console.print(f"error: {message}", whole_lines=True)
        if self.record is not None and self.record.data["status"] == "running":
            self.record.set_status("failed", exit_code=self._peers.exit_code, error=message)


def _program() -> dict[str, Any]:
    """Versions and code."""
    surroundings = environment()
    versions = {f"version of {name}": version for name, version in surroundings["versions"].items()}
    return versions | {"commit": surroundings["git"].get("commit")}
