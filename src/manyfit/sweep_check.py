"""What is wrong with a sweep file, found before a server or an agent sees it: every mistake, with its line."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from manyfit import sweep_arguments
from manyfit.config import RunConfig, check
from manyfit.errors import ConfigError
from manyfit.multirun import composed, composing
from manyfit.schema.metrics import WORDS, top_k
from manyfit.schema.metrics import names as metric_names
from manyfit.sweep_arguments import GROUPS, check_arrived
from manyfit.sweep_file import Parameter, SweepFile
from manyfit.sweep_structure import Mistake, Readable, structure, with_lines

MOST_COMBINATIONS = 48
"""Of a grid, each is composed up to this many (a tenth of a second each); of more, each value alone."""


def mistakes(file: SweepFile, root: Path, more: Iterable[str] = ()) -> list[Mistake]:
    """All that is wrong with a sweep file, in the order of its lines; each kind of mistake once.

    Args:
        root: The repository, from which agents start the program.
        more: Overrides that every run is given besides those of the file.

    Raises:
        ConfigError: one of `more` is wrong by itself.
    """
    found, readable = structure(file, root)
    found += _composition(file, readable, list(more))
    unique: dict[str, Mistake] = {}
    for mistake in found:
        unique.setdefault(mistake.message, mistake)
    return sorted(unique.values(), key=lambda mistake: mistake.line or 0)


# --- what Hydra makes of them ---------------------------------------------------------------------------------------


def _composition(file: SweepFile, readable: Readable, more: list[str]) -> Iterator[Mistake]:
    """Compose every value beside one value of each other parameter; of a small grid, every combination."""
    given = _keys(more)
    readable = [(parameter, path) for parameter, path in readable if parameter.name not in given]
    names = {parameter.name for parameter, _ in readable}
    fixed = []
    command = file.content.get("command")
    for index, word in enumerate(map(str, command if isinstance(command, list) else ())):
        key = word.partition("=")[0]
        if key in names:
            line = file.line("command", index)
            yield Mistake(line, f"{key} is a parameter, and the command gives it as well.", "Leave one of them out.")
        elif word in file.fixed and not key.startswith("hydra.") and key not in given:
            fixed.append((index, word))
    with composing():
        words = [word for _, word in fixed]
        if _arrives({}, words) is not None:
            words = []
            for index, word in fixed:
                if (problem := _arrives({}, [*words, word])) is not None:
                    yield Mistake(file.line("command", index), *_said(problem))
                else:
                    words.append(word)
        if more and _arrives({}, words) is None and (problem := _arrives({}, [*words, *more])) is not None:
            raise problem  # a mistake of the command line, not of the file
        words += more
        base = {parameter.name: parameter.examples()[0] for parameter, _ in readable}
        whole = _arrives(base, words) is None
        if not whole:
            base = {}
        # A group's choice decides which keys there are.
        for parameter, path in sorted(readable, key=lambda one: one[0].name not in GROUPS):
            for line, value in with_lines(file, parameter, path):
                if whole and repr(value) == repr(base[parameter.name]):
                    continue  # composed above
                problem = _arrives({**base, parameter.name: value}, words)
                if problem is not None:
                    message, remedy = _said(problem)
                    quotes = " YAML takes on, off, yes and no for true and false: quote them."
                    yield Mistake(line, message, remedy + quotes * isinstance(value, bool))
                elif not whole:
                    base.setdefault(parameter.name, value)
        if whole:
            yield from _combinations(file, [parameter for parameter, _ in readable], words)
        yield from _too_short(file, base, words)
        yield from _not_counted(file, base, words)


def _keys(overrides: Iterable[str]) -> set[str]:
    return {text.partition("=")[0].lstrip("+") for text in overrides}


def _arrives(values: Mapping[str, Any], fixed: list[str]) -> ConfigError | None:
    try:
        check_arrived(_config(values, fixed), values)
    except ConfigError as error:
        return error
    return None


def _config(values: Mapping[str, Any], fixed: list[str]) -> RunConfig:
    return check(composed([*fixed, *sweep_arguments.overrides(values)]))


def _said(problem: ConfigError) -> tuple[str, str]:
    return problem.message, problem.remedy.replace("\n", "\n    ")


def _combinations(file: SweepFile, parameters: list[Parameter], fixed: list[str]) -> Iterator[Mistake]:
    lists = [parameter.examples() for parameter in parameters]
    number = math.prod(len(one) for one in lists)
    if file.content.get("method") != "grid" or not 1 < number <= MOST_COMBINATIONS:
        return
    singles = sum(len(one) for one in lists)
    if number <= singles and len([one for one in lists if len(one) > 1]) == 1:
        return  # one parameter varies: each was composed above
    for values in itertools.product(*lists):
        combination = dict(zip([parameter.name for parameter in parameters], values, strict=True))
        if (problem := _arrives(combination, fixed)) is not None:
            message, remedy = _said(problem)
            yield Mistake(file.line("parameters"), message, remedy)


def _not_counted(file: SweepFile, first: Mapping[str, Any], fixed: list[str]) -> Iterator[Mistake]:
    """A metric that a run counts only where it is asked for."""
    metric = file.content.get("metric")
    name = str(metric.get("name")) if isinstance(metric, Mapping) else ""
    word = name.rpartition("/")[2].removeprefix("val_")
    if "metrics" in first or (word not in WORDS and top_k(word) is None):
        return
    try:
        counted = metric_names(_config(first, fixed).metrics)
    except ConfigError:
        return
    if word not in counted:
        line = file.line("metric", "name")
        yield Mistake(line, f"metric: {name} is not counted.", f"Add metrics=[{word}] to the command.")


def _too_short(file: SweepFile, first: Mapping[str, Any], fixed: list[str]) -> Iterator[Mistake]:
    """Early termination that comes after the last epoch."""
    stop = file.content.get("early_terminate")
    if not isinstance(stop, Mapping) or not isinstance(stop.get("min_iter"), int) or "epochs" in first:
        return
    try:
        epochs = _config(first, fixed).epochs
    except ConfigError:
        return
    if stop["min_iter"] >= epochs:
        line = file.line("early_terminate", "min_iter")
        yield Mistake(line, f"min_iter: {stop['min_iter']} with epochs={epochs} stops nothing.", "Give a smaller one.")
