"""How the processes of one training find each other: rank 0 listens, the others come, and all must have the same."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from manyfit.cluster import Cluster
from manyfit.errors import ConfigError
from manyfit.peers.lines import Connection
from manyfit.peers.names import Names, listen
from manyfit.peers.reception import Reception
from manyfit.peers.visit import Visit
from manyfit.peers.waiting import MOST_SHOWN, Waiting


def meet(cluster: Cluster, *, seconds: float, facts: Mapping[str, Any], show: Callable[[str], Any]) -> list[Connection]:
    """The connections to the other ranks, once all are there and have the same facts.

    Raises:
        PeerError: a rank did not come, its name does not resolve, or its port is taken.
        ConfigError: facts differ, or two processes are this rank.
    """
    until = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(listen(cluster)))
        if cluster.num_workers == 1:
            return []
        names = Names({cluster.host(rank) for rank in range(cluster.num_workers)})
        stack.callback(names.stop)
        waits = Waiting(show, until)
        if cluster.is_chief:
            reception = stack.enter_context(Reception(cluster, listener, names, seconds, facts))
            connections, all_facts = reception.run(until, waits)
        else:
            connection, all_facts = Visit(cluster, names, seconds, facts).run(until, waits)
            connections = [connection]
    found = differences([cluster.name(rank) for rank in range(cluster.num_workers)], all_facts)
    if found:
        for connection in connections:
            connection.socket.close()
        raise ConfigError(found, "Start every worker with the same command, code, data and packages.")
    return connections


def differences(names: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> str:
    """What differs between the facts of the ranks and those of rank 0, in a sentence; empty for nothing."""
    flat = [dict(_leaves(one)) if isinstance(one, Mapping) else {} for one in facts]
    found = []
    for rank, there in enumerate(flat):
        for key in dict.fromkeys((*flat[0], *there)):
            here, other = (str(one.get(key, "not there")) for one in (flat[0], there))
            if here != other:
                found.append(f"{key} is {_short(here)} on {names[0]}, {_short(other)} on {names[rank]}")
    if not found:
        return ""
    more = f"; and {len(found) - MOST_SHOWN} more" if len(found) > MOST_SHOWN else ""
    return f"The workers differ: {'; '.join(found[:MOST_SHOWN])}{more}."


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
