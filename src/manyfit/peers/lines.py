"""Messages between the processes of one training: lines of JSON over a connection, and what ends a conversation."""

import contextlib
import json
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from manyfit.errors import EXIT_MAY_RETRY, UserError


@dataclass(frozen=True)
class Fault:
    """Why the processes cannot go on together.

    Args:
        message: Names the rank and its host.
        exit_code: Of the processes that hear of it.
    """

    message: str
    exit_code: int = EXIT_MAY_RETRY
    remedy: str = ""


class PeerError(UserError):
    """The processes of a training cannot assemble or go on together; exit code 75 unless the fault has its own."""

    exit_code = EXIT_MAY_RETRY

    def __init__(self, message: str, remedy: str = "", exit_code: int = EXIT_MAY_RETRY):
        super().__init__(message, remedy)
        self.exit_code = exit_code


def error_of(fault: Fault) -> PeerError:
    """The exception for a fault."""
    return PeerError(fault.message, fault.remedy, fault.exit_code)


@dataclass
class Connection:
    """One connection, its bytes that are not whole lines yet, and what is known of the other side."""

    rank: int
    socket: socket.socket
    incoming: bytearray = field(default_factory=bytearray)
    outgoing: bytearray = field(default_factory=bytearray)
    heard: float = field(default_factory=time.monotonic)
    has_started: bool = False
    said_goodbye: bool = False

    def prepare(self) -> None:
        """No waiting for more to send: messages are short, and somebody waits for each."""
        self.socket.setblocking(False)
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def write(self) -> None:
        """Send what can be sent now. What is broken is noticed by reading, which gets what was said before."""
        while self.outgoing:
            try:
                sent = self.socket.send(self.outgoing)
            except BlockingIOError:
                return
            except OSError:
                self.outgoing.clear()
                return
            del self.outgoing[:sent]

    def read(self) -> tuple[list[Any], str | None]:
        """The messages that have come, and why no more will come; None if they may."""
        ended = None
        while True:
            try:
                data = self.socket.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError as error:
                ended = error.strerror or str(error)
                break
            if not data:
                ended = "the connection was closed"
                break
            self.incoming += data
            self.heard = time.monotonic()
        return self.messages(), ended

    def messages(self) -> list[Any]:
        """The whole lines of what has come, decoded; a line that is no JSON becomes None."""
        *lines, rest = self.incoming.split(b"\n")
        if lines:
            self.incoming = bytearray(rest)
        return [decoded(line) for line in lines]


def encoded(message: Any) -> bytes:
    """A message as a line; NumPy's numbers and arrays as numbers and lists."""
    return json.dumps(message, separators=(",", ":"), default=_plain).encode() + b"\n"


def decoded(line: bytes | bytearray) -> Any:
    """The message of a line; None where it is no JSON."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)
