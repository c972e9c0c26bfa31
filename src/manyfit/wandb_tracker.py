"""An open Weights & Biases run, online or offline, with nothing of it able to end a training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyfit import wandb_artifacts
from manyfit.config import WandbConfig
from manyfit.files import to_plain
from manyfit.masking import mask, mask_text
from manyfit.tracker import Counts, Notify, Tracker, explain
from manyfit.wandb_file import is_complete
from manyfit.wandb_segments import Segment, sync_line
from manyfit.wandb_session import Environment, teardown

if TYPE_CHECKING:
    import keras


class WandbTracker(Tracker):
    """An open W&B run; made by `manyfit.tracker_opening.open_tracker`.

    Args:
        run: What `wandb.init` returned.
        environment: Restored when the run is finished.
        config: What was asked.
        folder: The run folder.
        segment: What this process adds to the run.
        earlier: What earlier attempts told of the same run.
        told_until: The last step whose row the server has from one of them: it takes no other.
    """

    def __init__(
        self,
        run: Any,
        environment: Environment,
        *,
        config: WandbConfig,
        folder: Path,
        segment: Segment,
        earlier: Sequence[Segment] = (),
        told_until: int = -1,
        tensorboard: Path | None = None,
        notify: Notify = lambda text: None,
    ):
        super().__init__(segment.mode, tensorboard=tensorboard, notify=notify)
        self._run = run
        self._environment = environment
        self._asked = config
        self._run_folder = folder
        self._segment = segment
        self._earlier = list(earlier)
        self._told_until = told_until
        self._num_rows = 0
        self._used_data = False
        self._working = True
        self._finished = False
        self.folder = segment.folder
        self.run_id = run.id
        self.path = "/".join(part for part in (run.entity, run.project, run.id) if part)
        self.url = run.url if self.mode == "online" else None
        self.config = {} if run.resumed or earlier else dict(run.config)
        self._name_segments()

    def _name_segments(self) -> None:
        every = [*self._earlier, self._segment]
        self.segments = [segment.as_dict(self._run_folder) for segment in every]
        # What is being uploaded needs no line, until it turns out that it was not.
        live = self.mode == "online" and self._working
        self.sync_command = sync_line(self._earlier if live else every)

    def callbacks(self, counts: Counts) -> list["keras.callbacks.Callback"]:
        """The rows of epochs, and of steps where they are asked for, behind a guard; and TensorBoard's."""
        from manyfit.callbacks.guarded import Guarded

        def make() -> Any:
            from manyfit.callbacks.wandb_rows import WandbRows

            return WandbRows(self._run.define_metric, self._log, counts, every_steps=self._asked.log_every_steps)

        return [Guarded(make, self._give_up), *super().callbacks(counts)]

    @property
    def wants_every_model(self) -> bool:
        """Whether the model of every epoch is to be told."""
        return self._asked.log_model == "all"

    def log(self, row: Mapping[str, Any], step: int | None = None) -> None:
        """Log a row to the run's history."""
        self._attempt(lambda: self._log(row, step))

    def _log(self, row: Mapping[str, Any], step: int | None = None) -> None:
        if step is not None and step <= self._told_until:
            return
        # `commit`: a row with a step would otherwise wait for the next one.
        self._run.log(to_plain(row), step=step, commit=True)
        self._num_rows += 1

    def summary(self, values: Mapping[str, Any]) -> None:
        """Set values of the run's summary."""
        self._attempt(lambda: self._run.summary.update(mask(to_plain(values))))

    def write_log(self, text: str) -> None:
        """Write lines to the run's Logs tab."""
        self._attempt(lambda: self._run.write_logs(mask_text(text)))

    def note(self, text: str) -> None:
        """Add to the run's notes."""

        def add() -> None:
            self._run.notes = "\n\n".join(part for part in (self._run.notes, mask_text(text)) if part)

        self._attempt(add)

    def preempted(self) -> None:
        """Mark the run as preempting: W&B then shows it as preempted, and a sweep gives it to another agent."""
        self._attempt(self._run.mark_preempting)

    def model(self, path: Path, aliases: Sequence[str], facts: Mapping[str, Any]) -> None:
        """Log a saved model as an artifact, with the data it was trained on as what the run used."""
        if self._asked.log_model != "none":
            if not self._used_data:
                self._used_data = True
                self._hand(lambda: wandb_artifacts.use_data(self._run, self._run_folder, facts["data"]))
            self._hand(lambda: wandb_artifacts.log_model(self._run, path, aliases, mask(facts)))

    def code(self, files: Sequence[Path], facts: Mapping[str, Any]) -> None:
        """Log what tells the code that runs as an artifact."""
        if self._asked.log_code:
            self._hand(lambda: wandb_artifacts.log_code(self._run, files, mask(facts)))

    def mistakes(self, found: Any) -> None:
        """Log the wrong predictions as a table with pictures, and how often each class was taken for each."""

        def log() -> None:
            self._run.log(wandb_artifacts.tables_of(found), commit=True)
            self._num_rows += 1

        self._hand(log)

    def _hand(self, action: Callable[[], Any]) -> None:
        """Do what may fail by itself: the rows go on without it."""

        def attempt() -> None:
            try:
                action()
            except ConnectionError:
                raise
            except Exception as error:
                reason = mask_text(explain(error))
                self._notify(f"W&B did not take a file ({reason}); it is in the run folder, and the rows go on.")

        self._attempt(attempt)

    def _attempt(self, action: Callable[[], Any]) -> None:
        if self._working and not self._finished:
            try:
                action()
            except Exception as error:  # a dead helper process, a full disk, a value W&B can't take
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if self._working:
            self._working = False
            self._name_segments()
            unharmed = "The training is not affected: every number is in the run folder's record."
            sync = f" To upload what W&B got: {self.sync_command}" if self.sync_command else ""
            self._notify(f"W&B stopped working ({mask_text(explain(error))}). {unharmed}{sync}")

    def finish(self, exit_code: int = 0) -> None:
        """Finish the run with the process's exit code and wait until its file is complete. Never raises."""
        if self._finished:
            return
        # Each of them also after a failure: a value that W&B could not take must not cost the run its exit code, and
        # a run that is not finished would be in the way of the next one.
        for action in (lambda: self._run.finish(exit_code=exit_code), lambda: teardown(exit_code)):
            try:
                action()
            except Exception as error:
                self._give_up(error)
        self._finished = True
        self._environment.restore()
        if self._working and self.mode == "offline" and not is_complete(self._segment.path, self._num_rows):
            # W&B itself says nothing when the disk is full.
            self._notify(f"What W&B wrote in {self.folder} is incomplete. Every number is in the run folder's record.")
        if self._working and self.mode == "online":
            self._segment = replace(self._segment, complete=True)
        self._name_segments()
