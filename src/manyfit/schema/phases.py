"""`phases`: the parts of a training that follow each other, each with what trains in it and how."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from manyfit.errors import ConfigError
from manyfit.schema.augment import AUGMENTS, AugmentConfig
from manyfit.schema.checks import AUTO, at_least, check_trainable, nearest, one_of
from manyfit.schema.learning import SCHEDULES, EMAConfig, ScheduleConfig, SWAConfig

BATCH_NORM = (AUTO, "inference", "train")


@dataclass
class PhaseConfig:
    """One part of a training; what it leaves out is as in the rest of the configuration.

    Args:
        epochs: How many.
        trainable: Which layers of the backbone train beside the head: `none`, `all`, `last:N`, or patterns of names.
        learning_rate: In the place of `optimizer.learning_rate`.
        schedule: Over the epochs of this phase: a name, or a mapping with `name` and the keys of that schedule.
        augment: The same, of the group `augment`.
        batch_norm: `inference`: the batch norm of a backbone keeps its statistics, also where its scale and offset
            train (Keras' guide "Transfer learning and fine-tuning"); `train`: it takes those of the batch; `auto`:
            `inference` for a backbone that came with weights, else `train`.
    """

    epochs: int
    trainable: Any = None
    learning_rate: float | None = None
    schedule: Any = None
    augment: Any = None
    batch_norm: str = AUTO


def settled(phase: Any, index: int) -> PhaseConfig:
    """The phase, checked, with its schedule and augmentation as dataclasses.

    Args:
        phase: A `PhaseConfig`, or a mapping of its keys.

    Raises:
        ConfigError: no such mapping, a value of the wrong type or out of range, an unknown name or key.
    """
    owner = f"phases[{index}]"
    if not isinstance(phase, PhaseConfig):
        if not isinstance(phase, Mapping):
            raise ConfigError(
                f"{owner}={phase} is no mapping of keys.", f"Give {owner}={{epochs: 3, trainable: none}}."
            )
        phase = _structured(owner, PhaseConfig, phase)
    at_least(f"{owner}.epochs", phase.epochs, 1)
    at_least(f"{owner}.learning_rate", phase.learning_rate, 0, exclusive=True)
    one_of(f"{owner}.batch_norm", phase.batch_norm, BATCH_NORM)
    if phase.trainable is not None:
        check_trainable(f"{owner}.trainable", phase.trainable)
    return dataclasses.replace(
        phase,
        schedule=_choice(f"{owner}.schedule", phase.schedule, SCHEDULES, ScheduleConfig),
        augment=_choice(f"{owner}.augment", phase.augment, AUGMENTS, AugmentConfig),
    )


def epochs_of(phases: Sequence[PhaseConfig], epochs: int, default: int) -> int:
    """The epochs of a run: the sum of its phases' where it has some.

    Args:
        epochs: As asked.
        default: Where nobody asked.

    Raises:
        ConfigError: another number is asked for than the phases have.
    """
    total = sum(phase.epochs for phase in phases)
    if phases and epochs not in (default, total):
        raise ConfigError(
            f"epochs={epochs}, but the phases have {total} epochs in all.",
            "Leave epochs out, and give each phase its own.",
        )
    return total or epochs


def check_averages(swa: SWAConfig, ema: EMAConfig, phases: Sequence[PhaseConfig], epochs: int) -> None:
    """Refuse a mean over more epochs than the last phase has, and two averages of the weights.

    Raises:
        ConfigError: one of them is asked for.
    """
    if swa.epochs is None:
        return
    last = phases[-1].epochs if phases else epochs
    if swa.epochs > last:
        raise ConfigError(
            f"swa.epochs={swa.epochs} are more than the {last} epochs of the {'last phase' if phases else 'run'}.",
            "Give fewer, or more epochs.",
        )
    if ema.decay is not None:
        raise ConfigError(f"swa.epochs={swa.epochs} and ema.decay={ema.decay} both average the weights.", "Give one.")


def _choice(key: str, value: Any, choices: Mapping[str, type], base: type) -> Any:
    """The dataclass of a choice that was given by its name, or by a mapping with its name."""
    if value is None or isinstance(value, base):
        return value
    values = {"name": value} if isinstance(value, str) else value
    if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
        raise ConfigError(
            f"{key}={value} is neither a name nor a mapping with one.",
            f"Give {key}={next(iter(choices))}, or {{name: NAME, KEY: VALUE}}. Names: {', '.join(choices)}.",
        )
    schema = choices.get(values["name"])
    if schema is None:
        raise ConfigError(f"{key}={values['name']} is unknown.", nearest(values["name"], choices))
    return _structured(key, schema, values)


def _structured(owner: str, schema: type, values: Mapping[Any, Any]) -> Any:
    """`values` as an instance of `schema`; what is wrong is told under the keys below `owner`."""
    known = [field.name for field in dataclasses.fields(schema)]
    for name in values:
        if name not in known:
            raise ConfigError(f"Unknown key: {owner}.{name}.", nearest(name, known))
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), dict(values)))
    except MissingMandatoryValue as error:
        key = f"{owner}.{error.key}"
        raise ConfigError(f"{key} has no value.", f"Give {key}=VALUE.") from error
    except OmegaConfBaseException as error:
        key = f"{owner}.{error.full_key or error.key}"
        reason = str(error.msg or error).splitlines()[0].rstrip(".")
        raise ConfigError(f"{key} has the wrong type: {reason}.", "Give a value of the right type.") from error
    except ConfigError as error:
        raise ConfigError(f"{owner}: {error.message}", error.remedy) from error
