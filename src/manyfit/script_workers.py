"""The scripts that use a model in several processes: `--workers N`, or those that TF_CONFIG or Slurm has started."""

import argparse
import sys
from collections.abc import Callable

from manyfit.cluster import resolve
from manyfit.config import MultiWorkerConfig
from manyfit.console import Console
from manyfit.errors import ConfigError, UserError
from manyfit.peers import Peers, alone
from manyfit.schema.checks import AUTO
from manyfit.script import exit_code_of
from manyfit.workers import assembled, console_of, run_workers


def add_workers_flag(parser: argparse.ArgumentParser) -> None:
    """The flag `--workers` of a script that uses a model."""
    told = "several processes: N on this machine, or auto for those of TF_CONFIG or a Slurm job step"
    parser.add_argument("--workers", metavar="N|auto", help=told)


def exit_code_of_workers(arguments: argparse.Namespace, action: Callable[[Console, Peers], object]) -> int:
    """Do what a script is for, in as many processes as `--workers` says, and say how it ended.

    Args:
        arguments: With `workers`, and `replicas` and `device` of each.
        action: Gets the console and the other workers; the strategy is `strategy_of_workers`.
    """
    if arguments.workers is None:
        return exit_code_of(lambda console: action(console, alone()))
    try:
        strategy = strategy_of_workers(arguments)
        if (code := run_workers(strategy)) is not None:
            return code
        own = console_of(strategy)
    except UserError as error:
        Console().error(error)
        return error.exit_code
    facts = {name: str(value) for name, value in vars(arguments).items()}

    def joined(console: Console) -> None:
        # What the script prints may be read by another program.
        cluster = resolve(strategy)
        screen = Console(stdout=sys.stderr) if cluster is not None and cluster.is_chief else console
        with assembled(strategy, facts, screen) as peers:
            action(console, peers)

    return exit_code_of(joined, own)


def strategy_of_workers(arguments: argparse.Namespace) -> MultiWorkerConfig:
    """What `--workers`, `--replicas` and `--device` ask for.

    Raises:
        ConfigError: no number, and not `auto`; or nothing says which processes there are.
    """
    text = arguments.workers
    if text != AUTO and not (text.isdecimal() and int(text)):
        raise ConfigError(f"--workers {text} is not a number of processes.", "Give for example --workers 2, or auto.")
    strategy = MultiWorkerConfig(
        local_workers=None if text == AUTO else int(text),
        replicas=AUTO if arguments.replicas is None else arguments.replicas,
        device=arguments.device,
    )
    if text == AUTO:
        try:
            resolve(strategy)
        except ConfigError as error:
            raise ConfigError(error.message, "Give --workers N for N processes on this machine.") from error
    return strategy
