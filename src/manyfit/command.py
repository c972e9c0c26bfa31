"""How a script is called: Hydra composes what was typed, and every mistake ends in one message and an exit code."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, overload

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, read_write
from omegaconf.errors import OmegaConfBaseException

from manyfit import sweep_arguments
from manyfit.errors import EXIT_INTERRUPTED, ConfigError, UserError
from manyfit.overrides import COMPOSITION_ERRORS, SHOW_KEYS, check_overrides, explain, long_form
from manyfit.record import environment
from manyfit.sweep_report import by_agent, is_supervised, tell_wandb

FULL_ERROR = "HYDRA_FULL_ERROR"
DEFAULT_RUN_FOLDER = "outputs/DATE/TIME_NAME"
"""What conf/hydra/manyfit.yaml gives as hydra.run.dir where the user gives nothing."""

Task = Callable[[DictConfig], int | None]

Many = Callable[[argparse.Namespace], int]
"""Runs what `--multirun` asks for, given Hydra's arguments; the exit code."""


def repository_root() -> Path:
    """The folder that holds conf/, src/ and outputs/."""
    return Path(__file__).resolve().parents[2]


def outputs_folder() -> Path:
    """Where run folders go that were given no other place: outputs/ of the repository, or MANYFIT_OUTPUTS."""
    return Path(os.environ.get("MANYFIT_OUTPUTS") or repository_root() / "outputs").absolute()


def requested_run_dir() -> Path | None:
    """The user's `hydra.run.dir=PATH`, absolute (a relative one starts at the launch directory); None if not given.

    Hydra has not made that folder: `manyfit.record.make_run_folder` does, once the run may start.
    """
    return RunFolderCallback.requested


def asked_overrides() -> list[str]:
    """The overrides of the command line that are not Hydra's own."""
    return list(HydraConfig.get().overrides.task)


class RunFolderCallback(Callback):
    """Takes hydra.run.dir out of Hydra's hands, which would make the folder before anything is checked."""

    requested: Path | None = None

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        """Keep the folder that was asked for, and leave Hydra the launch directory, which exists."""
        try:
            folder = str(config.hydra.run.dir)
        except OmegaConfBaseException:
            return  # Hydra meets the same error next, and that one is explained
        asked = folder != DEFAULT_RUN_FOLDER
        type(self).requested = Path(folder).expanduser().absolute() if asked else None
        with read_write(config):
            config.hydra.run.dir = "."


@overload
def hydra_command(task: Task) -> Callable[[], None]: ...
@overload
def hydra_command(*, many: Many) -> Callable[[Task], Callable[[], None]]: ...


def hydra_command(task: Task | None = None, *, many: Many | None = None) -> Any:
    """Make the main function of a script from `task`, which gets the composed config.

    The process ends with the exit code that `task` returns (None is 0). A mistake in the configuration ends with
    code 2, a `UserError` of the task with its own, both with a message and no traceback; Ctrl-C ends with 130. Any
    other exception keeps its traceback. With HYDRA_FULL_ERROR=1 each of them shows one.

    Args:
        many: What `--multirun` does; a script without it refuses the flag.
    """
    if task is None:
        return lambda task: _command(task, many)
    return _command(task, many)


def _command(task: Task, many: Many | None) -> Callable[[], None]:
    def main() -> None:
        full_error = os.environ.get(FULL_ERROR)
        try:
            code = _run(task, many, full_error)
        except UserError as error:
            if full_error == "1":
                traceback.print_exc()
            print(f"Error: {error}", file=sys.stderr, flush=True)
            code = error.exit_code
            if by_agent() and not is_supervised(os.getppid()):  # else the watching process tells
                tell_wandb(str(error), code)
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        sys.exit(code)

    main.__doc__ = task.__doc__
    return main


def _run(task: Task, many: Many | None, full_error: str | None) -> int:
    """Compose, run `task` and return its exit code; what goes wrong is raised as the exception it is."""
    config_folder = repository_root() / "conf"
    _take_sweep_parameters()
    arguments = _parse_arguments()
    if arguments.multirun:
        if many is None:
            raise ConfigError("This script takes no --multirun (-m).", "It goes with src/train.py.")
        return many(arguments)
    check_overrides(arguments.overrides, config_folder)
    outcome: dict[str, Any] = {}

    def inner(composed: DictConfig) -> None:
        _set_full_error(full_error)  # the task and its processes see the user's environment
        try:
            outcome["code"] = task(composed)
        except Exception as error:
            outcome["error"] = error  # raised below: Hydra would print a line of its own and exit with 1

    inner.__wrapped__ = task  # pyright: ignore[reportFunctionMemberAccess] - Hydra names the job after the task's file
    run = hydra.main(version_base="1.3", config_path=str(config_folder), config_name="config")(inner)
    _set_full_error("1")  # Hydra then raises instead of printing and exiting
    try:
        run()
    except COMPOSITION_ERRORS as error:
        raise explain(error) from error
    finally:
        _set_full_error(full_error)
    if "error" in outcome:
        raise outcome["error"]
    return outcome.get("code") or 0


def _set_full_error(value: str | None) -> None:
    if value is None:
        os.environ.pop(FULL_ERROR, None)
    else:
        os.environ[FULL_ERROR] = value


def _take_sweep_parameters() -> None:
    """Put the overrides in the place of `--sweep-parameters FILE`, so that the record says what was asked."""
    words: list[str] = []
    given = iter(sys.argv)
    for word in given:
        flag, equals, path = word.partition("=")
        if flag != sweep_arguments.FLAG:
            words.append(word)
            continue
        if not equals and (path := next(given, "")) == "":
            raise ConfigError(f"{flag} has no file.", "In a sweep file's command give ${args_json_file} after it.")
        words += sweep_arguments.overrides(sweep_arguments.read_json(path))
    sys.argv[:] = [long_form(word) for word in words]


def _parse_arguments() -> argparse.Namespace:
    """The command line as Hydra will parse it; its mistakes as ConfigError, and what Hydra is not asked to do."""
    if "--version" in sys.argv[1:]:
        print(", ".join(f"{name} {version}" for name, version in environment()["versions"].items()))
        sys.exit(0)
    parser = get_args_parser()
    parser.error = _refuse_arguments
    arguments = parser.parse_args()
    modes = ("run", "multirun", "cfg", "info", "shell_completion", "help", "hydra_help")
    given = [mode for mode in modes if getattr(arguments, mode)]
    if arguments.resolve and not arguments.cfg and not arguments.help:
        raise ConfigError("--resolve goes with --cfg or --help.", "Write for example --cfg job --resolve.")
    if len(given) > 1:
        flags = " and ".join(f"--{mode.replace('_', '-')}" for mode in given)
        raise ConfigError(f"{flags} exclude each other.", "Give one of them.")
    return arguments


def _refuse_arguments(message: str) -> NoReturn:
    unknown = message.removeprefix("unrecognized arguments: ")
    if unknown == message:
        raise ConfigError(f"The command line cannot be read: {message}.", SHOW_KEYS)
    flags = [word for word in unknown.split() if word.startswith("-")]
    if not flags:
        raise ConfigError(f"{unknown} is cut off from the other overrides.", "Give flags before or after all of them.")
    if os.environ.get(sweep_arguments.PARAMETER_FILE):
        remedy = f"In the sweep file's command give {sweep_arguments.FLAG} and ${{args_json_file}} after ${{program}}."
        raise ConfigError(f"{' '.join(flags)} is no flag.", remedy)
    example = flags[0].lstrip("-").partition("=")[0].replace("-", "_") or "KEY"
    raise ConfigError(f"{' '.join(flags)} is no flag.", f"Overrides take no dashes: {example}=VALUE. {SHOW_KEYS}")
