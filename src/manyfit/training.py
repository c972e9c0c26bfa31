"""The training of a run that is ready for it: who is called when, and how it goes on or stops."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyfit import model_state, run_record
from manyfit.batch import BatchPlan
from manyfit.caches import Caches
from manyfit.callbacks.best_model import BestModel
from manyfit.callbacks.checkpoints import Checkpoints
from manyfit.callbacks.guarded import Guarded
from manyfit.callbacks.model_versions import ModelVersions
from manyfit.callbacks.phases import Phases
from manyfit.callbacks.profiler import Profile, steps_to_trace
from manyfit.callbacks.progress import EpochProgress
from manyfit.callbacks.spanning import Spanning
from manyfit.callbacks.stop import StopOnSignal, Stopped
from manyfit.callbacks.throughput import EpochRows
from manyfit.callbacks.watchdog import Watchdog
from manyfit.checkpoint import START, Checkpoint, Position
from manyfit.closing import Closing
from manyfit.config import RunConfig
from manyfit.console import Console
from manyfit.course import Course
from manyfit.data.examples import ImageData
from manyfit.errors import EXIT_MAY_RETRY
from manyfit.faults import explained, of_workers
from manyfit.feeding import Feeding
from manyfit.peers import Peers
from manyfit.processes import process_seconds
from manyfit.record import RunRecord
from manyfit.replicated import ReplicatedModel
from manyfit.schema import metrics
from manyfit.stages import Stages
from manyfit.strategy import Place
from manyfit.system.sampler import Sampler
from manyfit.tracker import Notify, Tracker, explain

MODEL_NAME = "model.keras"
LOG_NAME = "log.txt"


@dataclass
class Session:
    """A run that is ready to train.

    Args:
        folder: The run folder, which all workers share.
        found: The checkpoint that it goes on from; None for a new one.
    """

    config: RunConfig
    place: Place
    data: ImageData
    plan: BatchPlan
    stages: Stages
    record: RunRecord
    found: Checkpoint | None
    tracker: Tracker
    sampler: Sampler
    stop: StopOnSignal
    console: Console
    notify: Notify
    peers: Peers
    folder: Path
    course: Course = field(init=False)
    feeding: Feeding = field(init=False)
    rows: EpochRows = field(init=False)
    best: BestModel = field(init=False)

    def __post_init__(self) -> None:
        self.rows = EpochRows(
            self.record,
            num_train=self.plan.examples_per_epoch,
            steps_per_epoch=self.plan.steps_per_epoch,
            global_batch_size=self.plan.examples_per_step,
            num_replicas=self.place.num_replicas,
            elapsed=self._elapsed,
            metrics=self.config.metrics,
        )
        self.best = BestModel(
            self.record,
            self.folder / MODEL_NAME,
            self._save_model if self.peers.is_chief else None,
            notify=self.notify,
            metric=self.config.best_metric,
            more=[f"val_{name}" for name in metrics.names(self.config.metrics)],
        )
        self.feeding = Feeding(
            self.config,
            self.plan,
            self.data,
            self.place,
            self.record,
            self.sampler,
            self.console,
            self.notify,
            self.peers,
        )
        self.course = Course(self.stages, self.config, self.record, self.rows, self.console, self.notify)

    def train(self) -> None:
        """Train, save what is best, and measure what bounds a step.

        Raises:
            Stopped: it was asked to; what was learned so far is saved.
            UserError: it cannot go on.
        """
        self.console.header(self.record.data, folder=self.record.folder, facts=self.course.header())
        members = {"rows": self.rows, "best": self.best, **self.course.members}
        start = self._restore(members)
        checkpoints = self._checkpoints(members, start)
        progress = EpochProgress(self.console, self.rows, self.best)
        self.course.announce()
        train, validation = self.feeding.feeds(self.cache, start, self.stop.check)
        self.record.update("timing", startup_seconds=process_seconds())
        self.sampler.enter("start")
        try:
            with (
                of_workers(self.peers),
                explained(self.plan, self.data, self.folder),
                Watchdog(self.config.watchdog.minutes, self._on_stuck) as watchdog,
                contextlib.closing(progress),
                contextlib.closing(checkpoints),
                self._profile() as profile,
            ):
                watched = [checkpoints, *profile, watchdog, self.stop]
                told = [progress, *self.tracker.callbacks(self.rows), *self._versions()]
                spanning = Spanning(
                    [
                        *self.course.before_rows,
                        self.rows,
                        Phases(self.sampler, self.rows),
                        self.best,
                        *self.course.after_rows,
                        *told,
                        *watched,
                    ],
                    self.config.epochs,
                )
                self._fit(train, validation, start, spanning)
                while self.course.has_next:
                    start = self.course.go_on(checkpoints.position.epoch)
                    checkpoints.set_model(self.model)  # for one that is written before the first step
                    watchdog.expect_trace()
                    self.course.announce()
                    train, validation = self.feeding.feeds(
                        self.cache, start, lambda: (watchdog.beat(), self.stop.check())
                    )
                    self._fit(train, validation, start, spanning)
        except Stopped:
            position = checkpoints.save_now()
            self.tracker.preempted()
            self.notify(f"Saved at {position}; to go on: resume={self.folder}")
            raise
        self.record.update("timing", skipped_steps=self.model.skipped_steps)
        self._closing().close(train, validation, checkpoints.position.epoch)

    @property
    def model(self) -> ReplicatedModel:
        """The compiled model of the phase that runs."""
        return self.stages.model

    @property
    def cache(self) -> Caches:
        """The caches of the phase that runs."""
        return self.stages.current.cache

    def _closing(self) -> Closing:
        return Closing(
            config=self.config,
            place=self.place,
            data=self.data,
            plan=self.plan,
            record=self.record,
            path=self.folder / MODEL_NAME,
            course=self.course,
            feeding=self.feeding,
            rows=self.rows,
            best=self.best,
            stop=self.stop,
            tracker=self.tracker,
            console=self.console,
            notify=self.notify,
            peers=self.peers,
            elapsed=self._elapsed,
            hand_model=self._hand_model,
        )

    def _fit(self, train: Any, validation: Any, start: Position, spanning: Spanning) -> None:
        """Train the phase that runs to its end."""
        spanning.is_last = not self.course.has_next
        self.model.fit(
            train,
            epochs=self.course.until(start),
            steps_per_epoch=self.plan.steps_per_epoch,
            validation_data=validation,
            validation_steps=self.plan.validation_steps,
            start=start,
            callbacks=[spanning],
        )

    def _elapsed(self) -> float:
        return run_record.earlier_seconds(self.found) + process_seconds()

    def _save_model(self, path: Path) -> None:
        whole = self.cache.network.model  # where features are kept, only its head trains
        whole = whole.network if isinstance(whole, ReplicatedModel) else whole
        with self.model.averaged_weights():
            whole.save(path)

    @contextlib.contextmanager
    def _profile(self) -> Iterator[list[Profile]]:
        """The callback that traces some steps, where that was asked for."""
        steps = steps_to_trace(self.config.profile, self.plan.steps_per_epoch, self.config.epochs)
        if steps is None or not self.peers.is_chief:
            yield []
            return
        epoch = self.config.profile.epoch
        made = Profile(self.record, steps, self.rows, self.console, self.notify, epoch=epoch)
        with contextlib.closing(made) as profile:
            yield [profile]

    def _restore(self, members: dict[str, Any]) -> Position:
        """Make everything as the checkpoint has it; the position where it goes on."""
        if self.found is None:
            return START
        state, best = self.found.state, self.record.data["best"]
        arrays = self.course.restored(self.found)  # from here on the model is that of the checkpoint's phase
        model_state.restore(self.model, arrays)
        self.model.loss_scale_state = state["loss_scale"]
        self.model.skipped_steps = state["skipped_steps"]
        for name, member in members.items():
            if name in state["callbacks"]:
                member.set_state(state["callbacks"][name])
        if best.get("averaged_epochs") and best.get("epoch") == self.found.position.epoch:
            self.best.set_state({"best": best})  # the mean was saved already
        self.course.skip(self.found.position)
        return self.found.position

    def _checkpoints(self, members: dict[str, Any], start: Position) -> Checkpoints:
        return Checkpoints(
            self.folder,
            self.config.checkpoint,
            members=members,
            facts=lambda: {
                "loss_scale": self.model.loss_scale_state,
                "skipped_steps": self.model.skipped_steps,
                "elapsed_seconds": self._elapsed(),
                "num_replicas": self.place.num_replicas,
                "phase": self.course.facts(),
            },
            arrays=self.course.arrays,
            best_epoch=lambda: self.best.best.get("epoch"),
            start=start,
            peers=self.peers,
        )

    def _on_stuck(self, reason: str, where: str) -> None:
        self.console.log(f"{reason} Where each thread stood:\n{where}")
        remedy = f"Where each thread stood is in {LOG_NAME}; resume={self.folder} goes on."
        self.console.print(f"error: {reason} {remedy}")
        self.record.set_status("failed", exit_code=EXIT_MAY_RETRY, error=reason)

    def _versions(self) -> list[Guarded]:
        """The callback that hands the tracker every epoch's model, where it wants them."""
        if not self.tracker.wants_every_model:
            return []
        folder = self.record.folder / "wandb" / "models"

        def make() -> ModelVersions:
            return ModelVersions(folder, self._save_model, self.best, self._hand_model)

        return [Guarded(make, lambda error: self.notify(f"Models are no longer logged ({explain(error)})."))]

    def _hand_model(self, path: Path, aliases: list[str]) -> None:
        data = self.record.data
        facts = {key: data["data"].get(key) for key in ("name", "source", "fingerprint", "num_train", "num_validation")}
        last = data["epochs"][-1] if data["epochs"] else {}
        numbers = data["best"] if "best" in aliases else {key: last.get(key) for key in data["best"]}
        about = {"run_folder": self.record.folder.name, "model": data["model"], "git": data["git"]}
        self.tracker.model(path, aliases, {"data": facts, **numbers, **about})
