"""The search of a sweep without a server: Optuna's sampler and pruner, and the grid, by what the sweep file says."""

import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyfit.errors import ConfigError
from manyfit.sweep_file import Parameter, SweepFile

if TYPE_CHECKING:
    import optuna

SEARCH_NAME = "search.log"
"""Holds what the search knows; beside the folders of its runs."""


def keys(overrides: Iterable[str]) -> set[str]:
    """The keys of overrides, without the marks in front of them."""
    return {text.partition("=")[0].lstrip("+") for text in overrides}


def grid(parameters: Sequence[Parameter]) -> Iterator[dict[str, int]]:
    """Every combination, as the places of its values; the last parameter moves fastest."""
    varied = [one for one in parameters if one.distribution != "constant"]
    for places in itertools.product(*(range(len(one.values())) for one in varied)):
        yield dict(zip([one.name for one in varied], places, strict=True))


def draw(trial: "optuna.Trial", method: str, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """The values of one run; those of a grid were put in line when the search was opened."""
    if method != "grid":
        return {one.name: one.suggest(trial) for one in parameters}
    values = {}
    for one in parameters:
        listed = one.values()
        constant = one.distribution == "constant"
        values[one.name] = listed[0 if constant else trial.suggest_categorical(one.name, range(len(listed)))]
    return values


def open_search(
    folder: Path, name: str, file: SweepFile, parameters: Sequence[Parameter], *, limit: int, seed: int
) -> "optuna.Study":
    """The search in a folder, new or as it was left.

    Args:
        name: What it searches; a folder holds one search.
        limit: Runs in all, of a grid.

    Raises:
        ConfigError: the folder holds another search, or what it holds cannot be read.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = JournalStorage(JournalFileBackend(str(folder / SEARCH_NAME)))
        known = {summary.study_name for summary in optuna.get_all_study_summaries(storage)}
    except (OSError, ValueError) as error:
        message = f"{folder / SEARCH_NAME} cannot be read: {error}."
        raise ConfigError(message, "Restore it, or give another --folder.") from error
    if known - {name}:
        raise ConfigError(
            f"{folder} holds the runs of another sweep, or of this one before it was changed.",
            "Give another --folder, or the file as it was.",
        )
    drawn = 0
    if known:
        drawn = len(optuna.load_study(study_name=name, storage=storage).get_trials(deepcopy=False))
    search = optuna.create_study(
        study_name=name,
        storage=storage,
        load_if_exists=True,
        direction=(file.content.get("metric") or {}).get("goal", "minimize"),
        sampler=_sampler(file.content["method"], seed + drawn),  # another start must not draw the same again
        pruner=_pruner(file.content.get("early_terminate")),
    )
    if file.content["method"] == "grid":
        for places in itertools.islice(grid(parameters), drawn, limit):
            search.enqueue_trial(places)
    return search


def _sampler(method: str, seed: int) -> Any:
    import optuna

    if method != "bayes":
        return optuna.samplers.RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # Runs that are under way count as bad ones, so that two workers don't try the same.
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=6, constant_liar=True)


def _pruner(stop: dict[str, Any] | None) -> Any:
    """W&B's hyperband with its one bracket is successive halving from `min_iter`, or from the first of `s` brackets."""
    import optuna

    if not stop:
        return optuna.pruners.NopPruner()
    eta = stop.get("eta", 3)
    first = stop.get("min_iter") or max(1, stop["max_iter"] // eta ** stop.get("s", 1))
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=eta)
