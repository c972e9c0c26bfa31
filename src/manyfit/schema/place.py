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
        if self.name != "mirrored":
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
