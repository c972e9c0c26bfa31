"""What each of several workers on this machine gets for itself: a port, and a share of the GPUs."""

import contextlib
import random
from collections.abc import Mapping

from manyfit.errors import ConfigError
from manyfit.peers.names import listening_socket

FIRST_PORT, LAST_PORT = 20000, 32000
"""Ports below the range from which systems take those of outgoing connections (32768 on Linux)."""


def free_ports(count: int) -> list[int]:
    """Different ports on which nobody listens now, in an order of chance: two starts seldom choose the same.

    Raises:
        ConfigError: there are not so many.
    """
    candidates = random.SystemRandom().sample(range(FIRST_PORT, LAST_PORT), LAST_PORT - FIRST_PORT)
    with contextlib.ExitStack() as stack:
        ports = []
        for port in candidates:
            with contextlib.suppress(OSError):
                stack.enter_context(contextlib.closing(listening_socket(port)))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise ConfigError(f"{count} workers need as many free ports from {FIRST_PORT} to {LAST_PORT}; {len(ports)} are.")


def gpu_shares(num_workers: int, environ: Mapping[str, str], device: str) -> list[str | None]:
    """CUDA_VISIBLE_DEVICES of each worker, the same number of GPUs each; None to leave it as it is.

    Raises:
        ConfigError: fewer GPUs than workers.
    """
    gpus = [] if device == "cpu" else _visible_gpus(environ)
    if not gpus:
        return [None] * num_workers
    each = len(gpus) // num_workers
    if each == 0:
        raise ConfigError(
            f"strategy.local_workers={num_workers} needs a GPU for each worker, but {len(gpus)} can be seen.",
            f"Give strategy.local_workers={len(gpus)}, or strategy.device=cpu.",
        )
    return [",".join(gpus[rank * each : (rank + 1) * each]) for rank in range(num_workers)]


def _visible_gpus(environ: Mapping[str, str]) -> list[str]:
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        words = [word.strip() for word in visible.split(",")]
        end = next((index for index, word in enumerate(words) if word in ("", "-1")), len(words))
        return words[:end]  # CUDA ignores what follows a device that does not exist
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [str(index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()
