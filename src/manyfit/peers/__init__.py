"""What the processes of one training say to each other beside TensorFlow: values of all ranks, and who is lost.

Rank 0 listens on its own TensorFlow port until all have come, so that no other port has to be open, and keeps these
connections for the whole run. Messages are lines of JSON.
"""

import json
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from manyfit.cluster import Cluster
from manyfit.errors import EXIT_FAILED, EXIT_FINISHED, EXIT_INTERRUPTED, EXIT_MAY_RETRY, ConfigError, UserError
from manyfit.peers.lines import Fault, PeerError, encoded
from manyfit.peers.links import Links
from manyfit.peers.meeting import differences, meet
from manyfit.peers.names import PORT_TAKEN_CODE, port_taken

__all__ = ["PORT_TAKEN_CODE", "PeerError", "Peers", "alone", "assemble", "port_taken"]

LOST_AFTER_SECONDS = 15.0
_NEWS_SECONDS = 2.0


class Peers:
    """The processes of one training, as one of them sees them. As a context manager it says goodbye, with the error.

    `gather`, `broadcast` and `agree` must be called in the same order on all ranks, in the main thread; each waits
    until all ranks have called it, and is interrupted by signals. Values are what JSON holds.

    Attributes:
        cluster: Where the processes are; None for the one process of a training that has no others.
        rank: This process's.
        num_workers: How many there are.

    Raises:
        PeerError: by any of them: a rank is lost, has ended, or called something else.
    """

    def __init__(self, cluster: Cluster | None = None, links: Links | None = None):
        self.cluster = cluster
        self._links = links
        self._calls = 0
        self._ended: set[int] = set()
        self.rank = cluster.rank if cluster else 0
        self.num_workers = cluster.num_workers if cluster else 1

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the run folder and talks to the tracker."""
        return self.rank == 0

    def name(self, rank: int) -> str:
        """A rank in words: `rank 1 (n2:20418)`."""
        return self.cluster.name(rank) if self.cluster else f"rank {rank}"

    def gather(self, name: str, value: Any) -> list[Any]:
        """The values that all ranks gave, by rank, on every rank."""
        return self._exchange("gather", name, value)

    def broadcast(self, name: str, value: Any = None) -> Any:
        """The value that rank 0 gave, on every rank."""
        return self._exchange("broadcast", name, value if self.is_chief else None)

    def agree(self, name: str, facts: Mapping[str, Any], remedy: str = "") -> None:
        """Refuse facts that are not the same on all ranks.

        Raises:
            ConfigError: names what differs, and between which ranks and hosts.
        """
        found = differences([self.name(rank) for rank in range(self.num_workers)], self.gather(name, facts))
        if found:
            raise ConfigError(found, remedy or "Start every worker with the same command, code and data.")

    def watch(self, on_lost: Callable[[str], Any]) -> None:
        """Have `on_lost(message)` called, once and in another thread, when a rank is lost or ends with an error.

        Five seconds after it returned the process ends (exit code 75, or that of the rank that ended with an error); a
        main thread that heard of it (a `PeerError`, `lost`) has a minute to end by itself. Until `watch` is called the
        message goes to stderr.

        Call it after the import of TensorFlow and before the strategy is made: from then on a rank that is silent for
        `lost_after_seconds` is lost; before, for two minutes, since an import may keep all threads from running.
        """
        if self._links is not None:
            self._links.watch(on_lost)

    def lost(self, seconds: float = 0.0) -> PeerError | None:
        """Why the ranks cannot go on together, as an error to raise; None while they can.

        Args:
            seconds: How long to wait for such news, after an error of TensorFlow that may come from it.
        """
        return self._links.lost(seconds) if self._links is not None else None

    @property
    def exit_code(self) -> int | None:
        """Of a process that cannot go on with the others; None while it can. For `on_lost`, which raises nothing."""
        return self._links.fault.exit_code if self._links is not None and self._links.fault is not None else None

    def close(self, error: str | None = None, exit_code: int = EXIT_FAILED) -> None:
        """Say goodbye. With the text of an error the other ranks end as well, with that text and exit code."""
        if self._links is not None:
            self._links.close({} if error is None else {"error": error, "exit_code": exit_code})

    def __enter__(self) -> "Peers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, UserError):
            # TensorFlow's error about a rank that is gone may come before the news that it is.
            loss = self.lost(_NEWS_SECONDS)
            if loss is not None and loss.exit_code == EXIT_MAY_RETRY:
                self.close()
                raise loss from error
        if error is None or (isinstance(error, SystemExit) and error.code in (None, EXIT_FINISHED)):
            self.close()
        elif isinstance(error, UserError):
            self.close(str(error), error.exit_code)
        elif isinstance(error, SystemExit):
            self.close(f"exit code {error.code}", error.code if isinstance(error.code, int) else EXIT_FAILED)
        elif isinstance(error, KeyboardInterrupt):
            self.close("interrupted", EXIT_INTERRUPTED)
        else:
            self.close(f"{type(error).__name__}: {error}")

    def _exchange(self, call: str, name: str, value: Any) -> Any:
        if self._links is None:
            own = json.loads(encoded(value))
            return own if call == "broadcast" else [own]
        self._calls += 1
        message = {"call": call, "name": name, "number": self._calls, "value": value}
        return self._collect(self._links, message) if self.is_chief else self._ask(self._links, message)

    def _ask(self, links: Links, message: dict[str, Any]) -> Any:
        links.send(message, 0)
        while not self._ended:
            _, reply = self._next(links)
            if reply is not None and reply["number"] == message["number"]:
                return reply["value"]
        here = self.name(self.rank)
        raise PeerError(f"{self.name(0)} has ended, while {here} is at '{message['name']}'.", exit_code=EXIT_FAILED)

    def _collect(self, links: Links, message: dict[str, Any]) -> Any:
        values: list[Any] = [None] * self.num_workers
        values[0] = message["value"]
        missing = set(range(1, self.num_workers))
        asked = [message[key] for key in ("call", "name", "number")]
        while missing:
            if ended := missing & self._ended:
                self._fail(links, f"{self.name(min(ended))} has ended, while {self.name(0)} is at '{message['name']}'.")
            rank, told = self._next(links)
            if told is None:
                continue
            if [told.get(key) for key in ("call", "name", "number")] != asked:
                here, there = (f"{one['call']} '{one['name']}'" for one in (message, told))
                self._fail(links, f"The workers went apart: {self.name(0)} is at {here}, {self.name(rank)} at {there}.")
            values[rank] = told["value"]
            missing.discard(rank)
        line = encoded({"reply": "", "number": self._calls, "value": values[0] if asked[0] == "broadcast" else values})
        links.send_line(line)
        return json.loads(line)["value"]

    def _next(self, links: Links) -> tuple[int, Mapping[str, Any] | None]:
        """The next message. A goodbye is one, in its place: what a rank said before is read first."""
        rank, message = links.next()
        if message is None:
            self._ended.add(rank)
        return rank, message

    def _fail(self, links: Links, message: str) -> None:
        fault = Fault(message, EXIT_FAILED)
        links.fail(fault)
        raise PeerError(message, exit_code=fault.exit_code)


def assemble(
    cluster: Cluster,
    *,
    seconds: float,
    facts: Mapping[str, Any],
    lost_after_seconds: float = LOST_AFTER_SECONDS,
    show: Callable[[str], Any] = lambda text: None,
) -> Peers:
    """Wait until all ranks are there, and see that they are about to do the same.

    Args:
        seconds: How long to wait for the others.
        facts: What must be the same on all ranks.
        lost_after_seconds: How long a rank may be silent later, before it counts as lost.
        show: Told, when it takes long, for whom this rank waits.

    Raises:
        PeerError: a rank did not come, its name does not resolve, or its port is taken; exit code 75.
        ConfigError: facts differ, or two processes are the same rank.
    """
    connections = meet(cluster, seconds=seconds, facts=facts, show=show)
    if cluster.num_workers == 1:
        return Peers(cluster)
    links = Links(cluster, connections, lost_after_seconds=lost_after_seconds)
    links.start()
    return Peers(cluster, links)


def alone() -> Peers:
    """The one process of a training that has no others."""
    return Peers()
