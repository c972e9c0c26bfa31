"""The structure of a sweep file: what is wrong with its keys, its metric, its command and its parameters' ranges."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyfit import sweep_arguments
from manyfit.config import nearest
from manyfit.errors import ConfigError
from manyfit.schema.metrics import WORDS, falls
from manyfit.sweep_arguments import COMMAND, FLAG
from manyfit.sweep_file import (
    DISTRIBUTIONS,
    GOALS,
    METHODS,
    METRICS,
    PARAMETER_KEYS,
    RANGES,
    Parameter,
    SweepFile,
)

TOP_KEYS = (
    *("program", "method", "metric", "parameters", "command", "early_terminate", "name", "description"),
    *("project", "entity", "run_cap"),
)
STOP_KEYS = ("type", "min_iter", "max_iter", "eta", "s", "strict")


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong.

    Args:
        line: Counted from 1; None where it belongs to the whole file.
        message: What was received.
        remedy: How to go on.
    """

    line: int | None
    message: str
    remedy: str

    def shown(self, path: Path) -> str:
        """`FILE:LINE: what is wrong`, and how to go on below it."""
        place = f"{path}:{self.line}" if self.line else f"{path}"
        return f"{place}: {self.message}\n    {self.remedy}"


Readable = list[tuple[Parameter, tuple[Any, ...]]]
"""Parameters that can be understood, each with its path in the file."""


def structure(file: SweepFile, root: Path) -> tuple[list[Mistake], Readable]:
    """What is wrong before anything is composed, and the parameters of which nothing is.

    Args:
        root: The repository, from which agents start the program.
    """
    specs, readable = list(_specs(file)), []
    for name, spec, path in file.specs():
        problems = list(_spec(file, name, spec, path))
        specs += problems
        if not problems:
            readable.append((Parameter.of(name, spec), path))
    return [*_top(file, root), *_metric(file), *_command(file), *specs], readable


# --- the parts of the file ------------------------------------------------------------------------------------------


def _top(file: SweepFile, root: Path) -> Iterator[Mistake]:
    content = file.content
    for path in file.doubled:
        yield Mistake(file.line(*path), f"{path[-1]} is given twice: only the second counts.", "Give it once.")
    for key in content:
        if key not in TOP_KEYS:
            yield Mistake(file.line(key), f"{key} is no key of a sweep file.", nearest(key, TOP_KEYS))
    method = content.get("method")
    if method not in METHODS:
        yield Mistake(file.line("method"), f"method: {method} is none.", f"Choices: {', '.join(METHODS)}.")
    program = content.get("program")
    if program is None or not (root / str(program)).is_file():
        yield Mistake(
            file.line("program"), f"program: {program} is not there.", "Write program: src/train.py, as seen from here."
        )
    cap = content.get("run_cap")
    if cap is not None and (type(cap) is not int or cap < 1):
        yield Mistake(file.line("run_cap"), f"run_cap: {cap} is no number of runs.", "Give a whole number >= 1.")
    if not isinstance(content.get("parameters"), Mapping) or not content["parameters"]:
        yield Mistake(file.line("parameters"), "There are no parameters.", "Give one at least, with value or values.")


def _metric(file: SweepFile) -> Iterator[Mistake]:
    metric, stop = file.content.get("metric"), file.content.get("early_terminate")
    needed = "bayes" if file.content.get("method") == "bayes" else "early_terminate" if stop is not None else None
    if metric is None:
        if needed:
            yield Mistake(file.line(), f"There is no metric, which {needed} needs.", "Give metric: name and goal.")
        return
    line = file.line("metric")
    if not isinstance(metric, Mapping):
        yield Mistake(line, f"metric: {metric} is no mapping.", "Give its name and its goal.")
        return
    name, goal = metric.get("name"), metric.get("goal", "minimize")
    known = _is_logged(str(name))
    if not known:
        meant = f"epoch/{name}" if f"epoch/{name}" in METRICS else name
        yield Mistake(file.line("metric", "name"), f"metric: {name} is never logged.", nearest(meant, METRICS))
    if goal not in GOALS:
        yield Mistake(file.line("metric", "goal"), f"goal: {goal} is none.", f"Choices: {', '.join(GOALS)}.")
    elif known and goal != _natural_goal(name):
        natural = _natural_goal(name)
        said = f"the goal of {name} is to {goal}" + (
            "" if "goal" in metric else ", as W&B takes it where none is given"
        )
        yield Mistake(file.line("metric", "goal"), f"{said[0].upper()}{said[1:]}.", f"Write goal: {natural}.")
    if stop is not None:
        yield from _early_terminate(file, stop, str(name))


def _is_logged(name: str) -> bool:
    return re.sub(r"top_\d+$", "top_3", name) in METRICS


def _natural_goal(name: str) -> str:
    leaf = name.rpartition("/")[2].removeprefix("val_")
    rises = (leaf in WORDS or leaf.startswith("top_")) and not falls(leaf)
    return "maximize" if rises or "images_per_second" in leaf else "minimize"


def _early_terminate(file: SweepFile, stop: Any, metric: str) -> Iterator[Mistake]:
    line = file.line("early_terminate")
    if not isinstance(stop, Mapping):
        yield Mistake(line, f"early_terminate: {stop} is no mapping.", "Give type: hyperband and min_iter.")
        return
    for key in stop:
        if key not in STOP_KEYS:
            yield Mistake(file.line("early_terminate", key), f"{key} is no key of it.", nearest(key, STOP_KEYS))
    if stop.get("type") != "hyperband":
        where = file.line("early_terminate", "type")
        yield Mistake(where, f"type: {stop.get('type')} is none that W&B has.", "Write type: hyperband.")
    if ("min_iter" in stop) == ("max_iter" in stop):
        yield Mistake(line, "early_terminate takes either min_iter or max_iter.", "Give one of the two, in epochs.")
    for key in ("min_iter", "max_iter", "s", "eta"):
        if key in stop and (not isinstance(stop[key], int) or stop[key] < (2 if key == "eta" else 1)):
            where = file.line("early_terminate", key)
            yield Mistake(
                where, f"{key}: {stop[key]} is out of range.", f"Give a whole number, {key} of an example: 3."
            )
    if _is_logged(metric) and not metric.startswith("epoch/"):
        yield Mistake(
            line,
            f"{metric} is known at the end of a run only, so nothing can be stopped early by it.",
            "Take a metric of every epoch, such as epoch/val_accuracy.",
        )


def _command(file: SweepFile) -> Iterator[Mistake]:
    command = file.content.get("command")
    wanted = "Write command: [" + ", ".join(f'"{word}"' for word in COMMAND) + "]."
    if not isinstance(command, list):
        yield Mistake(file.line("command"), "There is no command: W&B's own joins name and value with dashes.", wanted)
        return
    words = [str(word) for word in command]
    for index, word in enumerate(words):
        line = file.line("command", index)
        if word.startswith("${args") and word != "${args_json_file}":
            yield Mistake(line, f"{word} loses null, quotes and types.", f"Write {FLAG} and ${{args_json_file}}.")
        elif word.startswith("${") and word not in COMMAND:
            yield Mistake(
                line, f"{word} is replaced by nothing.", "Of W&B's macros give those of the example.\n    " + wanted
            )
        elif word.startswith(("hydra.run.dir", "hydra.sweep")):
            yield Mistake(line, f"{word}: all runs would share one folder.", "Leave it out: each gets its own.")
    macros = [word for word in words if word in COMMAND]
    if macros != list(COMMAND) or words[-2:] != list(COMMAND[-2:]) or words[:3] != list(COMMAND[:3]):
        yield Mistake(
            file.line("command"), f"The command is {' '.join(words)}.", wanted + " Overrides go before the flag."
        )


# --- the parameters -------------------------------------------------------------------------------------------------


def _specs(file: SweepFile) -> Iterator[Mistake]:
    parameters = file.content.get("parameters")
    names = [name for name, _, _ in file.specs()]
    for doubled in {name for name in names if names.count(name) > 1}:
        yield Mistake(file.line("parameters"), f"{doubled} is given dotted and nested.", "Give it once.")
    for name, spec in parameters.items() if isinstance(parameters, Mapping) else ():
        if not isinstance(spec, Mapping):
            line = file.line("parameters", name)
            yield Mistake(line, f"{name}: {spec} is no mapping.", f"Write {name}: {{value: {spec}}}.")


def _spec(file: SweepFile, name: str, spec: Mapping[str, Any], path: tuple[Any, ...]) -> Iterator[Mistake]:
    line = file.line(*path)
    for key in spec:
        if key not in PARAMETER_KEYS:
            yield Mistake(
                file.line(*path, key), f"{name}: {key} is no key of a parameter.", nearest(key, PARAMETER_KEYS)
            )
    kinds = [key for key in ("value", "values") if key in spec]
    kinds += ["a range"] if {"min", "max", "mu", "sigma"} & set(spec) else []
    if len(kinds) != 1:
        said = " and ".join(kinds) or "neither value, values, nor a range"
        yield Mistake(line, f"{name} has {said}.", "Give one of value, values, or min and max.")
        return
    try:
        parameter = Parameter.of(name, spec)
    except ConfigError as error:
        yield Mistake(line, error.message, error.remedy)
        return
    if parameter.distribution not in DISTRIBUTIONS:
        where = file.line(*path, "distribution")
        yield Mistake(
            where, f"{name}: {parameter.distribution} is unknown.", nearest(parameter.distribution, DISTRIBUTIONS)
        )
    elif kinds == ["a range"]:
        yield from _range(file, parameter, path)
    else:
        yield from _listed(file, parameter, path)
    if file.content.get("method") == "grid" and not parameter.is_countable:
        yield Mistake(
            line, f"{name} has no end of values, which a grid cannot hold.", "Give values, or method: random."
        )


def _range(file: SweepFile, parameter: Parameter, path: tuple[Any, ...]) -> Iterator[Mistake]:
    name, spec, line = parameter.name, parameter.spec, file.line(*path)
    low_key, high_key = RANGES.get(parameter.distribution, ("min", "max"))
    low, high = spec.get(low_key), spec.get(high_key)
    for key in (low_key, high_key, "q"):
        value = spec.get(key)
        if key in spec and isinstance(value, str):
            yield Mistake(file.line(*path, key), _text_number(name, key, value), _as_number(value))
        elif key in spec and (
            isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
        ):
            yield Mistake(file.line(*path, key), f"{name}: {key}: {value} is no number.", "Give a finite number.")
    if low is None or high is None:
        yield Mistake(line, f"{name} ({parameter.distribution}) needs {low_key} and {high_key}.", "Give both.")
    elif all(isinstance(one, int | float) and not isinstance(one, bool) for one in (low, high)):
        if low_key == "min" and low >= high:
            yield Mistake(line, f"{name}: min: {low} is not below max: {high}.", "Exchange them, or give one value.")
        if parameter.distribution.endswith("log_uniform_values") and low <= 0:
            yield Mistake(
                file.line(*path, "min"), f"{name}: a logarithm needs min > 0.", "Give a small number: 1.0e-6."
            )
        if low_key == "mu" and high <= 0:
            yield Mistake(file.line(*path, "sigma"), f"{name}: sigma: {high} is not above 0.", "Give a number > 0.")


def _listed(file: SweepFile, parameter: Parameter, path: tuple[Any, ...]) -> Iterator[Mistake]:
    name, spec = parameter.name, parameter.spec
    if "values" in spec and (not isinstance(spec["values"], list) or not spec["values"]):
        yield Mistake(
            file.line(*path, "values"), f"{name}: values: {spec['values']} is no list.", "Write [FIRST, SECOND]."
        )
        return
    probabilities = spec.get("probabilities")
    if probabilities is not None:
        numbers = isinstance(probabilities, list) and all(isinstance(one, int | float) for one in probabilities)
        if not numbers or len(probabilities) != len(spec.get("values", ())) or abs(sum(probabilities) - 1) > 1e-6:
            where = file.line(*path, "probabilities")
            yield Mistake(where, f"{name}: probabilities: {probabilities} do not fit.", "Give one a value, in sum 1.")
    elif parameter.distribution == "categorical_w_probabilities":
        yield Mistake(file.line(*path), f"{name} has no probabilities.", "Give one a value, in sum 1.")
    for where, value in with_lines(file, parameter, path):
        if isinstance(value, str) and sweep_arguments.TEXT_NUMBER.fullmatch(value) and not _text_is_meant(name):
            yield Mistake(where, _text_number(name, "value", value), _as_number(value))


def with_lines(file: SweepFile, parameter: Parameter, path: tuple[Any, ...]) -> Iterator[tuple[int | None, Any]]:
    """The values that stand for all of a parameter, each with its line."""
    if "value" in parameter.spec:
        yield file.line(*path, "value"), parameter.spec["value"]
    elif isinstance(parameter.spec.get("values"), list):
        for index, value in enumerate(parameter.spec["values"]):
            yield file.line(*path, "values", index), value
    else:
        for key, value in zip(("min", "max"), parameter.examples(), strict=False):
            yield file.line(*path, key), value


def _text_is_meant(name: str) -> bool:
    """Whether a number can be meant as text: where the key holds text."""
    return name in ("tracker.notes", "tracker.group", "tracker.project", "tracker.entity", "data.root")


def _text_number(name: str, key: str, value: str) -> str:
    return f"{name}: {key}: {value} is text, which YAML makes of a number written so."


def _as_number(value: str) -> str:
    return f"Write {sweep_arguments.number(value)}, without quotes."
