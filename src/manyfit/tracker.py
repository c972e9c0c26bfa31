"""Who is told: Weights & Biases online, offline or not at all, with nothing of it able to end a training."""

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from manyfit.config import AUTO, TrackerConfig, WandbConfig
from manyfit.files import to_plain
from manyfit.wandb_file import is_complete

if TYPE_CHECKING:
    import keras

MAX_NAME, MAX_TAG = 128, 64
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

Notify = Callable[[str], None]


class Tracker:
    """A tracker that tells nobody, and the interface of those that do; use it as a context manager.

    Args:
        mode: `none`, `disabled`, `offline` or `online`: what came of what was asked.
        tensorboard: Folder of TensorBoard logs; None for none.
        notify: Told once if the TensorBoard logs cannot be written.

    Attributes:
        run_id: The tracker's own name of the run, once it is known.
        path: `entity/project/id`, as far as it is known.
        url: Where the run can be seen; None offline.
        sync_command: The line that uploads what is only on disk; None if there is nothing to upload.
        config: The configuration as the tracker holds it, in which a sweep's values have won; empty where nobody is
            told, and for a run that goes on, which may be asked something else than before.
    """

    def __init__(self, mode: str = "none", *, tensorboard: Path | None = None, notify: Notify = lambda text: None):
        self.mode = mode
        self.run_id: str | None = None
        self.path: str | None = None
        self.url: str | None = None
        self.sync_command: str | None = None
        self.config: Mapping[str, Any] = {}
        self._tensorboard = tensorboard
        self._notify = notify

    def callbacks(self) -> list["keras.callbacks.Callback"]:
        """The Keras callbacks that tell; they stand after the one that makes the rows."""
        if self._tensorboard is None:
            return []
        from manyfit.callbacks.guarded import Guarded

        folder = self._tensorboard

        def make() -> "keras.callbacks.Callback":
            from manyfit.callbacks.tensorboard import TensorBoardRows

            return TensorBoardRows(folder)

        def give_up(error: Exception) -> None:
            self._notify(f"The TensorBoard logs cannot be written ({explain(error)}); the training goes on.")

        return [Guarded(make, give_up)]

    def log(self, row: Mapping[str, Any]) -> None:
        """Tell a row of numbers that the callbacks don't."""

    def summary(self, values: Mapping[str, Any]) -> None:
        """Tell the numbers that sum up the run."""

    def write_log(self, text: str) -> None:
        """Tell lines of the log."""

    def note(self, text: str) -> None:
        """Tell something about the run that its reader should see first, such as why it failed."""

    def finish(self, exit_code: int = 0) -> None:
        """Close the tracker; what it was told is on disk afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.finish(exit_code_of(error))


class NullTracker(Tracker):
    """`tracker=none`, or W&B disabled."""


class WandbTracker(Tracker):
    """An open W&B run; made by `open_tracker`."""

    def __init__(self, run: Any, environment: "Environment", *, mode: str, tensorboard: Path | None, notify: Notify):
        super().__init__(mode, tensorboard=tensorboard, notify=notify)
        self._run = run
        self._environment = environment
        self._working = True
        self._finished = False
        self.folder = Path(run.settings.sync_dir)
        self.run_id = run.id
        self.path = "/".join(part for part in (run.entity, run.project, run.id) if part)
        self.url = run.url if mode == "online" else None
        self.sync_command = self._sync_line() if mode == "offline" else None
        self.config = {} if run.resumed else dict(run.config)

    def _sync_line(self) -> str:
        # What was begun online is passed over unless it is asked for.
        online = "--include-online " if self.mode == "online" else ""
        return f"wandb sync {online}{shlex.quote(str(self.folder))}"

    def callbacks(self) -> list["keras.callbacks.Callback"]:
        """W&B's own metrics logger, behind a guard, and TensorBoard's if it was asked for."""
        from manyfit.callbacks.guarded import Guarded

        def make() -> Any:
            from manyfit.callbacks.wandb_rows import WandbRows

            return WandbRows()

        return [Guarded(make, self._give_up), *super().callbacks()]

    def log(self, row: Mapping[str, Any]) -> None:
        """Log a row to the run's history."""
        self._attempt(lambda: self._run.log(to_plain(row)))

    def summary(self, values: Mapping[str, Any]) -> None:
        """Set values of the run's summary."""
        self._attempt(lambda: self._run.summary.update(to_plain(values)))

    def write_log(self, text: str) -> None:
        """Write lines to the run's Logs tab."""
        self._attempt(lambda: self._run.write_logs(text))

    def note(self, text: str) -> None:
        """Add to the run's notes."""

        def add() -> None:
            self._run.notes = "\n\n".join(part for part in (self._run.notes, text) if part)

        self._attempt(add)

    def _attempt(self, action: Callable[[], Any]) -> None:
        if self._working and not self._finished:
            try:
                action()
            except Exception as error:  # a dead helper process, a full disk, a value W&B can't take
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if self._working:
            self._working = False
            unharmed = "The training is not affected: every number is in the run folder's record."
            self._notify(f"W&B stopped working ({explain(error)}). {unharmed}")

    def finish(self, exit_code: int = 0) -> None:
        """Finish the run with the process's exit code and wait until its file is complete. Never raises."""
        if self._finished:
            return
        num_rows = 0

        def count_rows() -> None:
            nonlocal num_rows
            num_rows = self._run.step

        # Each of them also after a failure: a value that W&B could not take must not cost the run its exit code, and
        # a run that is not finished would be in the way of the next one.
        for action in (count_rows, lambda: self._run.finish(exit_code=exit_code), lambda: _teardown(exit_code)):
            try:
                action()
            except Exception as error:
                self._give_up(error)
        self._finished = True
        self._environment.restore()
        if not self._working:
            self.sync_command = self._sync_line()
        elif self.mode == "offline" and not is_complete(self.folder / f"run-{self.run_id}.wandb", num_rows):
            # W&B itself says nothing when the disk is full.
            self._notify(f"What W&B wrote in {self.folder} is incomplete. Every number is in the run folder's record.")


def open_tracker(
    config: TrackerConfig,
    *,
    folder: Path,
    run_name: str,
    config_dict: Mapping[str, Any],
    derived: Mapping[str, Any],
    tags: Sequence[str],
    notify: Notify,
    gpu_indices: Sequence[int] = (),
) -> Tracker:
    """The tracker that was asked for, open; where W&B can't be had as asked, the next best one and a notice.

    Args:
        config: What was asked.
        folder: The run folder; everything W&B writes stays inside.
        run_name: Shown by W&B, unless WANDB_NAME is set.
        config_dict: The resolved configuration, nested.
        derived: What followed from it (replicas, steps ...): the `derived` section of W&B's config.
        tags: Besides those of the configuration.
        notify: Shows and records a notice.
        gpu_indices: The GPUs whose system metrics W&B samples, as NVML counts them.
    """
    folder = Path(folder).absolute()
    tensorboard = folder / "tensorboard" if config.tensorboard else None
    if not isinstance(config, WandbConfig):
        return NullTracker("none", tensorboard=tensorboard, notify=notify)
    environment = Environment(folder)
    try:
        mode = resolve_mode(config, notify)
        options = {
            "project": _project(config),
            "entity": config.entity,
            "group": config.group[:MAX_NAME] if config.group else None,
            "notes": config.notes,
            "name": (os.environ.get("WANDB_NAME") or run_name)[:MAX_NAME],
            "tags": short_tags([*config.tags, *tags, *os.environ.get("WANDB_TAGS", "").split(",")]),
            "config": to_plain({**config_dict, "derived": dict(derived)}),
            "dir": str(folder),
        }
        while mode != "disabled":
            try:
                run = _start(mode, options, _stats_settings(config, gpu_indices), notify)
            except Exception as error:
                fallback = "offline" if mode == "online" else "disabled"
                notify(_cannot_start(mode, fallback, error))
                mode = fallback
            else:
                return WandbTracker(run, environment, mode=mode, tensorboard=tensorboard, notify=notify)
    except BaseException:
        environment.restore()
        raise
    environment.restore()
    return NullTracker("disabled", tensorboard=tensorboard, notify=notify)


def _cannot_start(mode: str, fallback: str, error: Exception) -> str:
    meanwhile = (
        "This run is tracked offline." if fallback == "offline" else "This run is recorded in its run folder alone."
    )
    return f"W&B could not start {mode} ({explain(error)}). {meanwhile}"


def _project(config: WandbConfig) -> str:
    # The environment fills in where the configuration was left at its default, as it does for the mode.
    if config.project == WandbConfig.project:
        return os.environ.get("WANDB_PROJECT") or config.project
    return config.project


def _stats_settings(config: WandbConfig, gpu_indices: Sequence[int]) -> dict[str, Any]:
    """W&B's settings for its own samples of the machine."""
    if config.system_metrics_seconds is None:
        return {"x_disable_stats": True}
    # W&B does not know which GPUs the run uses: it looks at all of the machine, whatever CUDA_VISIBLE_DEVICES says.
    return {
        "x_stats_sampling_interval": config.system_metrics_seconds,
        "x_stats_gpu_device_ids": list(gpu_indices or NO_GPU),
        "x_stats_track_process_tree": True,
    }


def _start(mode: Any, options: Mapping[str, Any], stats_settings: Mapping[str, Any], notify: Notify) -> Any:
    """Open the one W&B run of this process."""
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
        **stats_settings,
        # A run that is killed keeps what it logged until just before.
        "x_transaction_log_flush_interval": FLUSH_SECONDS,
        # Otherwise an upload that was given up would look like one that is complete.
        "finish_timeout_raises": True,
    }
    # The lines of the log are written to W&B by us: captured bars would be a wall of control codes.
    defaults = {"console": "off", "init_timeout": INIT_SECONDS, "finish_timeout": FINISH_SECONDS}
    settings |= {name: value for name, value in defaults.items() if f"WANDB_{name.upper()}" not in os.environ}
    return wandb.init(mode=mode, settings=wandb.Settings(**settings), **options)


def _teardown(exit_code: int) -> None:
    """Wait until W&B's helper process has written everything and ended."""
    import wandb

    try:
        wandb.teardown(exit_code)
    except SystemExit as error:  # what W&B does where its helper process failed
        raise RuntimeError(f"its helper process ended with exit code {error.code}") from error


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


def exit_code_of(error: BaseException | None) -> int:
    """The exit code that a process ending in `error` will have."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt):
        return 130
    code = getattr(error, "exit_code", 1)
    return code if isinstance(code, int) else 1


def explain(error: Exception) -> str:
    """The kind of an exception and the first line of what it says."""
    first_line = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def short_tags(tags: Sequence[str]) -> list[str]:
    """Tags as W&B takes them: not empty, at most 64 characters, each once."""
    return list(dict.fromkeys(tag.strip()[:MAX_TAG] for tag in tags if tag.strip()))
