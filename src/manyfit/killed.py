"""What the process that started a run notes when a signal ended it, since the run itself no longer can."""

import signal
from pathlib import Path

from manyfit.errors import UserError
from manyfit.record import RunRecord


def describe(number: int) -> str:
    """Which signal ended a process, and for SIGKILL the usual reason."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def close_record(folder: Path, exit_code: int, said: str | None = None) -> str | None:
    """Close the record of a run whose process ended without doing so; why it failed, or None if it was closed.

    Args:
        exit_code: As `subprocess` gives it: negative for a signal.
        said: The last that the process said, which counts where no signal ended it.
    """
    try:
        record = RunRecord.load(folder)
    except UserError:
        return None
    if record.data["status"] != "running":
        return None
    killed = exit_code < 0
    error = describe(-exit_code) if killed else said or f"exit code {exit_code}"
    try:
        record.set_status("failed", exit_code=128 - exit_code if killed else exit_code, error=error)
    except UserError:
        return error  # a full disk may be what ended it
    return error
