"""Names and ports of the processes of one training: which hosts resolve, and whether this one's port is free."""

import contextlib
import errno
import os
import queue
import socket
import threading
from collections.abc import Iterable

from manyfit.cluster import LOCAL_WORKER, Cluster
from manyfit.errors import EXIT_MAY_RETRY, ConfigError
from manyfit.peers.lines import PeerError

PORT_TAKEN_CODE = 76
"""Exit code of a process that `manyfit.local_workers` started on a port that was taken meanwhile: it takes others."""

_MOST_THREADS = 16
_AGAIN_SECONDS = 0.5


def port_taken(cluster: Cluster, reason: str) -> PeerError:
    """The error for a port on which this process cannot listen, whoever found that out."""
    code = PORT_TAKEN_CODE if os.environ.get(LOCAL_WORKER) else EXIT_MAY_RETRY
    return PeerError(
        f"R{cluster.name(cluster.rank)[1:]} cannot listen on its port {cluster.port(cluster.rank)}: {reason}.",
        "Another process has it: end it, or give this worker another port.",
        code,
    )


def listen(cluster: Cluster) -> socket.socket:
    """A listening socket on this process's own port, on all addresses as TensorFlow's.

    Its accepted connections may live on when it is closed and TensorFlow takes the port: they and gRPC's socket have
    SO_REUSEADDR, with which only two that listen exclude each other.

    Raises:
        PeerError: the port is taken.
        ConfigError: this user may not have it.
    """
    port = cluster.port(cluster.rank)
    try:
        return listening_socket(port, backlog=max(128, cluster.num_workers))
    except PermissionError as error:
        raise ConfigError(
            f"R{cluster.name(cluster.rank)[1:]} may not listen on port {port}: {error.strerror}.",
            "Give the workers ports from 1024 on.",
        ) from error
    except OSError as error:
        raise port_taken(cluster, error.strerror or str(error)) from error


def listening_socket(port: int, backlog: int = 1) -> socket.socket:
    """A socket that listens on a port of all addresses, IPv6 included where the host has it.

    Raises:
        OSError: the port is taken, or must not be used.
    """
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(_NoIPv6):
            return _listening(socket.AF_INET6, port, backlog)
    return _listening(socket.AF_INET, port, backlog)


class _NoIPv6(OSError):
    pass


def _listening(family: socket.AddressFamily, port: int, backlog: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            listener.bind(("", port))
        except OSError as error:
            if family == socket.AF_INET6 and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise _NoIPv6 from error  # compiled in, but turned off
            raise
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


class Names:
    """Resolves hosts in threads, again and again until each is known: a pod's name appears only when the pod does."""

    def __init__(self, hosts: Iterable[str]):
        self._addresses: dict[str, list[tuple[int, str]]] = {}
        self._reasons = dict.fromkeys(hosts, "not yet resolved")
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._stopped = threading.Event()
        for host in self._reasons:
            self._waiting.put(host)
        for _ in range(min(_MOST_THREADS, len(self._reasons))):
            threading.Thread(target=self._work, name="names", daemon=True).start()

    def unresolved(self) -> dict[str, str]:
        """The hosts without an address, each with the reason."""
        return dict(self._reasons)

    def addresses(self, host: str) -> list[tuple[int, str]]:
        """(family, address) of a host; empty while it is unresolved."""
        return self._addresses.get(host, [])

    def stop(self) -> None:
        """Resolve no more."""
        self._stopped.set()

    def _work(self) -> None:
        while not self._stopped.is_set() and self._reasons:
            try:
                host = self._waiting.get(timeout=_AGAIN_SECONDS)
            except queue.Empty:
                continue
            try:
                found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:  # a label that is too long is an error of the encoding
                self._reasons[host] = getattr(error, "strerror", None) or str(error)
                self._stopped.wait(_AGAIN_SECONDS)
                self._waiting.put(host)
            else:
                self._addresses[host] = [(family, str(address[0])) for family, _, _, _, address in found]
                self._reasons.pop(host, None)
