"""A sweep's parameters on their way into a run: as Hydra overrides that keep every value and type, or refused by name.

W&B's agent joins `name=value` with Python's `str`, which loses null, quotes, and the difference between 1 and "1".
Its JSON file loses nothing, so that is what sweep files hand over: `--sweep-parameters ${args_json_file}`.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from manyfit.config import CHOICE_KEY, SCHEMAS, RunConfig
from manyfit.errors import ConfigError
from manyfit.schema.checks import absolute

FLAG = "--sweep-parameters"
COMMAND = ("${env}", "${interpreter}", "${program}", FLAG, "${args_json_file}")
"""The command of a sweep file; overrides that hold for every run may stand before the flag."""

PARAMETER_FILE = "WANDB_SWEEP_PARAM_PATH"
"""Where the agent names the file of which W&B makes the run's `wandb.config`, whatever else the run says."""

GROUPS = (*SCHEMAS, "experiment")
TEXT_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def read_json(path: str | Path) -> dict[str, Any]:
    """The parameters in the JSON file of an agent.

    Raises:
        ConfigError: it cannot be read, or holds no object.
    """
    try:
        parameters = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{FLAG} {path} cannot be read: {error}.",
            "A W&B agent writes the file: give ${args_json_file} in the sweep file's command.",
        ) from error
    if not isinstance(parameters, dict):
        raise ConfigError(f"{FLAG} {path} holds no parameters.", 'Expected one JSON object, {"NAME": VALUE}.')
    return parameters


def agent_parameters() -> dict[str, Any]:
    """What W&B will set in the run's config because an agent started it; empty for any other run.

    Raises:
        ConfigError: the agent's file cannot be read.
    """
    path = os.environ.get(PARAMETER_FILE)
    if not path:
        return {}
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
        return {name: entry["value"] for name, entry in content.items() if name != "wandb_version"}
    except (OSError, yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        remedy = f"Start runs of a sweep with `wandb agent`, and others without {PARAMETER_FILE}."
        raise ConfigError(f"{PARAMETER_FILE}={path} cannot be read: {error}.", remedy) from error


# --- to Hydra -------------------------------------------------------------------------------------------------------


def overrides(parameters: Mapping[str, Any]) -> list[str]:
    """The overrides of a sweep's parameters, nested ones under their dotted keys.

    >>> overrides({"optimizer": "adam", "epochs": 2, "tracker": {"notes": "a, b", "tags": ["1"]}})
    ['optimizer=adam', 'epochs=2', 'tracker.notes="a, b"', 'tracker.tags=["1"]']

    Raises:
        ConfigError: a name that is no key, a key given twice, a value that no configuration can hold.
    """
    return [override(name, value) for name, value in leaves(parameters).items()]


def override(name: str, value: Any) -> str:
    """One parameter as an override.

    Raises:
        ConfigError: a group's choice that is no name, or a value that no configuration can hold.
    """
    if name not in GROUPS:
        return f"{name}={literal(name, value)}"
    if not isinstance(value, str) or not re.fullmatch(r"[\w-]+", value):
        raise ConfigError(f"The sweep parameter {name}={value!r} names no choice.", "Give the name of one, as text.")
    return f"{name}={value}"


def leaves(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names and values; a nested parameter becomes one entry a value.

    >>> leaves({"model": {"head": {"units": 64}}, "epochs": 2})
    {'model.head.units': 64, 'epochs': 2}

    Raises:
        ConfigError: a name that is no key, a key of Hydra's own, a key given twice, a nested parameter without values.
    """
    found: dict[str, Any] = {}

    def add(name: str, value: Any) -> None:
        if not re.fullmatch(r"\w+(\.\w+)*", name):
            raise ConfigError(
                f"The sweep parameter {name!r} is not a key.",
                "Write it as in epochs or optimizer.learning_rate, without +, - or spaces; W&B keeps the same name.",
            )
        if name.partition(".")[0] == "hydra":
            raise ConfigError(
                f"The sweep parameter {name} is Hydra's own.",
                "Leave it out: a run of a sweep gets a folder of its own.",
            )
        if not isinstance(value, Mapping):
            if name in found:
                raise ConfigError(f"The sweep parameter {name} is given twice.", "Give it once: dotted or nested.")
            found[name] = value
        elif not value:
            raise ConfigError(f"The sweep parameter {name} is empty.", f"Give the values below it, such as {name}.KEY.")
        else:
            for inner, inner_value in value.items():
                add(f"{name}.{inner}", inner_value)

    for name, value in parameters.items():
        add(str(name), value)
    return found


def literal(name: str, value: Any) -> str:
    r"""A value as Hydra reads it back with the same type.

    >>> literal("x", None), literal("x", 1e-05), literal("x", "1e-05"), literal("x", [True, "it's \\"])
    ('null', '1e-05', '"1e-05"', '[true,"it\'s \\\\"]')

    Raises:
        ConfigError: a `${...}`, which would be read as a reference, or a type that no key has.
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{','.join(literal(name, one) for one in value)}]"
    if not isinstance(value, str):
        raise ConfigError(
            f"The sweep parameter {name} has a value of type {type(value).__name__}: {value!r}.",
            "Give a number, text, true, false, null, or a list of these; a mapping as nested or dotted parameters.",
        )
    if "${" in value:
        raise ConfigError(
            f"The sweep parameter {name}={value!r} would be read as a reference to another key.",
            "Give the value itself, without '${'.",
        )
    return quoted(value)


def quoted(text: str) -> str:
    """Text in the quotes of Hydra's grammar."""
    # Hydra reads a backslash as such, except before a quote.
    escaped = re.sub(r'(\\*)("|$)', lambda match: 2 * match[1] + ('\\"' if match[2] else ""), text)
    return f'"{escaped}"'


# --- what arrived ---------------------------------------------------------------------------------------------------


def check_arrived(config: RunConfig, parameters: Mapping[str, Any], choices: Mapping[str, Any] | None = None) -> None:
    """Refuse a run in which a sweep's parameter has another value or type than the sweep gave it.

    Args:
        parameters: Of the sweep.
        choices: Hydra's choice of each group, for groups that are no part of the configuration (`experiment`).

    Raises:
        ConfigError: names the first such parameter.
    """
    held = asdict(config)
    for name, value in leaves(parameters).items():
        if name in GROUPS:
            trains = held[name][CHOICE_KEY[name]] if name in SCHEMAS else (choices or {}).get(name, value)
        else:
            trains = _at(held, name)
        if not same(value, trains):
            raise _differs(name, value, trains)


def _differs(name: str, value: Any, trains: Any) -> ConfigError:
    message = f"The sweep gives {name}={_shown(value)}, but {_shown(trains)} would train."
    if isinstance(value, str) and TEXT_NUMBER.fullmatch(value):
        remedy = f"YAML takes {value} for text: write {number(value)} in the sweep file, without quotes."
        return ConfigError(message, remedy)
    return ConfigError(
        message,
        f"Give it in the type of its key. The sweep file's command must end in `{FLAG} ${{args_json_file}}` and give "
        f"no other {name}; `src/sweep.py check FILE` finds such mistakes.",
    )


def number(text: str) -> str:
    """How YAML takes for a number what it took for text.

    >>> number("1e-5"), number("0.1"), number("2.5E3")
    ('1.0e-05', '0.1', '2.5e+03')
    """
    if "e" not in text.lower():
        return text
    digits, _, exponent = text.lower().partition("e")
    return f"{digits if '.' in digits else digits + '.0'}e{int(exponent):+03d}"


def _shown(value: Any) -> str:
    return f"the text {value!r}" if isinstance(value, str) else json.dumps(value, default=str)


def _at(held: Mapping[str, Any], name: str) -> Any:
    value: Any = held
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ConfigError(f"The sweep parameter {name} is no key of this run.", "`--cfg job` lists every key.")
        value = value[part]
    return value


def same(value: Any, trains: Any) -> bool:
    """Whether two values are one: of one type, but 1 is 1.0, and a relative path is what it was made into.

    >>> same(1, 1.0), same("1", 1), same(True, 1), same(None, "none"), same([1, "a"], [1, "a"])
    (True, False, False, False, True)
    >>> same([{"epochs": 1, "trainable": "all"}], [{"trainable": "all", "epochs": 1.0}]), same({"a": 1}, {"a": 2})
    (True, False)
    """
    if isinstance(value, bool) or isinstance(trains, bool):
        return value is trains
    if isinstance(value, int | float) and isinstance(trains, int | float):
        return value == trains
    if isinstance(value, list) and isinstance(trains, list | tuple):
        return len(value) == len(trains) and all(map(same, value, trains))
    if isinstance(value, Mapping) and isinstance(trains, Mapping):  # a phase: W&B sorts its keys anew
        return value.keys() == trains.keys() and all(same(value[key], trains[key]) for key in value)
    if isinstance(value, str) and isinstance(trains, str):
        return value == trains or absolute(value) == trains
    return value is None and trains is None


# --- what W&B holds -------------------------------------------------------------------------------------------------


def tracked_config(config: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A nested configuration as W&B can hold it beside a sweep's parameters.

    A parameter that chooses a group takes that group's place in W&B's config, as the sweep's search needs it to; the
    group's values then stand under dotted names, which is how W&B shows nested ones.

    >>> tracked_config({"epochs": 2, "optimizer": {"name": "sgd", "momentum": 0.9}}, {"optimizer": "sgd"})
    {'epochs': 2, 'optimizer.name': 'sgd', 'optimizer.momentum': 0.9, 'optimizer': 'sgd'}
    """
    held = dict(config)
    for name, value in parameters.items():
        if isinstance(held.get(name), Mapping) and not isinstance(value, Mapping):
            held |= {key: inner for key, inner in _pairs({name: held.pop(name)}) if key not in parameters}
            held[name] = value
    return held


def check_tracked(tracked: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Refuse a run whose `wandb.config` says something else than what trains.

    Args:
        tracked: What W&B holds once the run is open; a sweep's values and the server's have won there.
        config: What trains, as it was given to W&B.

    Raises:
        ConfigError: names the first key that differs.
    """
    trains = dict(_pairs(config))
    for key, held in _pairs(tracked):  # a key can be there twice, nested and dotted
        if key in trains and not same(held, trains[key]) and not same(trains[key], held):
            raise ConfigError(
                f"W&B holds {key}={_shown(held)} for this run, but {_shown(trains[key])} would train.",
                "Start the runs of a sweep with `wandb agent`; give a run of its own no WANDB_RUN_ID of another.",
            )


def _pairs(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _pairs(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
