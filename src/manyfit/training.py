"""The training of a run that is ready for it: who is called when, and how it goes on or stops."""

import contextlib
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyfit import assembly, mistakes, model_state, probe, run_record, schedule
from manyfit.batch import BatchPlan
from manyfit.caches import Caches
from manyfit.callbacks.best_model import BestModel
from manyfit.callbacks.checkpoints import Checkpoints
from manyfit.callbacks.early_stop import EarlyStopping
from manyfit.callbacks.guarded import Guarded
from manyfit.callbacks.learning_rate import EpochLearningRate
from manyfit.callbacks.model_versions import ModelVersions
from manyfit.callbacks.phases import Phases
from manyfit.callbacks.progress import EpochProgress
from manyfit.callbacks.stop import StopOnSignal, Stopped
from manyfit.callbacks.throughput import EpochRows
from manyfit.callbacks.watchdog import Watchdog
from manyfit.checkpoint import START, Checkpoint
from manyfit.config import RunConfig
from manyfit.console import Console
from manyfit.data.examples import ImageData
from manyfit.errors import EXIT_MAY_RETRY
from manyfit.faults import explained
from manyfit.models.saved import load_network
from manyfit.processes import process_seconds
from manyfit.record import RunRecord
from manyfit.replicated import ReplicatedModel
from manyfit.strategy import Place
from manyfit.system.sampler import Sampler
from manyfit.tracker import Notify, Tracker, explain

MODEL_NAME = "model.keras"
LOG_NAME = "log.txt"


@dataclass
class Session:
    """A run that is ready to train.

    Args:
        found: The checkpoint that it goes on from; None for a new one.
    """

    config: RunConfig
    place: Place
    data: ImageData
    plan: BatchPlan
    model: ReplicatedModel
    cache: Caches
    record: RunRecord
    found: Checkpoint | None
    tracker: Tracker
    sampler: Sampler
    stop: StopOnSignal
    console: Console
    notify: Notify
    rates: list[float] = field(init=False)
    rows: EpochRows = field(init=False)
    best: BestModel = field(init=False)

    def __post_init__(self) -> None:
        self.rates = schedule.learning_rates(self.config, self.plan)
        self.rows = EpochRows(
            self.record,
            num_train=self.plan.examples_per_epoch,
            steps_per_epoch=self.plan.steps_per_epoch,
            global_batch_size=self.plan.examples_per_step,
            num_replicas=self.place.num_replicas,
            elapsed=self._elapsed,
        )
        self.best = BestModel(self.record, self.record.folder / MODEL_NAME, self._save_model, notify=self.notify)

    def train(self) -> None:
        """Train, save what is best, and measure what bounds a step.

        Raises:
            Stopped: it was asked to; what was learned so far is saved.
            UserError: it cannot go on.
        """
        self.console.header(self.record.data, folder=self.record.folder, facts=self._facts() | self.cache.facts())
        early = self._early_stopping()
        members = {"rows": self.rows, "best": self.best} | ({"early_stopping": early} if early else {})
        self._restore(members)
        checkpoints = self._checkpoints(members)
        progress = EpochProgress(self.console, self.rows, self.best)
        train, validation = self._feeds()
        self.record.update("timing", startup_seconds=process_seconds())
        self.sampler.enter("start")
        try:
            with (
                explained(self.plan, self.data, self.record.folder),
                Watchdog(self.config.watchdog.minutes, self._on_stuck) as watchdog,
                contextlib.closing(progress),
                contextlib.closing(checkpoints),
            ):
                watched = [checkpoints, watchdog, self.stop]
                told = [*([early] if early else []), progress, *self.tracker.callbacks(self.rows), *self._versions()]
                self.model.fit(
                    train,
                    epochs=self.config.epochs,
                    steps_per_epoch=self.plan.steps_per_epoch,
                    validation_data=validation,
                    validation_steps=self.plan.validation_steps,
                    start=checkpoints.position,
                    callbacks=[
                        EpochLearningRate(self.rates),
                        self.rows,
                        Phases(self.sampler, self.rows),
                        self.best,
                        *told,
                        *watched,
                    ],
                )
        except Stopped:
            position = checkpoints.save_now()
            self.tracker.preempted()
            self.notify(f"Saved at {position}; to go on: resume={self.record.folder}")
            raise
        self.record.update("timing", skipped_steps=self.model.skipped_steps)
        self._judge(train)
        self._find_mistakes(validation)
        self._sum_up()

    def _elapsed(self) -> float:
        return run_record.earlier_seconds(self.found) + process_seconds()

    def _save_model(self, path: Path) -> None:
        whole = self.cache.network.model  # where features are kept, only its head trains
        whole = whole.network if isinstance(whole, ReplicatedModel) else whole
        with self.model.averaged_weights():
            whole.save(path)

    def _early_stopping(self) -> EarlyStopping | None:
        if self.config.early_stopping.metric is None:
            return None
        early = EarlyStopping(self.config.early_stopping, self.notify)
        early.check([metric.name for metric in self.model.metrics])
        return early

    def _restore(self, members: dict[str, Any]) -> None:
        if self.found is None:
            return
        state = self.found.state
        model_state.restore(self.model, self.found.arrays)
        self.model.loss_scale_state = state["loss_scale"]
        self.model.skipped_steps = state["skipped_steps"]
        for name, member in members.items():
            if name in state["callbacks"]:
                member.set_state(state["callbacks"][name])

    def _checkpoints(self, members: dict[str, Any]) -> Checkpoints:
        return Checkpoints(
            self.record.folder,
            self.config.checkpoint,
            members=members,
            facts=lambda: {
                "loss_scale": self.model.loss_scale_state,
                "skipped_steps": self.model.skipped_steps,
                "elapsed_seconds": self._elapsed(),
                "num_replicas": self.place.num_replicas,
            },
            best_epoch=lambda: self.best.best.get("epoch"),
            start=START if self.found is None else self.found.position,
        )

    def _feeds(self) -> tuple[Any, Any]:
        if self.cache.work:
            self.sampler.enter("features")
        kept = self.cache.prepare(self.data, self.place, self.record, self.console, self.notify, self.stop.check)
        start = START if self.found is None else self.found.position
        feeds = assembly.feeds(self.config, self.plan, kept.data, kept.input_shape, start)
        train, validation = (feed.distribute(self.place.strategy) for feed in feeds)
        return train, validation

    def _on_stuck(self, reason: str, where: str) -> None:
        self.console.log(f"{reason} Where each thread stood:\n{where}")
        remedy = f"Where each thread stood is in {LOG_NAME}; resume={self.record.folder} goes on."
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

    def _find_mistakes(self, validation: Any) -> None:
        """Look at the wrong predictions of the best model, once, where it was asked for."""
        path, rows = self.record.folder / MODEL_NAME, self.record.data["epochs"]
        seconds = rows[-1].get("validation_seconds") if rows else None
        count = mistakes.how_many(
            self.config.tracker.log_mistakes, validation_seconds=seconds, elapsed_seconds=self._elapsed()
        )
        if not count or not self.best.best or not path.exists():
            return
        whole = self.cache.network.model
        whole = whole.network if isinstance(whole, ReplicatedModel) else whole
        saved = load_network(path, self.config.model, len(self.data.class_names))
        with mistakes.weights_of(whole, saved):
            scores = self.model.predict(validation, steps=self.plan.validation_steps)
        split, names = self.data.validation, self.data.class_names
        found = mistakes.find(scores, split, names, count, self.record.folder)
        found = dataclasses.replace(found, epoch=self.best.best.get("epoch"))
        found.write()
        self.record.update("mistakes", **found.facts())
        self.tracker.mistakes(found)

    def _judge(self, train: Any) -> None:
        probe.judge_run(
            self.model,
            train,
            self.rows,
            self.record,
            asked=self.config.probe,
            settings=dataclasses.asdict(self.config),
            first_step_seconds=self.record.data["timing"].get("first_step_seconds"),
            on_gpu=self.place.on_gpu,
            notify=self.notify,
        )

    def _sum_up(self) -> None:
        data = self.record.data
        if self.best.best and not self.tracker.wants_every_model:
            self._hand_model(self.record.folder / MODEL_NAME, ["best", "latest"])
        verdict = {key: data.get("verdict", {}).get(key) for key in ("bound", "share", "sentence")}
        self.tracker.summary(
            {f"best/{key}": value for key, value in data["best"].items()}
            | {f"throughput/{key}": value for key, value in data["throughput"].items()}
            | {f"verdict/{key}": value for key, value in verdict.items() if value is not None}
        )

    def _facts(self) -> dict[str, str]:
        first, highest = self.rates[0], max(self.rates)
        moves = len(set(self.rates)) > 1
        rate = f"{first:g}, {self.config.schedule.name}, at most {highest:g}" if moves else f"{first:g}"
        optimizer = f"{self.config.optimizer.name}, learning rate {rate}"
        return {"optimizer": optimizer, "precision": self.config.precision.name}
