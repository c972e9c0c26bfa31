"""How a W&B run is opened and closed: the mode, decided once, the environment it needs, and its helper process."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from manyfit.config import AUTO, WandbConfig
from manyfit.masking import mask_text
from manyfit.tracker import Notify, explain

INIT_SECONDS, FINISH_SECONDS, FLUSH_SECONDS = 30.0, 120.0, 0.5
NO_GPU = (2**15,)
"""Indices for W&B that mean no GPU: an empty list would mean all of them."""
MODES = {
    "online": "online",
    "run": "online",
    "shared": "online",
    "offline": "offline",
    "dryrun": "offline",
    "disabled": "disabled",
}
"""What the values of WANDB_MODE mean; `run` and `dryrun` are its old names."""


def resolve_mode(config: WandbConfig, notify: Notify) -> str:
    """`online`, `offline` or `disabled`: what is asked, resolved once, with a notice where it can't be had."""
    asked = config.mode
    if asked == AUTO:
        asked = os.environ.get("WANDB_MODE") or AUTO
        if asked != AUTO and asked not in MODES:
            notify(f"WANDB_MODE={asked} is not a mode of W&B ({', '.join(MODES)}). This run is tracked offline.")
            return "offline"
    mode = MODES.get(asked, AUTO)
    if mode in ("offline", "disabled"):
        return mode
    try:
        has_key = _has_key()
    except Exception as error:
        notify(f"The W&B key cannot be used ({explain(error)}). This run is tracked offline.")
        return "offline"
    if not has_key:
        wanted = "W&B was asked to go online, but no" if mode == "online" else "No"
        notify(
            f"{wanted} W&B key is set, so this run is tracked offline. For online: `wandb login`, or set "
            "WANDB_API_KEY. To track offline without this notice: tracker.mode=offline."
        )
        return "offline"
    return "online"


def _has_key() -> bool:
    """Whether W&B's own look-up finds a key (environment, netrc, settings) for the server in use."""
    from wandb.sdk import wandb_setup
    from wandb.sdk.lib import wbauth

    host = wandb_setup.singleton().settings.base_url
    return wbauth.authenticate_session(host=host, source="manyfit", prompt=False, update_session=False) is not None


def start(mode: Any, options: Mapping[str, Any], stats: Mapping[str, Any], notify: Notify) -> Any:
    """Open the one W&B run of this process.

    Args:
        options: Of `wandb.init`.
        stats: Settings of W&B's own samples of the machine.
    """
    import wandb

    # `init` would return a run that is still open, and this run's rows would land in it.
    open_run = wandb.run
    if open_run is not None:
        with suppress(Exception):  # it raises for a run whose helper process died
            open_run.finish()
            notify(f"The W&B run {open_run.id} was still open in this process; it was finished first.")
    # Settings are read from the environment once; an earlier run's must not be used for this one.
    wandb.teardown()
    os.environ["WANDB_MODE"] = mode
    settings: dict[str, Any] = {
        **stats,
        # A run that is killed keeps what it logged until just before.
        "x_transaction_log_flush_interval": FLUSH_SECONDS,
        # Otherwise an upload that was given up would look like one that is complete.
        "finish_timeout_raises": True,
    }
    # The lines of the log are written to W&B by us: captured bars would be a wall of control codes.
    defaults = {"console": "off", "init_timeout": INIT_SECONDS, "finish_timeout": FINISH_SECONDS}
    settings |= {name: value for name, value in defaults.items() if f"WANDB_{name.upper()}" not in os.environ}
    with _masked_command_line():
        return wandb.init(mode=mode, settings=wandb.Settings(**settings), **options)


@contextmanager
def _masked_command_line() -> Iterator[None]:
    # W&B keeps the command line as the run's metadata.
    before = list(sys.argv)
    sys.argv[:] = [mask_text(word) for word in before]
    try:
        yield
    finally:
        sys.argv[:] = before


def stats_settings(seconds: float | None, gpu_indices: Sequence[int]) -> dict[str, Any]:
    """W&B's settings for its own samples of the machine."""
    if seconds is None:
        return {"x_disable_stats": True}
    # W&B does not know which GPUs the run uses: it looks at all of the machine, whatever CUDA_VISIBLE_DEVICES says.
    return {
        "x_stats_sampling_interval": seconds,
        "x_stats_gpu_device_ids": list(gpu_indices or NO_GPU),
        "x_stats_track_process_tree": True,
    }


def teardown(exit_code: int) -> None:
    """Wait until W&B's helper process has written everything and ended.

    Raises:
        RuntimeError: it failed.
    """
    import wandb

    try:
        wandb.teardown(exit_code)
    except SystemExit as error:  # what W&B does where its helper process failed
        raise RuntimeError(f"its helper process ended with exit code {error.code}") from error


class Environment:
    """W&B's environment variables during a run; those that the user set are left alone.

    Everything that W&B writes stays in the run folder, its own lines stay off the screen, and nothing is reported to
    its makers.
    """

    def __init__(self, folder: Path):
        self._before = {name: value for name, value in os.environ.items() if name.startswith("WANDB_")}
        defaults = {
            "WANDB_SILENT": "true",
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_DATA_DIR": str(folder / "wandb" / "data"),
            "WANDB_CACHE_DIR": str(folder / "wandb" / "cache"),
            "WANDB_ARTIFACT_DIR": str(folder / "wandb" / "artifacts"),
        }
        for name, value in defaults.items():
            os.environ.setdefault(name, value)
        if "wandb" in sys.modules and sys.modules["wandb"].run is None:
            sys.modules["wandb"].teardown()

    def restore(self) -> None:
        """Put back what was there before."""
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            if name not in self._before:
                del os.environ[name]
        os.environ.update(self._before)
