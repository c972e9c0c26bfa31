"""What was asked: `check` turns a composed config into the dataclasses of `manyfit.schema`, whose names are here too.

Each group's YAML choice has one dataclass in `manyfit.schema`, so that a key which a choice does not have is refused.
"""

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from manyfit.errors import ConfigError
from manyfit.schema.augment import AugmentConfig, LightAugmentConfig, StrongAugmentConfig
from manyfit.schema.checks import AUTO, nearest
from manyfit.schema.cost import CostConfig
from manyfit.schema.data import EMNIST_CLASSES, DataConfig, EmnistConfig, SyntheticConfig
from manyfit.schema.lasting import RESUME_AUTO, CheckpointConfig, ResumeConfig, WatchdogConfig
from manyfit.schema.learning import (
    AdamConfig,
    AdamWConfig,
    CosineConfig,
    EarlyStoppingConfig,
    EMAConfig,
    LossConfig,
    OptimizerConfig,
    PlateauConfig,
    PrecisionConfig,
    RampConfig,
    ScheduleConfig,
    SGDConfig,
    StepConfig,
    SWAConfig,
)
from manyfit.schema.model import (
    ApplicationConfig,
    BackboneConfig,
    HeadConfig,
    MobileNetV2Config,
    ModelConfig,
    ModuleConfig,
    SmallCNNConfig,
)
from manyfit.schema.phases import PhaseConfig
from manyfit.schema.place import (
    DEFAULT_PER_REPLICA_BATCH_SIZE,
    NOT_OFFERED,
    AutoBatchConfig,
    BatchConfig,
    MultiWorkerConfig,
    StrategyConfig,
    TPUConfig,
)
from manyfit.schema.profile import ProfileConfig
from manyfit.schema.run import CHOICE_KEY, SCHEMAS, SECTIONS, RunConfig
from manyfit.schema.tracking import TrackerConfig, WandbConfig

__all__ = [
    "AUTO",
    "AdamConfig",
    "AdamWConfig",
    "ApplicationConfig",
    "AugmentConfig",
    "AutoBatchConfig",
    "BackboneConfig",
    "BatchConfig",
    "CHOICE_KEY",
    "CheckpointConfig",
    "CosineConfig",
    "CostConfig",
    "DEFAULT_PER_REPLICA_BATCH_SIZE",
    "DataConfig",
    "EMAConfig",
    "EMNIST_CLASSES",
    "EarlyStoppingConfig",
    "EmnistConfig",
    "HeadConfig",
    "LightAugmentConfig",
    "LossConfig",
    "MobileNetV2Config",
    "ModelConfig",
    "ModuleConfig",
    "MultiWorkerConfig",
    "OptimizerConfig",
    "PhaseConfig",
    "PlateauConfig",
    "PrecisionConfig",
    "ProfileConfig",
    "RESUME_AUTO",
    "RampConfig",
    "ResumeConfig",
    "RunConfig",
    "SCHEMAS",
    "SGDConfig",
    "SWAConfig",
    "ScheduleConfig",
    "SmallCNNConfig",
    "StepConfig",
    "StrategyConfig",
    "StrongAugmentConfig",
    "SyntheticConfig",
    "TPUConfig",
    "TrackerConfig",
    "WandbConfig",
    "WatchdogConfig",
    "check",
    "from_yaml",
    "nearest",
    "to_yaml",
    "unknown_key",
]


_EXPECTED = {
    "converted to Integer": "Give a whole number.",
    "converted to Float": "Give a number.",
    "not a valid bool": "Give true or false.",
    "not a ListConfig": "Give a list: [FIRST,SECOND].",
    "Incompatible value 'None'": "It cannot be null; leave it out for the default.",
}
"""What to say about a value of the wrong type, by what OmegaConf says about it."""


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """The error for a key that the configuration lacks, with the key that was probably meant.

    Args:
        key: Dotted, from the root.
        known: The dotted keys beside it.
    """
    group, _, name = key.rpartition(".")
    owners = [choice for choice, schema in SCHEMAS.get(group, {}).items() if name in _fields(schema)]
    if owners:
        return ConfigError(f"Unknown key: {key}.", f"It belongs to {group}={' and '.join(owners)}.")
    leaves = {other.rpartition(".")[2]: other for other in known}
    if slip := difflib.get_close_matches(name, leaves, n=1, cutoff=0.9):  # a letter too many or too few
        return ConfigError(f"Unknown key: {key}.", f"Did you mean '{leaves[slip[0]]}'?")
    everywhere = sorted(_all_keys(), key=lambda other: other.partition(".")[0] != key.partition(".")[0])
    similar = [other for other in everywhere if other.rpartition(".")[2] == name]
    similar += [other for other in everywhere if other.endswith(f"_{name}")]
    similar += [other for other in known if "".join(word[:1] for word in other.rpartition(".")[2].split("_")) == name]
    if similar:
        meant = " or ".join(f"'{other}'" for other in list(dict.fromkeys(similar))[:2])
        return ConfigError(f"Unknown key: {key}.", f"Did you mean {meant}?")
    near = difflib.get_close_matches(name, leaves, n=1, cutoff=0.5)
    hint = f"Did you mean '{leaves[near[0]]}'? " if near else ""
    return ConfigError(f"Unknown key: {key}.", f"{hint}Choices: {', '.join(leaves)}.")


def _fields(schema: type) -> list[str]:
    return [f.name for f in dataclasses.fields(schema)]


def _keys(schema: type, prefix: str = "") -> list[str]:
    """The dotted keys of every value below `schema`."""
    keys = []
    for f in dataclasses.fields(schema):
        if isinstance(f.type, type) and dataclasses.is_dataclass(f.type):
            keys += _keys(f.type, f"{prefix}{f.name}.")
        else:
            keys.append(f"{prefix}{f.name}")
    return keys


def _all_keys() -> list[str]:
    """The dotted keys of the root and of every choice of every group."""
    keys = [key for key in _keys(RunConfig) if key.partition(".")[0] not in SCHEMAS]
    for group, choices in SCHEMAS.items():
        keys += [key for schema in choices.values() for key in _keys(schema, f"{group}.")]
    return list(dict.fromkeys(keys))


def _explain(error: OmegaConfBaseException, prefix: str, schema: type, section: DictConfig) -> ConfigError:
    """A ConfigError in the user's words for what OmegaConf found wrong below `prefix`."""
    inner = str(error.full_key or error.key or "")
    key = ".".join(part for part in (prefix, inner) if part)
    if isinstance(error, ConfigKeyError):
        parent = error.object_type if dataclasses.is_dataclass(error.object_type) else schema
        owner = key.rpartition(".")[0]
        return unknown_key(key, [f"{owner}.{name}" if owner else name for name in _fields(parent)])
    if isinstance(error, MissingMandatoryValue):
        return ConfigError(f"{key} has no value.", f"Give {key}=VALUE.")
    reason = str(error.msg or error).splitlines()[0].rstrip(".")
    for said, remedy in _EXPECTED.items():
        if said in reason:
            value = OmegaConf.select(section, inner)
            return ConfigError(f"{key}={'null' if value is None else value} has the wrong type.", remedy)
    return ConfigError(f"{key}: {reason}.", "Give a value of the right type; see conf/ for the defaults.")


def _to_dataclass(schema: type, section: Any, prefix: str) -> Any:
    if not isinstance(section, DictConfig):
        keys = ", ".join(f"{prefix}.{name}" for name in _fields(schema))
        raise ConfigError(f"{prefix}={section} has the wrong type.", f"It is a group of keys: {keys}.")
    for f in dataclasses.fields(schema):
        if isinstance(f.type, type) and dataclasses.is_dataclass(f.type) and f.name in section:
            _to_dataclass(f.type, section[f.name], f"{prefix}.{f.name}")
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), section))
    except OmegaConfBaseException as error:
        raise _explain(error, prefix, schema, section) from error


def _resolved(composed: DictConfig) -> DictConfig:
    """A copy of the composed config without Hydra's own part and with every `${...}` replaced by its value."""
    keys = [str(key) for key in composed if key != "hydra"]
    plain = OmegaConf.masked_copy(composed, keys)
    try:
        OmegaConf.resolve(plain)
    except OmegaConfBaseException as error:
        reason = str(error.msg or error).splitlines()[0].rstrip(".")
        raise ConfigError(f"{reason}.", "Name a key that exists, such as ${epochs}.") from error
    return plain


def check(composed: DictConfig) -> RunConfig:
    """The composed config as dataclasses, every value checked.

    Raises:
        ConfigError: an unknown key, a value of the wrong type or out of range, two keys that contradict each other.
    """
    composed = _resolved(composed)
    groups = {}
    for group, choices in SCHEMAS.items():
        section = composed.get(group)
        if not isinstance(section, DictConfig):
            raise ConfigError(f"{group}={section} is not one of its choices.", f"Choices: {', '.join(choices)}.")
        choice = section.get(CHOICE_KEY[group])
        if group == "strategy" and choice in NOT_OFFERED:
            raise ConfigError(*NOT_OFFERED[choice])
        if choice not in choices:
            raise ConfigError(f"{group}.{CHOICE_KEY[group]}={choice} is unknown.", nearest(choice, choices))
        groups[group] = _to_dataclass(choices[choice], section, group)
    for section_name, schema in SECTIONS.items():
        section = composed.get(section_name, OmegaConf.create({}))  # a run of an older version may lack it
        groups[section_name] = _to_dataclass(schema, section, section_name)
    rest = OmegaConf.create({key: value for key, value in composed.items() if key not in groups})
    known = {f.name: f for f in dataclasses.fields(RunConfig)}
    for key in rest:
        if key not in known:
            raise unknown_key(str(key), known)
    root_schema = dataclasses.make_dataclass(
        "Root", [(name, f.type, f) for name, f in known.items() if name not in groups], namespace={}
    )
    root = _to_dataclass(root_schema, rest, "")
    return RunConfig(**groups, **{f.name: getattr(root, f.name) for f in dataclasses.fields(root_schema)})


def to_yaml(config: RunConfig) -> str:
    """The checked config as plain YAML: what `config.yaml` in a run folder holds."""
    return OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(config)))


def from_yaml(text: str) -> RunConfig:
    """The config that `to_yaml` wrote, checked again."""
    composed = OmegaConf.create(text)
    if not isinstance(composed, DictConfig):
        raise ConfigError("The configuration is not a mapping of keys to values.", "Expected what a run wrote.")
    return check(composed)
