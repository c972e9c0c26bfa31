"""The connections between the processes of one training: one thread that owns them, beats, and notices who is lost."""

import contextlib
import os
import queue
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from manyfit.cluster import Cluster
from manyfit.errors import EXIT_FAILED
from manyfit.peers.ending import flush_streams, say, wait_for_the_end
from manyfit.peers.lines import Connection, Fault, PeerError, encoded, error_of

STARTING_SECONDS = 120.0
"""How long a process may be silent while it starts: an import of TensorFlow's library lets no other thread run."""

LEAVE_SECONDS = 5.0
"""How long after a loss the main thread may take to hear of it; it may be in a call that never returns."""

CLOSE_SECONDS = 60.0
"""How long it may then take to close what is open, and to end."""

_MOST_BEAT_SECONDS = 2.0
_FLUSH_SECONDS = 2.0
_LINGER_SECONDS = 1.0


class Links:
    """The connections of one process: rank 0 has one to every other rank, the others have one to rank 0.

    Nothing here waits for a peer but `next`.

    Args:
        connections: Accepted and greeted.
        lost_after_seconds: How long a peer that has started may be silent.
        leave: Ends the process.

    Attributes:
        fault: Why the processes cannot go on together; None while they can.
    """

    def __init__(
        self,
        cluster: Cluster,
        connections: list[Connection],
        *,
        lost_after_seconds: float,
        leave: Callable[[int], Any] = os._exit,
    ):
        self.fault: Fault | None = None
        self._on_lost: Callable[[str], Any] = say
        self._has_started = False
        self._cluster = cluster
        self._connections = {connection.rank: connection for connection in connections}
        self._lost_after = lost_after_seconds
        self._beat_seconds = min(_MOST_BEAT_SECONDS, lost_after_seconds / 5)
        self._leave = leave
        self._inbox: queue.SimpleQueue[Fault | tuple[int, Mapping[str, Any] | None]] = queue.SimpleQueue()
        self._outbox: deque[Fault | tuple[int | None, bytes]] = deque()
        self._goodbye: bytes | None = None
        self._closed, self._done = threading.Event(), threading.Event()
        self._is_known = False  # the main thread has heard of the fault
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="peers", daemon=True)

    def start(self) -> None:
        """Begin to beat and to listen."""
        for connection in self._connections.values():
            connection.prepare()
            connection.heard = time.monotonic()
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._thread.start()

    # --- the main thread's side ---------------------------------------------------------------------------------------

    def send(self, message: Mapping[str, Any], rank: int | None = None) -> None:
        """Send a message to a rank, or to every connection."""
        self.send_line(encoded(message), rank)

    def send_line(self, line: bytes, rank: int | None = None) -> None:
        """Send a message that is encoded already."""
        self._outbox.append((rank, line))
        self._wake()

    def next(self) -> tuple[int, Mapping[str, Any] | None]:
        """The next message, with its rank; None for a goodbye.

        Raises:
            PeerError: a fault.
        """
        if self.fault is None:
            item = self._inbox.get()
            if not isinstance(item, Fault):
                return item
        error = self.lost(0.0)
        assert error is not None
        raise error

    def lost(self, seconds: float) -> PeerError | None:
        """The fault as an error; it may become known within so many seconds."""
        until = time.monotonic() + seconds
        while self.fault is None and time.monotonic() < until:
            time.sleep(0.02)
        if self.fault is None:
            return None
        self._is_known = True
        return error_of(self.fault)

    def watch(self, on_lost: Callable[[str], Any]) -> None:
        """Tell `on_lost` of a fault; from now on silence of this process means something."""
        self._on_lost, self._has_started = on_lost, True
        self.send({"beat": True})

    def fail(self, fault: Fault) -> None:
        """Tell all that they cannot go on together, this process included."""
        self._outbox.append(fault)
        self._wake()

    def close(self, goodbye: Mapping[str, Any]) -> None:
        """Say goodbye and close the connections; after a fault, wait until it has been told."""
        if self._closed.is_set():
            return
        self._goodbye = encoded({"goodbye": goodbye})
        self._closed.set()
        self._wake()
        self._done.wait(_FLUSH_SECONDS + _LINGER_SECONDS + 1.0)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake; closed: nobody is there
            self._waker.send(b"\0")

    # --- the thread's side --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._turn()
        except Exception as error:  # a mistake here must not leave the main thread waiting for ever
            self._found(Fault(f"The connection of the ranks failed: {type(error).__name__}: {error}.", EXIT_FAILED))
        if self.fault is not None:
            self._end_with(self.fault)
        else:
            self._say_goodbye()

    def _turn(self) -> None:
        beat_at = turned_at = time.monotonic()
        while self.fault is None and not self._closed.is_set():
            for key, events in self._selector.select(max(0.0, beat_at - time.monotonic())):
                if key.data is None:
                    self._drain()
                    continue
                if events & selectors.EVENT_WRITE:
                    self._flush(key.data)
                if events & selectors.EVENT_READ:
                    self._receive(key.data)
            self._take_outbox()
            now = time.monotonic()
            if now >= beat_at:
                beat_at = now + self._beat_seconds
                self._queue(None, encoded({"beat": self._has_started}))
            if now - turned_at > 2 * self._beat_seconds:  # this process itself stood still, and heard nobody meanwhile
                for connection in self._connections.values():
                    connection.heard = now
            turned_at = now
            self._judge(now)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(1 << 12):
                pass

    def _take_outbox(self) -> None:
        while self._outbox:
            item = self._outbox.popleft()
            if isinstance(item, Fault):
                self._found(item)
            else:
                self._queue(*item)

    def _queue(self, rank: int | None, line: bytes) -> None:
        for connection in list(self._connections.values()):
            if rank is None or connection.rank == rank:
                connection.outgoing += line
                self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        connection.write()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outgoing else 0)
        self._selector.modify(connection.socket, wanted, connection)

    def _receive(self, connection: Connection) -> None:
        messages, ended = connection.read()
        for message in messages:
            self._understand(connection, message)
        if ended is None or connection.rank not in self._connections:
            return
        self._drop(connection)
        if not connection.said_goodbye:
            name = self._cluster.name(connection.rank)
            self._found(Fault(f"{name} is lost: its process or its host has ended ({ended})."), connection.rank)

    def _understand(self, connection: Connection, message: Any) -> None:
        rank, name = connection.rank, self._cluster.name(connection.rank)
        match message:
            case {"beat": has_started}:
                connection.has_started = bool(has_started)
            case {"call": _} | {"reply": _}:
                self._inbox.put((rank, message))
            case {"goodbye": {"error": str(error), "exit_code": int(code)}}:
                connection.said_goodbye = True
                self._found(Fault(f"{name} has ended with an error: {error}", code), rank)
            case {"goodbye": _}:
                connection.said_goodbye = True
                self._inbox.put((rank, None))
            case {"unresolved": _}:
                pass  # from before all had come
            case {"fault": str(told), "exit_code": int(code), "remedy": str(remedy)}:
                self._found(Fault(told, code, remedy), rank)
            case _:
                self._found(Fault(f"{name} sent what cannot be read: {str(message)[:80]}."), rank)

    def _drop(self, connection: Connection) -> None:
        del self._connections[connection.rank]
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _judge(self, now: float) -> None:
        for rank, connection in list(self._connections.items()):
            limit = self._lost_after if connection.has_started else max(self._lost_after, STARTING_SECONDS)
            if now - connection.heard > limit and not connection.said_goodbye:
                why = f"not a sign of it for {limit:g} s (its host is down, or its process stands still)"
                self._found(Fault(f"{self._cluster.name(rank)} is lost: {why}."), rank)
                return

    def _found(self, fault: Fault, culprit: int | None = None) -> None:
        """Note the first fault, tell the main thread if it waits, and pass it on to the other ranks."""
        if self.fault is not None:
            return
        self.fault = fault
        self._inbox.put(fault)
        if self._cluster.is_chief:
            line = encoded({"fault": fault.message, "exit_code": fault.exit_code, "remedy": fault.remedy})
            for rank in self._connections:
                if rank != culprit:
                    self._queue(rank, line)

    def _end_with(self, fault: Fault) -> None:
        """Tell whoever watches, and see to it that this process ends: its main thread may never run again."""
        self._flush_all(_FLUSH_SECONDS)
        with contextlib.suppress(Exception):
            self._on_lost(fault.message)
        self._done.set()
        wait_for_the_end(LEAVE_SECONDS, CLOSE_SECONDS, is_closed=self._closed.is_set, is_known=lambda: self._is_known)
        if not self._cluster.is_chief and self._on_lost is not say:
            say(fault.message)  # as a script says its error at its end; the screen belongs to rank 0
        flush_streams()
        self._leave(fault.exit_code)

    def _say_goodbye(self) -> None:
        self._take_outbox()
        assert self._goodbye is not None
        self._queue(None, self._goodbye)
        self._flush_all(_FLUSH_SECONDS)
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_WR)
        # A socket closed with unread bytes is reset, and what was sent last may be lost: read until the others close.
        until = time.monotonic() + _LINGER_SECONDS
        while self._connections and time.monotonic() < until:
            for key, _ in self._selector.select(0.1):
                if key.data is not None and key.data.read()[1] is not None:
                    self._drop(key.data)
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._done.set()
        self._selector.close()
        self._waker.close()
        self._woken.close()

    def _flush_all(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while any(connection.outgoing for connection in self._connections.values()) and time.monotonic() < until:
            for key, events in self._selector.select(0.05):
                if key.data is not None and events & selectors.EVENT_WRITE:
                    self._flush(key.data)
