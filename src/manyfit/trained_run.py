"""A run whose model is used: its record, its configuration and its classes, read before TensorFlow starts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from manyfit.config import RunConfig, StrategyConfig, from_yaml
from manyfit.errors import UserError
from manyfit.record import RunRecord

CONFIG_NAME = "config.yaml"
MODEL_NAME = "model.keras"


@dataclass(frozen=True)
class TrainedRun:
    """What a run folder says of the model in it.

    Args:
        folder: The run folder.
        record: What `record.json` holds.
        config: What was asked.
        class_names: One name a class, in the order of the model's scores.
    """

    folder: Path
    record: dict[str, Any]
    config: RunConfig
    class_names: tuple[str, ...]

    @classmethod
    def load(cls, folder: Path) -> "TrainedRun":
        """The run in `folder`.

        Raises:
            UserError: no run, no readable configuration, no class names or no model there.
        """
        record = RunRecord.load(folder).data
        path = Path(folder) / CONFIG_NAME
        try:
            config = from_yaml(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.", "Give the folder of a run.") from error
        except (OmegaConfBaseException, YAMLError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"{path} is not readable YAML: {reason}.", "Restore it, or train again.") from error
        class_names = tuple(str(name) for name in record["data"].get("class_names") or ())
        if len(class_names) < 2:
            raise UserError(f"The record in {folder} names no classes.", "Restore record.json, or train again.")
        if not (Path(folder) / MODEL_NAME).exists():
            raise UserError(
                f"{folder} holds no model: no epoch of that run was saved.", "Give the folder of another run."
            )
        return cls(Path(folder), record, config, class_names)

    @property
    def model_path(self) -> Path:
        """The best model, plain Keras."""
        return self.folder / MODEL_NAME

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.absolute().name

    @property
    def rehearsal(self) -> bool:
        """Whether its pictures were drawn by code."""
        return bool(self.record.get("rehearsal"))


def strategy_config(replicas: int | None, device: str, num_gpus: int) -> StrategyConfig:
    """The strategy of a script that uses a model: GPUs where there are any, else logical CPU devices.

    Args:
        replicas: None for all GPUs, or one CPU.
        device: `auto`, `gpu` or `cpu`.
        num_gpus: GPUs that TensorFlow found.
    """
    if device == "auto":
        device = "gpu" if num_gpus else "cpu"
    return StrategyConfig(name="mirrored", replicas="auto" if replicas is None else replicas, device=device)
