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
        log_mistakes: The most confident wrong predictions of the best model that are kept with their pictures, beside
            the confusion matrix; 0 for neither. `auto`: 16, where it costs at most a twentieth of the run's time.
    """

    name: str = "none"
    tensorboard: bool = False
    system_metrics_seconds: float | None = 2.0
    system_metrics_gpus: Any = AUTO
    log_mistakes: Any = AUTO

    def __post_init__(self) -> None:
        at_least("tracker.system_metrics_seconds", self.system_metrics_seconds, 0.1)
        _check_gpus(self.system_metrics_gpus)
        if self.log_mistakes != AUTO and (type(self.log_mistakes) is not int or self.log_mistakes < 0):
            raise ConfigError(
                f"tracker.log_mistakes={self.log_mistakes} is not one of its choices.",
                "Give auto, or a whole number: 16 for that many, 0 for none.",
            )


@dataclass
class WandbConfig(TrackerConfig):
    """Weights & Biases.

    Args:
        mode: `auto` takes WANDB_MODE if set, else online where there is a key, else offline.
        job_type: What kind of run it is, beside its group; left at `train`, WANDB_JOB_TYPE may name another one, and a
            run that a sweep's agent starts is a `sweep`.
        log_model: `best` uploads the best model when the run has finished, `all` that of every epoch as well.
        log_code: Upload the commit, and the uncommitted changes that the run folder keeps in any case.
        log_every_steps: Log loss, metrics, learning rate and images/s every so many steps; None for epochs alone.
    """

    name: str = "wandb"
    mode: str = AUTO
    project: str = "manyfit"
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    notes: str | None = None
    job_type: str = "train"
    log_model: str = "none"
    log_code: bool = False
    log_every_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("tracker.mode", self.mode, (AUTO, "online", "offline", "disabled"))
        one_of("tracker.log_model", self.log_model, ("none", "best", "all"))
        at_least("tracker.log_every_steps", self.log_every_steps, 1)


def _check_gpus(value: object) -> None:
    """Refuse what is neither `auto`, `all` nor a list of different indices."""
    indices = isinstance(value, list) and all(type(index) is int and index >= 0 for index in value)
    if value in (AUTO, "all") or (indices and value and len(set(value)) == len(value)):
        return
    raise ConfigError(
        f"tracker.system_metrics_gpus={value} is not one of its choices.",
        "Give auto, all, or a list of different indices: [0,2]. For no samples: tracker.system_metrics_seconds=null.",
    )
