"""What both sides of a meeting of ranks share: the greeting, how long an answer may take, and for whom one waits."""

import time
from collections.abc import Callable
from typing import Any

from manyfit.peers.lines import Connection

GREETING = "manyfit"
REMEDY = "Look at what they wrote, or whether they run; strategy.assemble_seconds=N waits longer."
GREET_SECONDS = 10.0
AGAIN_SECONDS = 0.2
MOST_SHOWN = 6

_TELL_AFTER_SECONDS = 5.0


class Waiting:
    """Says for whom this rank waits, after some seconds and whenever that changes."""

    def __init__(self, show: Callable[[str], Any], until: float):
        self._show = show
        self._until = until
        self._after = time.monotonic() + _TELL_AFTER_SECONDS
        self._said = ""

    def tell(self, whom: str) -> None:
        """It waits for `whom`."""
        now = time.monotonic()
        if now >= self._after and whom != self._said:
            self._said = whom
            self._after = now + 1.0
            self._show(f"Waiting for {whom} ({max(0.0, self._until - now):.0f} s left).")


def send_now(connection: Connection, line: bytes) -> None:
    """Send a short message; a peer that does not take it is found out by reading."""
    connection.outgoing += line
    connection.write()
