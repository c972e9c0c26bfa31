"""`src/train.py -m seed=0,1,2`: every job in a process, a folder and a W&B run of its own.

Hydra's own launcher runs its jobs one after the other in one process, where W&B's runs merge and TensorFlow keeps the
devices of the first; so only the expansion is Hydra's, and `manyfit.study` starts the processes, or with
`hydra/launcher=submitit_slurm` `manyfit.submitted` the jobs.
"""

import argparse
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra import compose
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.version import setbase
from omegaconf import DictConfig, OmegaConf

from manyfit.config import RunConfig, WandbConfig, check
from manyfit.console import Console, plural
from manyfit.errors import EXIT_FAILED, EXIT_FINISHED, ConfigError
from manyfit.launcher import LOCAL, SLURM, Launcher
from manyfit.overrides import (
    COMPOSITION_ERRORS,
    SWEEP_DIR,
    check_overrides,
    explain,
    group_choices,
    launcher_overrides,
    parse_override,
)
from manyfit.record import make_run_folder
from manyfit.report.jobs import Job, jobs_tables
from manyfit.study import Point, Result, as_group, override, run_study
from manyfit.submitted import run_submitted

CONFIG_FOLDER = Path(__file__).resolve().parents[2] / "conf"
MOST_SHOWN = 5


def run_many(arguments: argparse.Namespace, outputs: Path, *, console: Console | None = None) -> int:
    """Run every combination of what was asked, and show how each ended; 1 if one of them failed.

    Args:
        arguments: Hydra's, with `overrides`.
        outputs: Where the folder of the jobs goes, if no other was asked for.

    Raises:
        ConfigError: a mistake in any of the jobs, before the first one starts.
    """
    console = console or Console()
    of_launcher, texts = launcher_overrides(arguments.overrides)
    with composing(arguments.config_dir, arguments.config_path):
        name = arguments.config_name or "config"
        jobs, configs, folder = _planned(texts, name)
        launcher = _launcher(of_launcher, jobs[0][0], name, folder)
        if launcher is not None:
            launcher.check([config.strategy.name for config in configs])
        folder = folder or make_run_folder(None, outputs, "multirun")
        launcher = _launcher(of_launcher, jobs[0][0], name, folder)
    flags = [f"--config-dir={Path(arguments.config_dir).absolute()}"] if arguments.config_dir else []
    flags += [f"--config-name={arguments.config_name}"] if arguments.config_name else []
    points = [
        Point(f"{number}_{_asked(swept)}"[:120], (*job, *_grouped(config, folder)))
        for number, ((job, swept), config) in enumerate(zip(jobs, configs, strict=True))
    ]
    names = {point.label: _asked(swept) for point, (_, swept) in zip(points, jobs, strict=True)}

    def command(point: Point, run: Path) -> list[str]:
        script = str(Path(sys.argv[0]).absolute())
        return [sys.executable, script, *flags, *point.overrides, override("hydra.run.dir", run)]

    submitted: set[str] = set()

    def on_submit(point: Point, job: str) -> None:
        submitted.update([point.label] if launcher is not None and launcher.kind == SLURM else [])
        console.print(f"job {names[point.label] or point.label}: {job}")

    def trained(on_end: Callable[[Result], None]) -> None:
        surroundings = as_group("multirun", folder)
        if launcher is None:
            console.print(f"{plural(len(points), 'job')}, one after the other, in {folder}", whole_lines=True)
            run_study(
                points,
                folder,
                command=command,
                environment=surroundings,
                on_start=lambda point: console.print(f"job {names[point.label] or point.label} ..."),
                on_end=on_end,
            )
        else:
            console.print(f"{plural(len(points), 'job')} for {launcher.name}, in {folder}", whole_lines=True)
            run_submitted(
                points,
                folder,
                launcher,
                command=command,
                environment=surroundings,
                on_start=on_submit,
                on_end=on_end,
                tell=lambda text: console.print(text, whole_lines=True),
            )

    results = _shown(trained, points, names, console, submitted)
    print(folder)
    return EXIT_FINISHED if all(result.succeeded for result in results.values()) else EXIT_FAILED


def _shown(
    run: Callable[[Callable[[Result], None]], None],
    points: Sequence[Point],
    names: Mapping[str, str],
    console: Console,
    submitted: Collection[str],
) -> dict[str, Result]:
    """The results of `run`, with a line as each comes, and the table at the end, whatever ended it.

    Args:
        submitted: The labels of those that somebody else runs, and may still run then.
    """
    results: dict[str, Result] = {}

    def ended(result: Result) -> None:
        results[result.point.label] = result
        console.print(f"  {_outcome(result)}", whole_lines=True)

    try:
        run(ended)
    finally:
        console.print(
            *jobs_tables(
                [_job(names[point.label], results.get(point.label), point.label in submitted) for point in points]
            )
        )
    return results


@contextmanager
def composing(config_dir: str | None = None, config_path: str | None = None) -> Iterator[None]:
    """Hydra ready to compose this project's configuration inside this process.

    Raises:
        ConfigError: a main folder of configurations that is not this project's.
    """
    if config_path:
        raise ConfigError("--config-path does not go with --multirun.", "Give --config-dir, which adds a folder.")
    folder = Path(config_dir).absolute() if config_dir else None
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"--config-dir {config_dir} is no folder.", "Give a folder with configuration groups.")
    places = create_config_search_path(str(CONFIG_FOLDER))
    if folder is not None:
        places.prepend("command-line", f"file://{folder}", SearchPathQuery(provider="schema"))  # as hydra.main does
    setbase("1.3")
    theirs = GlobalHydra.instance().hydra  # of a notebook that uses Hydra itself
    GlobalHydra.instance().clear()
    Hydra.create_main_hydra2(task_name="train", config_search_path=places)
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = theirs


def composed(overrides: Sequence[str], name: str = "config", *, with_hydra: bool = False) -> DictConfig:
    """What Hydra makes of overrides.

    Raises:
        ConfigError: they cannot be composed.
    """
    check_overrides(overrides, CONFIG_FOLDER)
    try:
        return compose(name, overrides=list(overrides), return_hydra_config=with_hydra)
    except COMPOSITION_ERRORS as error:
        raise explain(error) from error


# --- what the jobs are ----------------------------------------------------------------------------------------------

Jobs = list[tuple[list[str], list[str]]]
"""Each job's overrides, and those of them in which the jobs differ."""


def _planned(texts: Sequence[str], name: str) -> tuple[Jobs, list[RunConfig], Path | None]:
    """The jobs, the checked configuration of each, and the folder that was asked for."""
    folders = [text for text in texts if text.lstrip("+").partition("=")[0] == SWEEP_DIR]
    jobs = _expanded([text for text in texts if text not in folders])
    wrong, configs = [], []
    for job, swept in jobs:
        try:
            configs.append(check(composed(job, name)))
        except ConfigError as error:
            wrong.append((_asked(swept), error))
    if wrong:
        first = wrong[0][1]
        said = [f"{asked}: {error.message}" if asked else error.message for asked, error in wrong[:MOST_SHOWN]]
        said += [f"and {len(wrong) - MOST_SHOWN} more"] if len(wrong) > MOST_SHOWN else []
        message = f"{len(wrong)} of {len(jobs)} jobs cannot run, so none was started: " + "; ".join(said)
        raise ConfigError(message if len(jobs) > 1 else first.message, first.remedy)
    return jobs, configs, _folder(folders[-1], jobs[0][0], name) if folders else None


def _expanded(texts: Sequence[str]) -> Jobs:
    choices = group_choices(CONFIG_FOLDER)
    parser = OverridesParser.create()
    overrides = [parse_override(parser, text, choices) for text in texts]
    for given in overrides:
        _check_one(given)
        given.config_loader = GlobalHydra.instance().config_loader()  # glob(*) finds the choices of a group with it
    swept = {given.get_key_element() for given in overrides if given.is_sweep_override()}
    [jobs] = BasicSweeper.split_arguments(overrides, None)
    return [(job, [text for text in job if text.partition("=")[0] in swept]) for job in map(list, jobs)]


def _check_one(given: Override) -> None:
    if given.is_delete():
        raise ConfigError(f"{given.input_line}: a key cannot be taken away.", "Give it another value.")
    if given.is_sweep_override() and not given.is_discrete_sweep():
        message = f"{given.input_line} has no countable values."
        raise ConfigError(message, "Give values with commas, choice(...), range(...) or glob(...).")
    if given.key_or_group == "hydra.run.dir":
        raise ConfigError(
            f"{given.input_line} is the folder of one run, but --multirun makes many.",
            f"Give {SWEEP_DIR}=PATH: each job has a folder of its own in it.",
        )


def _launcher(texts: Sequence[str], job: Sequence[str], name: str, folder: Path | None) -> Launcher | None:
    """What `hydra/launcher=...` and `hydra.launcher.*` ask for; None where they ask for nothing.

    Args:
        folder: Of the jobs; None where it is not known yet.
    """
    if not texts:
        return None
    try:
        asked = [*job, *texts, override(SWEEP_DIR, folder or Path.cwd())]
        config = compose(name, overrides=asked, return_hydra_config=True)
        parameters = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    except COMPOSITION_ERRORS as error:
        raise explain(error) from error
    assert isinstance(parameters, dict)
    kind = SLURM if str(parameters["_target_"]).endswith("SlurmLauncher") else LOCAL
    return Launcher(kind, {str(key): value for key, value in parameters.items()})


def _folder(text: str, job: Sequence[str], name: str) -> Path:
    """hydra.sweep.dir as Hydra resolves it, absolute: a relative one starts at the launch directory."""
    try:
        config = compose(name, overrides=[*job, text], return_hydra_config=True)
        folder = Path(str(config.hydra.sweep.dir)).expanduser().absolute()
    except COMPOSITION_ERRORS as error:
        raise explain(error) from error
    if folder.exists() and not folder.is_dir():
        raise ConfigError(
            f"{text} is a file.", "Give a folder, a new one or that of an earlier start to go on with it."
        )
    return folder


def _grouped(config: RunConfig, folder: Path) -> tuple[str, ...]:
    if isinstance(config.tracker, WandbConfig) and config.tracker.group is None:
        return (override("tracker.group", folder.name[:128]),)
    return ()


# --- what is shown --------------------------------------------------------------------------------------------------


def _asked(swept: Sequence[str]) -> str:
    return " ".join(swept)


def _job(name: str, result: Result | None, submitted: bool) -> Job:
    if result is None:
        return Job(name, "submitted" if submitted else "not run")
    return Job(name, result.status, result.folder, result.record, result.seconds, result.error)


def _outcome(result: Result) -> str:
    if not result.succeeded:
        return f"failed: {result.error}; see {result.log}"
    took = f"{result.seconds:.0f} s, " if result.seconds is not None else ""
    return f"{took}{result.folder}" + (" (kept from an earlier start)" if result.status == "kept" else "")
