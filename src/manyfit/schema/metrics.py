"""`metrics`: the words for what is counted beside loss and accuracy, and which way each is good."""

import re
from collections.abc import Iterable, Sequence

from manyfit.errors import ConfigError
from manyfit.schema.checks import nearest

ALWAYS = ("loss", "accuracy")
WORDS = ("accuracy", "top_3", "top_5", "auc", "f1", "calibration_error")
"""What is offered; `top_K` may have any K from 2 on."""


def top_k(word: str) -> int | None:
    """K of a word `top_K`; None of another.

    >>> top_k("top_5"), top_k("auc")
    (5, None)
    """
    found = re.fullmatch(r"top_([1-9][0-9]*)", word)
    return int(found[1]) if found else None


def falls(name: str) -> bool:
    """Whether a low value of this metric of the epochs is a good one.

    >>> falls("val_loss"), falls("val_calibration_error"), falls("val_f1")
    (True, True, False)
    """
    return "loss" in name or name.endswith("calibration_error")


def in_words(name: str) -> str:
    """The name of a metric as it is read.

    >>> in_words("calibration_error"), in_words("top_3"), in_words("auc")
    ('calibration error', 'top 3', 'AUC')
    """
    return {"auc": "AUC", "f1": "F1"}.get(name, name.replace("_", " "))


def names(words: Iterable[str]) -> list[str]:
    """What the epochs have: loss and accuracy, then what was asked for, each once.

    >>> names(["auc", "accuracy", "auc"])
    ['loss', 'accuracy', 'auc']
    """
    return list(dict.fromkeys([*ALWAYS, *words]))


def of_epochs(words: Iterable[str]) -> list[str]:
    """The same, of training and of validation."""
    return [*names(words), *(f"val_{name}" for name in names(words))]


def check_words(words: Sequence[str]) -> None:
    """Refuse a word that stands for no metric.

    Raises:
        ConfigError: there is no such metric.
    """
    for word in words:
        if top_k(word) == 1:
            raise ConfigError("metrics: top_1 is the accuracy, which is always there.", "Leave it out.")
        if word not in WORDS and top_k(word) is None:
            raise ConfigError(f"metrics: {word} is not one of its choices.", nearest(word, WORDS))


def check_classes(words: Sequence[str], num_classes: int) -> None:
    """Refuse a metric that says nothing of so many classes.

    Raises:
        ConfigError: the true class of any example is among the first K.
    """
    for word in words:
        if (k := top_k(word)) is not None and k >= num_classes:
            remedy = f"Give top_K with K from 2 to {num_classes - 1}, or leave it out."
            raise ConfigError(
                f"metrics: {word} is always 1, since the data has {num_classes} classes.",
                remedy if num_classes > 2 else "Leave it out.",
            )


def check_name(key: str, name: str, words: Sequence[str], *, validation: bool = False) -> None:
    """Refuse the name of a metric that no epoch will have.

    Args:
        key: Whose value it is.
        validation: Only metrics of the validation count.

    Raises:
        ConfigError: it is none, or `metrics` does not ask for it.
    """
    known = [known for known in of_epochs(words) if known.startswith("val_") or not validation]
    if name in known:
        return
    bare = name.removeprefix("val_")
    if (bare in WORDS or top_k(bare) is not None) and bare not in names(words):
        raise ConfigError(f"{key}={name} is not counted in this run.", f"Add it: metrics=[{','.join([*words, bare])}].")
    raise ConfigError(f"{key}={name} is not a metric of this run.", nearest(name, known))
