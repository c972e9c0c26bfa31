"""The `tracker` group: who is told."""

from dataclasses import dataclass, field

from manyfit.schema.checks import AUTO, at_least, one_of


@dataclass
class TrackerConfig:
    """The tracker that gets the record's numbers as well; `none` tells nobody."""

    name: str = "none"
    tensorboard: bool = False


@dataclass
class WandbConfig(TrackerConfig):
    """Weights & Biases.

    Args:
        mode: `auto` takes WANDB_MODE if set, else online where there is a key, else offline.
        system_metrics_seconds: Interval of the system metrics (GPU, CPU, memory).
    """

    name: str = "wandb"
    mode: str = AUTO
    project: str = "manyfit"
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    notes: str | None = None
    system_metrics_seconds: float = 2.0

    def __post_init__(self) -> None:
        one_of("tracker.mode", self.mode, (AUTO, "online", "offline", "disabled"))
        at_least("tracker.system_metrics_seconds", self.system_metrics_seconds, 0.1)
