"""Another rank than 0 until rank 0 says that all are there."""

import selectors
import socket
import time
from collections.abc import Mapping
from typing import Any

from manyfit.cluster import Cluster
from manyfit.errors import EXIT_BAD_CONFIG, ConfigError
from manyfit.peers.lines import Connection, PeerError, encoded
from manyfit.peers.names import Names
from manyfit.peers.waiting import AGAIN_SECONDS, GREET_SECONDS, GREETING, REMEDY, Waiting, send_now


class Visit:
    """Another rank until rank 0 says that all are there."""

    def __init__(self, cluster: Cluster, names: Names, seconds: float, facts: Mapping[str, Any]):
        self._cluster = cluster
        self._names = names
        self._seconds = seconds
        self._facts = facts
        self._host, self._port = cluster.host(0), cluster.port(0)
        self._why = "no answer"

    def run(self, until: float, waits: Waiting) -> tuple[Connection, list[Any]]:
        """The connection to rank 0, and the facts of all ranks."""
        while True:
            connected = self._connect(until)
            if connected is not None:
                connection = Connection(0, connected)
                facts = None
                try:
                    facts = self._wait(connection, until, waits)
                finally:
                    if facts is None:
                        connected.close()
                if facts is not None:
                    return connection, facts
            if time.monotonic() >= until:
                raise PeerError(
                    f"{self._cluster.name(0)} did not appear within {self._seconds:g} s, says "
                    f"{self._cluster.name(self._cluster.rank)}: {self._why}.",
                    REMEDY,
                )
            waits.tell(f"{self._cluster.name(0)}: {self._why}")
            time.sleep(AGAIN_SECONDS)

    def _connect(self, until: float) -> socket.socket | None:
        if (why := self._names.unresolved().get(self._host)) is not None:
            self._why = f"its name does not resolve here ({why})"
            return None
        for family, address in self._names.addresses(self._host):
            left = until - time.monotonic()
            if left <= 0:
                return None
            candidate = socket.socket(family, socket.SOCK_STREAM)
            candidate.settimeout(min(5.0, left))
            try:
                candidate.connect((address, self._port))
                return candidate
            except OSError as error:
                candidate.close()
                self._why = error.strerror or str(error)
        return None

    def _wait(self, connection: Connection, until: float, waits: Waiting) -> list[Any] | None:
        """Greet, and wait for what rank 0 says in the end; None to come again later."""
        connection.prepare()
        unresolved = self._names.unresolved()
        greeting = {
            GREETING: 1,
            "token": self._cluster.token(),
            "rank": self._cluster.rank,
            "facts": self._facts,
            "unresolved": unresolved,
        }
        send_now(connection, encoded(greeting))
        until, joined = min(until, time.monotonic() + GREET_SECONDS), False
        with selectors.DefaultSelector() as selector:
            selector.register(connection.socket, selectors.EVENT_READ)
            while time.monotonic() < until:
                selector.select(min(AGAIN_SECONDS, max(0.0, until - time.monotonic())))
                messages, ended = connection.read()
                while messages:
                    message = messages.pop(0)
                    match message:
                        case {"joined": seconds}:
                            # Rank 0 ends this wait: its own time is up then at the latest.
                            joined, until = True, time.monotonic() + float(seconds) + GREET_SECONDS
                        case {"welcome": list(facts)}:
                            connection.incoming[:0] = b"".join(encoded(later) for later in messages)
                            return facts
                        case {"failed": str(text)}:
                            raise PeerError(text, REMEDY)
                        case {"refused": str(why), "exit_code": int(code)}:
                            raise self._refused(why, code)
                        case _:
                            self._why = "what answers there is no run of this project"
                            return None
                if ended is not None:
                    self._why = "it came and ended again" if joined else f"what listens there hangs up ({ended})"
                    return None
                if joined and self._names.unresolved() != unresolved:
                    unresolved = self._names.unresolved()
                    send_now(connection, encoded({"unresolved": unresolved}))
                if joined:
                    waits.tell("the other workers")
        self._why = "it fell silent" if joined else "what listens there does not answer"
        return None

    def _refused(self, why: str, code: int) -> Exception:
        text = f"{self._cluster.name(0)} refuses {self._cluster.name(self._cluster.rank)}: {why}."
        if code == EXIT_BAD_CONFIG:
            return ConfigError(text, "Give every process a rank of its own: check TF_CONFIG's task index.")
        return PeerError(text, "Two jobs use one port: give this one another, or wait for the other to end.")
