"""A W&B sweep file: what it says and on which line, its parameters, and the metrics that a run logs."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Any, Protocol

import yaml

from manyfit.errors import ConfigError
from manyfit.schema.metrics import WORDS, names, of_epochs
from manyfit.sweep_arguments import FLAG

METHODS = ("grid", "random", "bayes")
GOALS = ("maximize", "minimize")
EPOCH_METRICS = (
    *("epoch", "learning_rate", *of_epochs(WORDS)),
    *("train_seconds", "validation_seconds", "images_per_second"),
)
"""What W&B's history gets once an epoch, as `epoch/NAME`."""
SUMMARY_METRICS = {
    "best": ("epoch", *(f"val_{name}" for name in names(WORDS))),
    "throughput": (
        *("images_per_second", "images_per_second_per_replica", "steps_per_call"),
        *("step_milliseconds_p50", "step_milliseconds_p95"),
    ),
}
"""What its summary gets at the end of a run, as `SECTION/NAME`; the same sections are in the run's record."""
METRICS = (
    *(f"epoch/{name}" for name in EPOCH_METRICS),
    *(f"{section}/{name}" for section, names in SUMMARY_METRICS.items() for name in names),
)

RANGES = {
    "uniform": ("min", "max"),
    "int_uniform": ("min", "max"),
    "q_uniform": ("min", "max"),
    "log_uniform": ("min", "max"),
    "log_uniform_values": ("min", "max"),
    "q_log_uniform": ("min", "max"),
    "q_log_uniform_values": ("min", "max"),
    "inv_log_uniform": ("min", "max"),
    "inv_log_uniform_values": ("min", "max"),
    "normal": ("mu", "sigma"),
    "q_normal": ("mu", "sigma"),
    "log_normal": ("mu", "sigma"),
    "q_log_normal": ("mu", "sigma"),
}
"""The distributions of W&B that have a range, and the two numbers that each needs."""
DISTRIBUTIONS = ("constant", "categorical", "categorical_w_probabilities", *RANGES)
COUNTABLE = ("constant", "categorical", "categorical_w_probabilities", "int_uniform", "q_uniform")
PARAMETER_KEYS = ("value", "values", "probabilities", "distribution", "min", "max", "mu", "sigma", "q", "parameters")

_TAIL = 0.001
"""Share of a bell curve that is cut off at either end, where a search without a server draws from one."""


class Trial(Protocol):
    """The part of an Optuna trial that draws."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """Draw a number."""
        ...

    def suggest_int(self, name: str, low: int, high: int) -> int:
        """Draw a whole number."""
        ...

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Draw one of several."""
        ...


@dataclass(frozen=True)
class Parameter:
    """One parameter of a sweep.

    Args:
        name: Dotted.
        spec: What the file says of it.
        distribution: By W&B's name; inferred where the file gives none.
    """

    name: str
    spec: Mapping[str, Any]
    distribution: str

    @classmethod
    def of(cls, name: str, spec: Mapping[str, Any]) -> "Parameter":
        """The parameter that a file describes.

        Raises:
            ConfigError: W&B would not know either what is meant.
        """
        return cls(name, spec, _distribution(name, spec))

    @property
    def is_countable(self) -> bool:
        """Whether a grid can hold all its values."""
        return self.distribution in COUNTABLE

    def values(self) -> list[Any]:
        """All its values in the order of a grid; only of a countable one."""
        if self.distribution == "constant":
            return [self.spec["value"]]
        if self.distribution.startswith("categorical"):
            return list(self.spec["values"])
        low, high, q = self.spec["min"], self.spec["max"], self._step
        count = math.floor((high - low) / q + 1e-9) + 1
        return [low + index * q for index in range(count)]

    def examples(self) -> list[Any]:
        """Values that stand for all: each of a list, the two ends of a range."""
        if self.distribution == "constant" or self.distribution.startswith("categorical"):
            return self.values()
        return list(dict.fromkeys(self._of_share(share) for share in (0.0, 1.0)))

    def suggest(self, trial: Trial) -> Any:
        """A value drawn by an Optuna trial."""
        if self.distribution == "constant":
            return self.spec["value"]
        if self.distribution == "categorical":
            values = self.values()
            # Its place, not the value: to Optuna 1, 1.0 and True are one, and a list is none.
            return values[trial.suggest_categorical(self.name, range(len(values)))]
        if self.distribution == "categorical_w_probabilities":
            share = trial.suggest_float(self.name, 0.0, 1.0)
            values, summed = self.values(), itertools.accumulate(self.spec["probabilities"])
            return next((value for value, up_to in zip(values, summed, strict=True) if share <= up_to), values[-1])
        if self.distribution == "int_uniform":
            return trial.suggest_int(self.name, self.spec["min"], self.spec["max"])
        if self.distribution.endswith("normal"):
            return self._of_share(trial.suggest_float(self.name, 0.0, 1.0))
        low, high, log = self._bounds
        return self._quantised(trial.suggest_float(self.name, low, high, log=log))

    @property
    def _step(self) -> Any:
        return 1 if self.distribution == "int_uniform" else self.spec.get("q", 1)

    @property
    def _bounds(self) -> tuple[float, float, bool]:
        low, high = self.spec["min"], self.spec["max"]
        if self.distribution in ("log_uniform", "q_log_uniform"):
            return math.exp(low), math.exp(high), True
        if self.distribution == "inv_log_uniform":
            return math.exp(-high), math.exp(-low), True
        return low, high, "log" in self.distribution

    def _of_share(self, share: float) -> Any:
        if not self.distribution.endswith("normal"):
            low, high, _ = self._bounds
            return self._quantised(low if share == 0 else high)
        bell = NormalDist(self.spec["mu"], self.spec["sigma"]).inv_cdf(_TAIL + share * (1 - 2 * _TAIL))
        return self._quantised(math.exp(bell) if "log" in self.distribution else bell)

    def _quantised(self, value: float) -> Any:
        if self.distribution == "int_uniform":
            return int(value)
        if not self.distribution.startswith("q_"):
            return float(value)
        q = self._step
        steps = round(value / q)
        # As decimal text: 3 * 0.1 should be 0.3.
        return steps * q if isinstance(q, int) else float(f"{steps * q:.12g}")


def _distribution(name: str, spec: Mapping[str, Any]) -> str:
    given = spec.get("distribution")
    if given is not None:
        return given
    if "value" in spec:
        return "constant"
    if "values" in spec:
        return "categorical_w_probabilities" if "probabilities" in spec else "categorical"
    low, high = spec.get("min"), spec.get("max")
    if type(low) is int and type(high) is int:
        return "int_uniform"
    if isinstance(low, float) and isinstance(high, float):
        return "uniform"
    if low is None or high is None:
        raise ConfigError(f"{name} has neither value, values, nor min and max.", "Give one of these.")
    raise ConfigError(
        f"{name}: min={low!r} and max={high!r} are not two whole numbers or two numbers with a point.",
        "Write both alike (1.0 and 5.0, 1.0e-5 and 1.0e-2), or give its distribution.",
    )


@dataclass(frozen=True)
class SweepFile:
    """A sweep file that is a mapping; what it says may still be wrong.

    Args:
        lines: The line of every key, and of every entry of a list, by its path from the top.
        doubled: Paths of keys that the file gives twice; the last one counts.
    """

    path: Path
    content: Mapping[str, Any]
    lines: Mapping[tuple[Any, ...], int]
    doubled: tuple[tuple[Any, ...], ...] = ()

    @classmethod
    def read(cls, path: Path) -> "SweepFile":
        """The file at `path`.

        Raises:
            ConfigError: it cannot be read, is not YAML, or holds no mapping.
        """
        try:
            text = path.read_text(encoding="utf-8")
            node, content = yaml.compose(text, yaml.SafeLoader), yaml.safe_load(text)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{path} cannot be read: {error}.", "Give a sweep file, such as sweeps/head.yaml."
            ) from error
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            place = f":{mark.line + 1}" if mark else ""
            problem = getattr(error, "problem", None) or str(error).splitlines()[0]
            raise ConfigError(f"{path}{place}: not YAML: {problem}.", "Correct the file.") from error
        if not isinstance(content, dict) or node is None:
            raise ConfigError(f"{path} holds no sweep.", "Expected keys such as method, metric, parameters.")
        lines: dict[tuple[Any, ...], int] = {}
        doubled: list[tuple[Any, ...]] = []
        _note_lines(node, (), lines, doubled)
        return cls(path, content, lines, tuple(doubled))

    def line(self, *path: Any) -> int | None:
        """The line of the nearest key to `path` that is there."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)

    @property
    def fixed(self) -> list[str]:
        """The overrides that the command gives every run."""
        command = self.content.get("command")
        words = command if isinstance(command, list) else []
        return [str(word) for word in words if not str(word).startswith("${") and str(word) != FLAG]

    @cached_property
    def parameters(self) -> list[Parameter]:
        """All parameters under their dotted names.

        Raises:
            ConfigError: one that W&B would not understand either.
        """
        return [Parameter.of(name, spec) for name, spec, _ in self.specs()]

    def specs(self) -> Iterator[tuple[str, Mapping[str, Any], tuple[Any, ...]]]:
        """Dotted name, what is said of it, and its path in the file, of every parameter that holds a mapping."""
        return _specs(self.content.get("parameters") or {}, (), ("parameters",))


def _specs(
    parameters: Any, names: tuple[str, ...], path: tuple[Any, ...]
) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    for name, spec in parameters.items() if isinstance(parameters, Mapping) else ():
        if isinstance(spec, Mapping) and isinstance(spec.get("parameters"), Mapping):
            yield from _specs(spec["parameters"], (*names, str(name)), (*path, name, "parameters"))
        elif isinstance(spec, Mapping):
            yield ".".join((*names, str(name))), spec, (*path, name)


def _note_lines(node: yaml.Node, path: tuple[Any, ...], lines: dict, doubled: list) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*path, yaml.safe_load(key.value) if key.tag.endswith(":int") else key.value)
            if inner in lines:
                doubled.append(inner)
            lines[inner] = key.start_mark.line + 1
            _note_lines(value, inner, lines, doubled)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*path, index)] = value.start_mark.line + 1
            _note_lines(value, (*path, index), lines, doubled)
