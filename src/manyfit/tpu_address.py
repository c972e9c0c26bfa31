"""Whether there is a TPU where `strategy=tpu` says, asked before TensorFlow, which may wait for it for minutes.

NOT RUN with a TPU: there was none. What is said where there is none has been.
"""

import socket
from pathlib import Path
from urllib.parse import urlsplit

from manyfit.errors import ConfigError
from manyfit.schema.place import TPUConfig

LOCAL = "local"
DEVICES = ("accel*", "vfio/[0-9]*")
"""Below /dev: how a TPU VM shows its chips, older kinds and newer ones."""

METADATA_SERVER = "metadata.google.internal"
"""A name on Google Cloud alone; that of a Cloud TPU is looked up with what it says of the project and the zone."""

SECONDS = 5.0
_DEFAULT_PORT = 8470


def find(config: TPUConfig, devices: Path = Path("/dev")) -> None:
    """Refuse a TPU that is not there, within seconds.

    Args:
        devices: The folder of the device files.

    Raises:
        ConfigError: no TPU at that place.
    """
    where = config.tpu.strip()
    if where == LOCAL:
        if not any(path for pattern in DEVICES for path in devices.glob(pattern)):
            raise ConfigError(
                "strategy=tpu found no TPU on this machine (no /dev/accel* or /dev/vfio/N).",
                "Start it on a TPU VM, or give strategy.tpu=NAME of a Cloud TPU or strategy.tpu=grpc://HOST:8470; on "
                "GPUs or a CPU use strategy=mirrored.",
            )
    elif ":" in where or "/" in where:
        for one in where.split(","):
            _reach(one, *_host_and_port(one))
    else:
        try:
            socket.getaddrinfo(METADATA_SERVER, 80)
        except OSError as error:
            raise ConfigError(
                f"strategy.tpu={where} is the name of a Cloud TPU, which can be looked up on Google Cloud alone; this "
                f"machine does not know {METADATA_SERVER}.",
                "Start it on a machine of that project, or give the address: strategy.tpu=grpc://HOST:8470.",
            ) from error


def _host_and_port(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme != "grpc" or not parts.hostname:
        raise ConfigError(f"strategy.tpu={address} is no address of a TPU.", "Give grpc://HOST:8470.")
    return parts.hostname, port or _DEFAULT_PORT


def _reach(address: str, host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), timeout=SECONDS).close()
    except OSError as error:
        raise ConfigError(
            f"strategy.tpu={address}: nothing answers at {host}:{port} ({error}).",
            "Is the TPU running, and reached from here (the same VPC network, port 8470)?",
        ) from error
