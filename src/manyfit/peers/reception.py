"""Rank 0 until all ranks of a training are there: it listens on its port, and sends strangers away."""

import contextlib
import selectors
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from manyfit.cluster import Cluster
from manyfit.errors import EXIT_BAD_CONFIG, EXIT_MAY_RETRY
from manyfit.peers.lines import Connection, PeerError, decoded, encoded
from manyfit.peers.names import Names
from manyfit.peers.waiting import AGAIN_SECONDS, GREET_SECONDS, GREETING, MOST_SHOWN, REMEDY, Waiting, send_now

_MOST_BYTES = 1 << 24


@dataclass
class _Guest:
    """A connection that was accepted; `rank` is -1 until it has greeted.

    One that leaves was told why: it is closed when the other side has read that, and closed as well.
    """

    connection: Connection
    address: str
    since: float = field(default_factory=time.monotonic)
    facts: Any = None
    unresolved: dict[str, str] = field(default_factory=dict)
    leaves: bool = False


class Reception:
    """Rank 0 until all are there."""

    def __init__(
        self, cluster: Cluster, listener: socket.socket, names: Names, seconds: float, facts: Mapping[str, Any]
    ):
        self._cluster = cluster
        self._names = names
        self._seconds = seconds
        self._facts = facts
        self._guests: list[_Guest] = []
        self._remarks: list[str] = []
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def __enter__(self) -> "Reception":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._selector.close()
        for guest in self._guests:
            if kind is not None or guest.leaves or guest.connection.rank < 0:
                guest.connection.socket.close()

    def run(self, until: float, waits: Waiting) -> tuple[list[Connection], list[Any]]:
        """The connections, and the facts of all ranks in their order."""
        while not self._complete():
            left = until - time.monotonic()
            if left <= 0:
                self._give_up()
            waits.tell(self._whom())
            for key, _ in self._selector.select(min(left, AGAIN_SECONDS)):
                if key.data is None:
                    self._accept()
                else:
                    self._hear(key.data)
            for guest in list(self._guests):
                greeted = guest.connection.rank > 0 and not guest.leaves
                if not greeted and time.monotonic() - guest.since > GREET_SECONDS:
                    self._forget(guest)  # a probe that only looks whether the port is open
        came = self._came()
        line = encoded({"welcome": [self._facts, *(came[rank].facts for rank in sorted(came))]})
        for guest in came.values():
            send_now(guest.connection, line)
        return [guest.connection for guest in came.values()], decoded(line)["welcome"]

    def _came(self) -> dict[int, _Guest]:
        return {one.connection.rank: one for one in self._guests if one.connection.rank > 0 and not one.leaves}

    def _missing(self) -> list[int]:
        came = self._came()
        return [rank for rank in range(1, self._cluster.num_workers) if rank not in came]

    def _complete(self) -> bool:
        came = self._came()
        everybody = len(came) == self._cluster.num_workers - 1
        return everybody and not self._names.unresolved() and not any(guest.unresolved for guest in came.values())

    def _accept(self) -> None:
        try:
            accepted, address = self._listener.accept()
        except OSError:
            return
        guest = _Guest(Connection(-1, accepted), _plain_address(address))
        guest.connection.prepare()
        self._guests.append(guest)
        self._selector.register(accepted, selectors.EVENT_READ, guest)

    def _hear(self, guest: _Guest) -> None:
        messages, ended = guest.connection.read()
        for message in messages:
            if not guest.leaves:
                self._understand(guest, message)
        if ended is not None:
            if guest.connection.rank > 0 and not guest.leaves:
                self._remark(f"{self._cluster.name(guest.connection.rank)} came and ended again")
            self._forget(guest)
        elif len(guest.connection.incoming) > _MOST_BYTES:
            self._dismiss(guest)

    def _understand(self, guest: _Guest, message: Any) -> None:
        if guest.connection.rank > 0:
            if isinstance(message, dict) and isinstance(message.get("unresolved"), dict):
                guest.unresolved = message["unresolved"]
            return
        if not (isinstance(message, dict) and message.get(GREETING) == 1 and isinstance(message.get("rank"), int)):
            self._dismiss(guest, f"something at {guest.address} that is no run of this project knocked")
            return
        rank = message["rank"]
        if message.get("token") != self._cluster.token() or not 0 < rank < self._cluster.num_workers:
            self._refuse(
                guest,
                f"it belongs to another job: {self._cluster.describe().partition(';')[0]}",
                EXIT_MAY_RETRY,
                f"rank {rank} of another job, at {guest.address}, knocked",
            )
            return
        if (first := self._came().get(rank)) is not None:
            self._refuse(
                guest,
                f"another process, at {first.address}, is {self._cluster.name(rank)} already",
                EXIT_BAD_CONFIG,
                f"two processes are {self._cluster.name(rank)}: at {first.address} and at {guest.address}",
            )
            return
        guest.connection.rank = rank
        guest.facts = message.get("facts")
        guest.unresolved = dict(message.get("unresolved") or {})
        send_now(guest.connection, encoded({"joined": self._seconds}))

    def _refuse(self, guest: _Guest, why: str, exit_code: int, remark: str) -> None:
        send_now(guest.connection, encoded({"refused": why, "exit_code": exit_code}))
        self._dismiss(guest, remark)

    def _dismiss(self, guest: _Guest, remark: str = "") -> None:
        guest.leaves, guest.since = True, time.monotonic()
        with contextlib.suppress(OSError):
            guest.connection.socket.shutdown(socket.SHUT_WR)
        self._remark(remark)

    def _forget(self, guest: _Guest) -> None:
        self._guests.remove(guest)
        self._selector.unregister(guest.connection.socket)
        guest.connection.socket.close()

    def _remark(self, text: str) -> None:
        if text and text not in self._remarks:
            self._remarks.append(text)

    def _whom(self) -> str:
        return " and ".join(self._lacking()) or "names to resolve"

    def _lacking(self) -> list[str]:
        """What is not there yet: ranks, and names on the hosts of those that are."""
        unresolved = self._names.unresolved()
        missing = self._missing()
        told = []
        for rank in range(self._cluster.num_workers):
            why = unresolved.get(self._cluster.host(rank))
            if rank in missing or why is not None:
                told.append(self._cluster.name(rank) + (f", whose name does not resolve here: {why}" if why else ""))
        for rank, guest in sorted(self._came().items()):
            name = self._cluster.name(rank)
            told += [f"{host}, which {name} cannot resolve: {why}" for host, why in guest.unresolved.items()]
        return told

    def _give_up(self) -> None:
        lacking, here = self._lacking(), len(self._came()) + 1
        more = f"; and {len(lacking) - MOST_SHOWN} more" if len(lacking) > MOST_SHOWN else ""
        text = (
            f"{here} of {self._cluster.num_workers} workers assembled within {self._seconds:g} s. Missing: "
            f"{'; '.join(lacking[:MOST_SHOWN])}{more}."
        )
        if self._remarks:
            text += f" Also: {'; '.join(self._remarks[:MOST_SHOWN])}."
        for guest in self._came().values():
            send_now(guest.connection, encoded({"failed": text}))
            self._dismiss(guest)
        until = time.monotonic() + 1.0
        while self._guests and time.monotonic() < until:
            for key, _ in self._selector.select(0.1):
                if key.data is not None:
                    self._hear(key.data)
        raise PeerError(text, REMEDY)


def _plain_address(address: Any) -> str:
    return str(address[0]).removeprefix("::ffff:")
