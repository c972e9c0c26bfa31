"""Checks of single values: each raises a ConfigError that names the key, the value and what is possible."""

import difflib
import math
import re
from collections.abc import Iterable
from pathlib import Path

from manyfit.errors import ConfigError

AUTO = "auto"


def nearest(received: object, choices: Iterable[object]) -> str:
    """The remedy for an unknown name: the nearest choice if one is near, then all of them."""
    names = [str(choice) for choice in choices]
    near = difflib.get_close_matches(str(received), names, n=1, cutoff=0.5)
    return (f"Did you mean '{near[0]}'? " if near else "") + f"Choices: {', '.join(names)}."


def absolute(path: str) -> str:
    """A path as it is from any folder: a relative one starts at the launch directory, and a run keeps it whole."""
    return str(Path(path).expanduser().absolute())


def one_of(key: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that is not one of `choices`."""
    choices = tuple(choices)
    if value not in choices:
        raise ConfigError(f"{key}={value} is not one of its choices.", nearest(value, choices))


def at_least(key: str, value: float | None, minimum: float, *, exclusive: bool = False) -> None:
    """Refuse a number below `minimum` (or equal to it, with `exclusive`) or not finite; None passes."""
    if value is None:
        return
    if not math.isfinite(value) or not (value > minimum if exclusive else value >= minimum):
        raise ConfigError(f"{key}={value} is out of range.", f"Give a number {'>' if exclusive else '>='} {minimum}.")


def between(key: str, value: float | None, low: float, high: float) -> None:
    """Refuse a number outside [low, high]; None passes."""
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{key}={value} is out of range.", f"Give a number from {low} to {high}.")


def check_class_weight(value: object) -> None:
    """Refuse what is neither None, `balanced` nor a list of factors."""
    numbers = isinstance(value, list) and all(type(one) in (int, float) and one >= 0 for one in value)
    if value not in (None, "balanced") and not (numbers and any(value)):  # pyright: ignore[reportArgumentType]
        raise ConfigError(
            f"class_weight={value} is not possible.", "Give null, balanced, or one number >= 0 a class: [1.0,2.5]."
        )


def is_count(value: object) -> bool:
    """Whether `value` is a whole number >= 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def auto_or_count(key: str, value: object) -> None:
    """Refuse what is neither `auto` nor a whole number >= 1."""
    if value != AUTO and not is_count(value):
        raise ConfigError(f"{key}={value} is not a count.", "Give 'auto' or a whole number >= 1.")


def last_layers(value: object) -> int | None:
    """N of `last:N` or of a whole number N: the last N layers; None for another value.

    >>> last_layers("last:20"), last_layers(3), last_layers("all")
    (20, 3, None)
    """
    if is_count(value):
        return int(str(value))
    found = re.fullmatch(r"last:([1-9][0-9]*)", value) if isinstance(value, str) else None
    return int(found[1]) if found else None


def check_trainable(key: str, value: object) -> None:
    """Refuse what names no layers: neither `none`, `all`, N, `last:N`, nor a pattern of names or a list of them."""
    patterns = value if isinstance(value, list) else [value]
    named = bool(patterns) and all(isinstance(one, str) and one and not one.startswith("last:") for one in patterns)
    if last_layers(value) is None and not named:
        raise ConfigError(
            f"{key}={value} is not possible.",
            "Give 'none', 'all', last:N (or N) for the last N layers, or patterns of names, such as block_1[56]*.",
        )
