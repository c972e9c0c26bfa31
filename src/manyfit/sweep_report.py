"""What W&B is told of a run of a sweep that failed before, or without, telling it itself."""

import os
import sys
import tempfile
from contextlib import suppress

from manyfit.sweep_arguments import PARAMETER_FILE

SUPERVISOR = "MANYFIT_SUPERVISOR"
"""Names the process that watches a training, for the training itself."""

ONLINE = ("online", "run", "shared")
SECONDS = 15.0
MOST_NOTES = 2000


def by_agent() -> bool:
    """Whether this process belongs to a W&B agent's run."""
    return bool(os.environ.get("WANDB_SWEEP_ID") and os.environ.get(PARAMETER_FILE))


def is_supervised(parent: int) -> bool:
    """Whether this process is a training beside which another one watches."""
    return os.environ.get(SUPERVISOR) == str(parent)


def tell_wandb(cause: str, exit_code: int) -> None:
    """Close this process's run on the server with its exit code, and the cause in its notes.

    Nothing is told where the run is no agent's or W&B was asked to stay offline; a server that can't be had is no
    further failure.
    """
    asked = [word.partition("=") for word in sys.argv[1:]]
    stays_offline = any((key, value) == ("tracker", "none") for key, _, value in asked)
    stays_offline |= any(
        key == "tracker.mode" and value.strip('"') in ("offline", "disabled") for key, _, value in asked
    )
    if not by_agent() or stays_offline or os.environ.get("WANDB_MODE", "online") not in ONLINE:
        return
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    with suppress(Exception), tempfile.TemporaryDirectory() as folder:
        import wandb

        settings = wandb.Settings(
            console="off",
            silent=True,
            init_timeout=SECONDS,
            finish_timeout=SECONDS,
            x_disable_stats=True,
            x_disable_meta=True,
        )
        # "allow": what the run has logged already stays.
        run = wandb.init(dir=folder, mode="online", resume="allow", notes=cause[:MOST_NOTES], settings=settings)
        run.finish(exit_code=exit_code)
        wandb.teardown(exit_code)
