"""What is wrong with an override on the command line, said before Hydra composes or after it fails."""

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from manyfit.config import nearest, unknown_key
from manyfit.errors import ConfigError
from manyfit.schema.place import NOT_OFFERED

HYDRA_KEYS = ("hydra.run.dir", "hydra.searchpath", "hydra.verbose")
"""The keys of Hydra's own that a run can be given; the others would do nothing here, or harm."""

SWEEP_DIR = "hydra.sweep.dir"
"""The folder of a multirun."""

LAUNCHER_GROUP = "hydra/launcher"
LAUNCHERS = ("submitit_slurm", "submitit_local")
"""Who may start the jobs of a multirun, beside this project itself."""

SHOW_KEYS = "--help lists the groups, --cfg job every key."
MANY_RUNS = (
    "For several runs, each in a process of its own, add --multirun (-m) to src/train.py, or start a W&B sweep "
    "(wandb sweep sweeps/NAME.yaml)."
)
COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, ValueError)


SHORT_FORMS = {"resume": "resume.folder", "profile": "profile.steps"}


def long_form(text: str) -> str:
    """An override with its short key written out.

    >>> long_form("resume=outputs/mine"), long_form("epochs=3")
    ('resume.folder=outputs/mine', 'epochs=3')
    >>> long_form("profile=true")
    'profile.steps=true'
    """
    key, equals, value = text.partition("=")
    return f"{SHORT_FORMS[key]}={value}" if equals and key in SHORT_FORMS else text


def check_overrides(texts: Sequence[str], config_folder: Path) -> None:
    """Refuse what can be seen to be wrong without composing.

    Raises:
        ConfigError: an override that cannot be parsed, several values for one key, a group given twice or a number
            for a group, a key of Hydra's own that is fixed here.
    """
    choices = group_choices(config_folder)
    parser = OverridesParser.create()
    chosen: dict[str, str] = {}
    for text in texts:
        override = parse_override(parser, text, choices)
        group = override.key_or_group
        if override.is_sweep_override():
            raise _several_values(text, group in choices)
        if override.is_delete():
            raise ConfigError(f"{text}: a key cannot be taken away.", "Give it another value, such as tracker=none.")
        if group == SWEEP_DIR:
            raise ConfigError(f"{text} is the folder of many runs.", "Give hydra.run.dir=PATH, or add --multirun (-m).")
        if is_of_launcher(group):
            raise ConfigError(f"{text} says who starts many runs.", "Add --multirun (-m), or leave it out.")
        if group.split(".")[0].split("/")[0] == "hydra" and group not in HYDRA_KEYS:
            raise ConfigError(f"{text}: {group} is fixed here.", f"Of Hydra's own keys give {', '.join(HYDRA_KEYS)}.")
        if group in choices:
            _check_choice(override, text, choices[group])
            if chosen.setdefault(group, text) != text:
                raise ConfigError(f"{group} is given twice: {chosen[group]} and {text}.", "Give it once.")


def is_of_launcher(key: str) -> bool:
    """Whether a key says who starts the jobs of a multirun, and how."""
    return key == LAUNCHER_GROUP or key.startswith("hydra.launcher.")


def launcher_overrides(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """The overrides of a multirun that are about its launcher, and the others.

    Raises:
        ConfigError: a launcher that starts no processes of its own, or is not installed; values for none.
    """
    ours = [text for text in texts if is_of_launcher(text.lstrip("+~").partition("=")[0])]
    others = [text for text in texts if text not in ours]
    parser = OverridesParser.create()
    parsed = [parse_override(parser, text, {}) for text in ours]
    chosen = [given for given in parsed if given.key_or_group == LAUNCHER_GROUP]
    for given in parsed:
        if given.is_sweep_override() or given.is_delete():
            raise ConfigError(f"{given.input_line}: all jobs are started in the same way.", "Give it one value.")
    if ours and not chosen:
        remedy = f"Give {LAUNCHER_GROUP}=submitit_slurm as well, or leave it out."
        raise ConfigError(f"{ours[0]} is about a launcher that was not chosen.", remedy)
    for given in chosen:
        if given.value() not in LAUNCHERS:
            remedy = "Leave it out for one job after the other, each in a process of its own."
            choices = f"Choices: {', '.join(LAUNCHERS)}. {remedy}"
            raise ConfigError(f"{given.input_line} starts no jobs that are processes of their own.", choices)
        if importlib.util.find_spec("hydra_plugins.hydra_submitit_launcher") is None:
            message = f"{given.input_line} needs the package hydra-submitit-launcher, which is not installed."
            raise ConfigError(message, "Install it: uv sync --extra slurm")
    return ours, others


def explain(error: Exception) -> ConfigError:
    """The ConfigError that says what Hydra or OmegaConf found wrong, without their words for it."""
    if isinstance(error, MissingConfigException):
        return _missing_choice(error)
    cause = error.__cause__ if isinstance(error, ConfigCompositionException) else error
    if isinstance(cause, ConfigKeyError | AttributeError) and isinstance(cause, OmegaConfBaseException):
        return _unknown_key(cause)
    message = str(error).strip()
    first = message.splitlines()[0] if message else type(error).__name__
    present = re.match(r".*already at '(.+?)'", first)
    if present:
        return ConfigError(f"{present[1]} exists already.", f"Leave out the '+': {present[1]}=VALUE.")
    overridden = re.match(r"Could not override '(.+?)'", first)
    if overridden:
        return ConfigError(f"Unknown key: {overridden[1]}.", SHOW_KEYS)
    if isinstance(error, YAMLError):
        place = re.sub(r"\s+", " ", message)
        return ConfigError(f"A configuration file is not valid YAML: {place}.", "Correct the file.")
    return ConfigError(first, SHOW_KEYS)


def group_choices(config_folder: Path) -> dict[str, list[str]]:
    """The names of each group's choices."""
    folders = [folder for folder in sorted(config_folder.iterdir()) if folder.is_dir()]
    return {folder.name: sorted(file.stem for file in folder.glob("*.yaml")) for folder in folders}


def parse_override(parser: OverridesParser, text: str, choices: dict[str, list[str]]) -> Override:
    """The parsed override, or the ConfigError that shows how it should have been written."""
    key, equals, value = text.partition("=")
    if not equals and not key.startswith("~"):
        groups = [group for group, names in choices.items() if key in names and group != "hydra"]
        example = f"{groups[0]}={key}" if groups else f"{key}=VALUE" if re.fullmatch(r"[\w.]+", key) else "KEY=VALUE"
        raise ConfigError(f"{text or repr(text)} has no '='.", f"Write {example}.")
    if not re.fullmatch(r"[+~]*[\w./@:-]+", key):
        raise ConfigError(
            f"{text}: {key!r} is not a key.", f"Write KEY=VALUE, KEY as in epochs or data.root. {SHOW_KEYS}"
        )
    try:
        return parser.parse_override(text)
    except HydraException:
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        raise ConfigError(
            f"{text}: the value cannot be read.",
            f"Quote a value with special characters, for Hydra and for the shell: '{key}=\"{quoted}\"'.",
        ) from None


def _check_choice(override: Override, text: str, names: list[str]) -> None:
    """Refuse what Hydra would meet with an obscure error, or merge: anything but the name of one choice."""
    group, value = override.key_or_group, override.value()
    if override.is_add() or override.is_force_add():
        raise ConfigError(
            f"{text}: {group} is a group, which is chosen, not added.",
            f"Write {group}={value}; in a W&B sweep use --sweep-parameters and ${{args_json_file}}.",
        )
    if isinstance(value, list) and len(value) > 1 and group != "experiment":
        raise ConfigError(f"{text} gives {len(value)} choices, but {group} takes one.", nearest(value[0], names))
    if value is None or isinstance(value, bool | int | float):
        remedy = "Leave it out." if group == "experiment" else nearest(value, names)
        raise ConfigError(f"{text} is not one of its choices.", remedy)


def _several_values(text: str, is_group: bool) -> ConfigError:
    key, _, value = text.partition("=")
    has_no_list = is_group or re.match(r"\w+\(", value)  # range(1,3), choice(...)
    meant = "" if has_no_list else f"For a list write '{key}=[{value}]', for text '{key}=\"{value}\"'.\n"
    return ConfigError(f"{text} gives several values, but a run takes one.", f"{meant}{MANY_RUNS}")


def _missing_choice(error: MissingConfigException) -> ConfigError:
    """The choice that has no file, with its neighbours."""
    group, _, choice = (error.missing_cfg_file or "").rpartition("/")
    if not group:
        return ConfigError(str(error).splitlines()[0], SHOW_KEYS)
    if group == "strategy" and choice in NOT_OFFERED:
        return ConfigError(*NOT_OFFERED[choice])
    if not error.options:
        return ConfigError(f"{group}={choice} does not exist.", f"Leave it out, or add conf/{group}/{choice}.yaml.")
    return ConfigError(f"{group}={choice} is not one of its choices.", nearest(choice, error.options))


def _unknown_key(error: OmegaConfBaseException) -> ConfigError:
    """The first part of the key that the configuration lacks, with the key that was probably meant."""
    full_key = str(error.full_key or error.key)
    owner = full_key.rpartition(".")[0]
    parent = error.parent_node
    if not isinstance(parent, DictConfig) or not len(parent):
        return ConfigError(f"Unknown key: {full_key}.", f"{owner} is a single value: {owner}=VALUE.")
    return unknown_key(full_key, [f"{owner}.{key}" if owner else str(key) for key in parent if key != "hydra"])
