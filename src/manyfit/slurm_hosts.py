"""Slurm's short forms of lists written out, and the addresses of its nodes."""

import re
import socket
import subprocess
from collections.abc import Sequence

from manyfit.errors import ConfigError

_MOST_HOSTS = 65_536
_SCONTROL_SECONDS = 20


def expand_hosts(text: str) -> list[str]:
    """The host names of Slurm's short form, in its order.

    What has no simple form is left to `scontrol`, which a container may lack.

    >>> expand_hosts("n[8-11,3],rack[1-2]n[01-02]")
    ['n8', 'n9', 'n10', 'n11', 'n3', 'rack1n01', 'rack1n02', 'rack2n01', 'rack2n02']

    Raises:
        ConfigError: it is no list of hosts.
    """
    hosts: list[str] = []
    for part in re.split(r",(?![^\[\]]*\])", text):  # at commas outside of brackets
        pieces = re.findall(r"[\w.-]+|\[[\d,-]+\]", part)
        names = [""]
        for piece in pieces:
            ends = _numbers(piece[1:-1]) if piece.startswith("[") else [piece]
            if ends is None or len(names) * len(ends) > _MOST_HOSTS:
                return _asked_hosts(text)
            names = [name + end for name in names for end in ends]
        if not pieces or "".join(pieces) != part:
            return _asked_hosts(text)
        hosts += names
    return hosts


def _numbers(ranges: str) -> list[str] | None:
    """`8-11,3` as texts, with the leading zeros of the first number; None if it is something else."""
    found: list[str] = []
    for one in ranges.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", one)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + _MOST_HOSTS:
            return None
        found += [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
    return found


def _asked_hosts(text: str) -> list[str]:
    hosts = (_scontrol("show", "hostnames", text) or "").split()
    if not hosts:
        raise ConfigError(
            f"SLURM_STEP_NODELIST={text} cannot be understood, and scontrol does not expand it.",
            f"Is this list right? scontrol show hostnames '{text}'",
        )
    return hosts


def expand_counts(text: str) -> list[int]:
    """The numbers of Slurm's short form.

    >>> expand_counts("2(x3),1")
    [2, 2, 2, 1]

    Raises:
        ConfigError: it is no list of numbers.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part.strip())
        if match is None:
            raise ConfigError(
                f"SLURM_STEP_TASKS_PER_NODE={text} cannot be understood.", "It looks like 2(x3),1. Start with srun."
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def addresses(nodes: Sequence[str]) -> dict[str, str]:
    """The address at which each node is reached: its name, or what Slurm knows as its address where that says nothing.

    Raises:
        ConfigError: a node has neither.
    """
    found = {node: node for node in nodes if _resolves(node)}
    unknown = [node for node in nodes if node not in found]
    if unknown:
        told = _scontrol("--oneliner", "show", "node", ",".join(unknown)) or ""
        found |= dict(re.findall(r"^NodeName=(\S+).*?\sNodeAddr=(\S+)", told, re.MULTILINE))
    for node in unknown:
        if not _resolves(found.get(node, node)):
            raise ConfigError(
                f"The address of Slurm's node {node} cannot be found: its name does not resolve on this host "
                f"({socket.gethostname()}), and scontrol knows no other.",
                "Add it to the name service or to /etc/hosts of every node; see scontrol show node.",
            )
    return {node: found[node] for node in nodes}


def _resolves(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError):
        return False
    return True


def in_brackets(host: str) -> str:
    """A host as it stands before a port.

    >>> in_brackets("n1"), in_brackets("fe80::1")
    ('n1', '[fe80::1]')
    """
    return f"[{host}]" if ":" in host else host


def _scontrol(*arguments: str) -> str | None:
    """What `scontrol` says; None where it is missing, fails, or waits for a controller that does not answer."""
    try:
        done = subprocess.run(
            ["scontrol", *arguments], capture_output=True, text=True, timeout=_SCONTROL_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
