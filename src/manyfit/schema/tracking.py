"""The `tracker` group: who is told, and what is sampled of the machine."""

from dataclasses import dataclass, field
from typing import Any

from manyfit.errors import ConfigError
from manyfit.schema.checks import AUTO, at_least, one_of


@dataclass
class TrackerConfig:
    """The tracker that gets the record's numbers as well; `none` tells nobody.

    Args:
        system_metrics_seconds: Interval of the samples of GPUs, CPU, memory and disk, in the run folder and in W&B;
            None for no samples.
        system_metrics_gpus: The GPUs that are sampled: `auto` (those that the run trains on, none for a run on CPUs),
            `all` of the machine, or a list of indices as `nvidia-smi` counts them.
    """

    name: str = "none"
    tensorboard: bool = False
    system_metrics_seconds: float | None = 2.0
    system_metrics_gpus: Any = AUTO

    def __post_init__(self) -> None:
        at_least("tracker.system_metrics_seconds", self.system_metrics_seconds, 0.1)
        _check_gpus(self.system_metrics_gpus)


@dataclass
class WandbConfig(TrackerConfig):
    """Weights & Biases.

    Args:
        mode: `auto` takes WANDB_MODE if set, else online where there is a key, else offline.
    """

    name: str = "wandb"
    mode: str = AUTO
    project: str = "manyfit"
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    notes: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("tracker.mode", self.mode, (AUTO, "online", "offline", "disabled"))


def _check_gpus(value: object) -> None:
    """Refuse what is neither `auto`, `all` nor a list of different indices."""
    indices = isinstance(value, list) and all(type(index) is int and index >= 0 for index in value)
    if value in (AUTO, "all") or (indices and value and len(set(value)) == len(value)):
        return
    raise ConfigError(
        f"tracker.system_metrics_gpus={value} is not one of its choices.",
        "Give auto, all, or a list of different indices: [0,2]. For no samples: tracker.system_metrics_seconds=null.",
    )
