"""One run of several processes: what the chief does for all, and what the other ranks keep for themselves.

Every rank takes the same path through `fit.run`, since each reduction needs all of them. The chief alone writes the run
folder and talks to the tracker; another rank has a folder `workers/rank-N` in it, with its log and its samples.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from manyfit import checkpoint
from manyfit.batch import BatchPlan
from manyfit.checkpoint import Checkpoint
from manyfit.errors import ConfigError
from manyfit.files import to_plain
from manyfit.peers import Peers
from manyfit.record import RunRecord, environment
from manyfit.report.system_samples import WORKERS_NAME

Opened = tuple[RunRecord, Checkpoint | None, list[str]]
"""A record, the checkpoint that the run goes on from (None: from its start), and what to tell."""


class WorkerRecord(RunRecord):
    """The record of a run as a rank that is not the chief has it: in memory alone."""

    def write(self) -> None:
        """The chief writes it."""

    def add_epoch(self, row: dict[str, Any]) -> None:
        """Append the row of one epoch."""
        self.data["epochs"].append(to_plain(row))


@contextlib.contextmanager
def chief_first(peers: Peers, name: str) -> Iterator[None]:
    """Inside comes the chief, and when it is done all others: what it downloads or writes is there for them."""
    if not peers.is_chief:
        peers.broadcast(name)
    yield
    if peers.is_chief:
        peers.broadcast(name, True)


def run_folder(peers: Peers, make: Callable[[], Path]) -> Path:
    """The run folder, which the chief makes, on every rank.

    Raises:
        ConfigError: a rank does not see it.
    """
    folder = Path(peers.broadcast("run folder", str(make()) if peers.is_chief else None))
    blind = [rank for rank, sees in enumerate(peers.gather("folder is there", folder.is_dir())) if not sees]
    if blind:
        raise ConfigError(
            f"The run folder {folder} is not seen by rank {', '.join(map(str, blind))}.",
            "Give hydra.run.dir=PATH, or a working directory, on a file system that all nodes share.",
        )
    return folder


def open_record(peers: Peers, folder: Path, make: Callable[[], Opened]) -> Opened:
    """What the chief's `make` returns, on every rank.

    Raises:
        ConfigError: a rank cannot read that checkpoint.
    """
    record, found, told = make() if peers.is_chief else (None, None, [])
    position = None if found is None else [found.position.epoch, found.position.step]
    sent = peers.broadcast("record", {"data": record.data, "position": position} if record is not None else None)
    if record is None:
        own = folder / WORKERS_NAME / f"rank-{peers.rank}"
        own.mkdir(parents=True, exist_ok=True)
        record = WorkerRecord(own, sent["data"])
        found = None if sent["position"] is None else checkpoint.newest(folder / checkpoint.FOLDER_NAME, told.append)
        position = None if found is None else [found.position.epoch, found.position.step]
    peers.agree("checkpoint", {"position in the training": position})
    return record, found, told


def common_facts(fingerprint: str | None, plan: BatchPlan) -> dict[str, Any]:
    """What must be the same on every rank before the first step, besides the configuration.

    Args:
        fingerprint: Of the examples.
    """
    return {
        "data (fingerprint)": fingerprint,
        "global batch size": plan.global_batch_size,
        "steps an epoch": plan.steps_per_epoch,
    }


def versions() -> dict[str, Any]:
    """The versions of Python and of the libraries, which must be the same on every rank."""
    return dict(environment()["versions"])
