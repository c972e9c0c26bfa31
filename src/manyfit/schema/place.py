"""The groups `strategy` and `batch`: where the replicas run, and how many examples make a step."""

from dataclasses import dataclass
from typing import Any

from manyfit.errors import ConfigError
from manyfit.schema.checks import AUTO, at_least, auto_or_count, one_of


@dataclass
class StrategyConfig:
    """Where the replicas run.

    Args:
        replicas: `auto` (every GPU, or one CPU) or a number.
        device: `gpu`, `cpu` (logical devices where `replicas` > 1) or `auto`.
        devices: Indices of the GPUs to use; None for the first `replicas`.
        cross_device_ops: How gradients are summed over the replicas.
    """

    name: str = "mirrored"
    replicas: Any = AUTO
    device: str = AUTO
    devices: list[int] | None = None
    cross_device_ops: str = AUTO

    def __post_init__(self) -> None:
        auto_or_count("strategy.replicas", self.replicas)
        one_of("strategy.device", self.device, (AUTO, "gpu", "cpu"))
        one_of("strategy.cross_device_ops", self.cross_device_ops, (AUTO, "nccl", "hierarchical", "one_device"))
        self._check_devices()
        if self.name not in ("mirrored", "multi_worker", "tpu"):
            count = len(self.devices) if self.devices is not None else self.replicas
            if count not in (AUTO, 1):
                raise ConfigError(
                    f"strategy={self.name} has one replica, but {count} are asked for.",
                    "Use strategy=mirrored, or leave strategy.replicas out.",
                )
            if self.cross_device_ops != AUTO:
                raise ConfigError(
                    f"strategy={self.name} has one replica and reduces nothing across devices.",
                    "Leave strategy.cross_device_ops out, or use strategy=mirrored.",
                )

    def _check_devices(self) -> None:
        if self.devices is None:
            return
        if not self.devices or len(set(self.devices)) != len(self.devices) or min(self.devices) < 0:
            raise ConfigError(
                f"strategy.devices={self.devices} is not a list of different device indices.",
                "Give for example strategy.devices=[0,2].",
            )
        if self.replicas != AUTO and self.replicas != len(self.devices):
            raise ConfigError(
                f"strategy.devices={self.devices} are {len(self.devices)} devices, strategy.replicas={self.replicas}.",
                "Leave one of the two out, or make them agree.",
            )


@dataclass
class MultiWorkerConfig(StrategyConfig):
    """Several processes, on one machine or many, each with its own replicas; which processes: `manyfit.cluster`.

    Args:
        replicas: Of each worker: `auto` (every GPU that it sees, or one CPU) or a number.
        device: Of each worker, as for one.
        devices: Indices of the GPUs of each worker; None for the first `replicas`.
        cross_device_ops: `auto`; `communication` is what sums over the workers.
        local_workers: Processes to start on this machine; None where TF_CONFIG or Slurm says which there are.
        assemble_seconds: How long the workers wait for each other at the start.
        lost_after_seconds: How long a worker may be silent before it counts as lost; one whose process has ended is
            found at once.
        communication: How the workers sum: `ring` (gRPC), `nccl` (between GPUs) or `auto`.
    """

    name: str = "multi_worker"
    local_workers: int | None = None
    assemble_seconds: float = 60.0
    lost_after_seconds: float = 15.0
    communication: str = AUTO

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("strategy.local_workers", self.local_workers, 1)
        at_least("strategy.assemble_seconds", self.assemble_seconds, 1)
        at_least("strategy.lost_after_seconds", self.lost_after_seconds, 1)
        one_of("strategy.communication", self.communication, (AUTO, "ring", "nccl"))
        if self.communication == "nccl" and self.device == "cpu":
            raise ConfigError(
                "strategy.communication=nccl needs GPUs, but strategy.device=cpu.",
                "Use strategy.communication=ring or auto.",
            )
        if self.cross_device_ops != AUTO:
            raise ConfigError(
                f"strategy.cross_device_ops={self.cross_device_ops} is about the devices of one process, but "
                "strategy=multi_worker sums over processes.",
                "Leave it out; strategy.communication=ring or nccl says how workers sum.",
            )


@dataclass
class TPUConfig(StrategyConfig):
    """The cores of a TPU; built as TensorFlow documents it, and NOT RUN: there was no TPU to run it on.

    Args:
        replicas: `auto`: every core of the TPU.
        device: `auto`; it is the TPU.
        devices: None.
        cross_device_ops: `auto`; the TPU's own links sum.
        tpu: `local` on a TPU VM; the name of a Cloud TPU; or its address, `grpc://HOST:8470`.
    """

    name: str = "tpu"
    tpu: str = "local"

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("replicas", "device", "cross_device_ops"):
            if getattr(self, key) != AUTO:
                raise ConfigError(
                    f"strategy.{key}={getattr(self, key)}, but strategy=tpu takes every core of the TPU as it is.",
                    f"Leave strategy.{key} out.",
                )
        if self.devices is not None:
            raise ConfigError(
                f"strategy.devices={self.devices} names GPUs, but strategy=tpu takes every core of the TPU.",
                "Leave strategy.devices out.",
            )
        if not self.tpu.strip():
            raise ConfigError("strategy.tpu is empty.", "Give local, the name of a Cloud TPU, or grpc://HOST:8470.")


NOT_OFFERED = {
    "parameter_server": (
        "strategy=parameter_server is not offered: Keras 3's fit refuses it, under a coordinator's loop its optimizer "
        "loses steps (24 to 34 counted of 40), and updates that do not wait for each other give, even with an atomic "
        "counter, neither the numbers of one device (weights off by 4e-3 to 7e-3 after 40 steps) nor an exact resume.",
        "Use strategy=multi_worker: several machines, the same numbers.",
    ),
    "central_storage": (
        "strategy=central_storage is not offered: it counts the metrics wrongly (1010 examples where there were 50), "
        "and fails on the moving statistics of batch norm.",
        "Use strategy=mirrored strategy.cross_device_ops=one_device, which sums the gradients on one device.",
    ),
}
"""TensorFlow's other strategies, by the names that people try: why not, and what instead."""


def of_one_worker(config: StrategyConfig) -> StrategyConfig:
    """The strategy of a process that tries alone what the workers of `config` do together; any other as it is."""
    if not isinstance(config, MultiWorkerConfig):
        return config
    return StrategyConfig(replicas=config.replicas, device=config.device, devices=config.devices)


DEFAULT_PER_REPLICA_BATCH_SIZE = 32


@dataclass
class BatchConfig:
    """How many examples make a step: at most one of the two sizes; neither means 32 a replica.

    Args:
        remainder: `pad` the last batch of an epoch with rows of weight 0, or `drop` it.
    """

    name: str = "default"
    per_replica_batch_size: int | None = None
    global_batch_size: int | None = None
    remainder: str = "pad"

    def __post_init__(self) -> None:
        one_of("batch.remainder", self.remainder, ("pad", "drop"))
        if self.per_replica_batch_size is not None and self.global_batch_size is not None:
            raise ConfigError(
                f"batch.per_replica_batch_size={self.per_replica_batch_size} and "
                f"batch.global_batch_size={self.global_batch_size} are both given.",
                "Give exactly one: global = per replica x replicas.",
            )
        at_least("batch.per_replica_batch_size", self.per_replica_batch_size, 1)
        at_least("batch.global_batch_size", self.global_batch_size, 1)


@dataclass
class AutoBatchConfig(BatchConfig):
    """The per-replica size at which this model is fastest on these devices, found by short trials.

    Args:
        per_replica_batch_size: None to search; what was found, in the configuration of a run.
        global_batch_size: None; it follows.
        min_steps: Steps that an epoch keeps, however fast a larger batch would be.
    """

    name: str = "auto"
    min_steps: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("batch.min_steps", self.min_steps, 1)
        if self.global_batch_size is not None:
            raise ConfigError(
                f"batch=auto finds the size, but batch.global_batch_size={self.global_batch_size} is given.",
                "Leave one of the two out.",
            )
