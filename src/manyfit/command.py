"""How a script is called: Hydra composes what was typed, and every mistake ends in one message and an exit code."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, read_write
from omegaconf.errors import OmegaConfBaseException

from manyfit.errors import ConfigError, UserError
from manyfit.overrides import COMPOSITION_ERRORS, MANY_RUNS, SHOW_KEYS, check_overrides, explain
from manyfit.record import environment

EXIT_INTERRUPTED = 130
FULL_ERROR = "HYDRA_FULL_ERROR"
DEFAULT_RUN_FOLDER = "outputs/DATE/TIME_NAME"
"""What conf/hydra/manyfit.yaml gives as hydra.run.dir where the user gives nothing."""

Task = Callable[[DictConfig], int | None]


def repository_root() -> Path:
    """The folder that holds conf/, src/ and outputs/."""
    return Path(__file__).resolve().parents[2]


def requested_run_dir() -> Path | None:
    """The user's `hydra.run.dir=PATH`, absolute (a relative one starts at the launch directory); None if not given.

    Hydra has not made that folder: `manyfit.record.make_run_folder` does, once the run may start.
    """
    return RunFolderCallback.requested


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


def hydra_command(task: Task) -> Callable[[], None]:
    """Make the main function of a script from `task`, which gets the composed config.

    The process ends with the exit code that `task` returns (None is 0). A mistake in the configuration ends with
    code 2, a `UserError` of the task with its own, both with a message and no traceback; Ctrl-C ends with 130. Any
    other exception keeps its traceback. With HYDRA_FULL_ERROR=1 each of them shows one.
    """

    def main() -> None:
        full_error = os.environ.get(FULL_ERROR)
        try:
            code = _run(task, full_error)
        except UserError as error:
            if full_error == "1":
                traceback.print_exc()
            print(f"Error: {error}", file=sys.stderr)
            code = error.exit_code
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        sys.exit(code)

    main.__doc__ = task.__doc__
    return main


def _run(task: Task, full_error: str | None) -> int:
    """Compose, run `task` and return its exit code; what goes wrong is raised as the exception it is."""
    config_folder = repository_root() / "conf"
    arguments = _parse_arguments()
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


def _parse_arguments() -> argparse.Namespace:
    """The command line as Hydra will parse it; its mistakes as ConfigError, and what Hydra is not asked to do."""
    if "--version" in sys.argv[1:]:
        print(", ".join(f"{name} {version}" for name, version in environment()["versions"].items()))
        sys.exit(0)
    parser = get_args_parser()
    parser.error = _refuse_arguments
    arguments = parser.parse_args()
    if arguments.multirun:
        raise ConfigError("--multirun is not available: it would run several trainings in one process.", MANY_RUNS)
    modes = ("run", "cfg", "info", "shell_completion", "help", "hydra_help")
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
    example = flags[0].lstrip("-").partition("=")[0].replace("-", "_") or "KEY"
    raise ConfigError(f"{' '.join(flags)} is no flag.", f"Overrides take no dashes: {example}=VALUE. {SHOW_KEYS}")
