"""TensorFlow's strategy over several processes, each with some devices of its own."""

import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Any
from unittest import mock

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2  # pyright: ignore[reportMissingImports]
from tensorflow.python.distribute.collective_all_reduce_strategy import (  # pyright: ignore[reportMissingImports]
    CollectiveAllReduceExtended,
)
from tensorflow.python.eager import context  # pyright: ignore[reportMissingImports]

from manyfit.cluster import Cluster
from manyfit.config import MultiWorkerConfig
from manyfit.errors import EXIT_MAY_RETRY, UserError
from manyfit.peers import port_taken

HEARTBEAT_SECONDS = 100
"""TensorFlow's own watch over the workers, slower than `manyfit.peers`, which can say who was lost."""

GRPC_PACK_BYTES = 4_000_000
"""Gradients are summed in pieces of about this size over gRPC, which is slow with large messages: 100 MB on two
processes took 0.21 s in pieces and 0.43 to 0.52 s whole (loopback). NCCL gets them whole."""

SERVER_FAILED = "Could not start gRPC server"


_NO_PROXY = "no_grpc_proxy"
"""gRPC's own `no_proxy`, which goes before it."""


class CannotJoin(UserError):
    """TensorFlow could not connect the workers."""

    exit_code = EXIT_MAY_RETRY


def join(config: MultiWorkerConfig, cluster: Cluster, names: Sequence[str]) -> tf.distribute.Strategy:
    """`MultiWorkerMirroredStrategy` over the workers of a cluster; every worker has to call it.

    Args:
        names: The devices of this worker: `GPU:0`, or logical CPUs, `CPU:0` and so on.

    Raises:
        CannotJoin: its server does not start, or the others are not there.
    """
    kind = names[0].partition(":")[0]
    # TensorFlow counts the `chief` of a TF_CONFIG first: by rank all are workers.
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(cluster.workers)}),
        task_type="worker",
        task_id=cluster.rank,
        num_accelerators={"GPU": len(names) if kind == "GPU" else 0},
        rpc_layer="grpc",
    )
    implementation = getattr(tf.distribute.experimental.CommunicationImplementation, config.communication.upper())
    by_grpc = kind == "CPU" or config.communication == "ring"
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementation, bytes_per_pack=GRPC_PACK_BYTES if by_grpc else 0
    )

    def devices_of_this_worker(self: Any, resolver: Any, worker_device: str) -> tuple[tuple[str, ...], str]:
        return tuple(f"{worker_device}/device:{name}" for name in names), kind

    _watch_slowly(cluster)
    _past_the_proxy(cluster)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        # Where it finds no GPU it takes one CPU, however many logical ones there are.
        with mock.patch.object(CollectiveAllReduceExtended, "_initialize_local_devices", devices_of_this_worker):
            return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver, communication_options=options)
    except (tf.errors.OpError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        if SERVER_FAILED in str(error):  # somebody took the port while TensorFlow was imported
            raise port_taken(cluster, SERVER_FAILED) from error
        raise CannotJoin(
            f"Rank {cluster.rank} cannot join the other workers at {cluster.workers[cluster.rank]} "
            f"({lines[0][:200].rstrip('.')}).",
            "Start all of them again; if a port is taken, on other ports.",
        ) from error
    finally:
        with contextlib.suppress(ValueError):  # not the main thread: the signals are somebody else's
            signal.signal(signal.SIGTERM, on_sigterm)  # TensorFlow takes it, and does nothing with it


def _past_the_proxy(cluster: Cluster) -> None:
    """Let gRPC reach the workers directly: it takes `http_proxy` for every host, and then waits for ever."""
    known = os.environ.get(_NO_PROXY) or os.environ.get(_NO_PROXY.replace("grpc_", "")) or ""
    hosts = [cluster.host(rank) for rank in range(cluster.num_workers)]
    os.environ[_NO_PROXY] = ",".join(dict.fromkeys([*filter(None, known.split(",")), *hosts]))


def _watch_slowly(cluster: Cluster) -> None:
    """Give TensorFlow's coordination service a longer patience: it would end a run without saying who was lost."""
    if context.context().coordination_service is not None:
        return
    job = coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=cluster.num_workers)
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        coordinated_jobs=[job],
        heartbeat_timeout_in_ms=1000 * HEARTBEAT_SECONDS,
    )
