"""What follows the last step of a training: the mean of the weights, the verdict, the mistakes, the last words."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyfit import mistakes, probe
from manyfit.batch import BatchPlan
from manyfit.callbacks.best_model import BestModel
from manyfit.callbacks.stop import StopOnSignal
from manyfit.callbacks.throughput import EpochRows
from manyfit.checkpoint import Position
from manyfit.config import RunConfig
from manyfit.console import Console
from manyfit.course import Course
from manyfit.data.examples import ImageData
from manyfit.feeding import Feeding
from manyfit.models.saved import load_network
from manyfit.peers import Peers
from manyfit.record import RunRecord
from manyfit.replicated import ReplicatedModel
from manyfit.strategy import Place
from manyfit.tracker import Notify, Tracker
from manyfit.weight_average import recompute_statistics


@dataclass
class Closing:
    """The end of a training.

    Args:
        path: Of the best model.
        elapsed: Seconds that the run has taken.
        hand_model: Hands the tracker a model under some names.
    """

    config: RunConfig
    place: Place
    data: ImageData
    plan: BatchPlan
    record: RunRecord
    path: Path
    course: Course
    feeding: Feeding
    rows: EpochRows
    best: BestModel
    stop: StopOnSignal
    tracker: Tracker
    console: Console
    notify: Notify
    peers: Peers
    elapsed: Callable[[], float]
    hand_model: Callable[[Path, list[str]], None]

    def close(self, train: Any, validation: Any, epochs: int) -> None:
        """All of it, in its order.

        Args:
            train, validation: What the last phase was fed with.
            epochs: That were trained.
        """
        self._average(validation, epochs)
        self._judge(train)
        self._find_mistakes(validation)
        self._sum_up()

    @property
    def _model(self) -> ReplicatedModel:
        return self.course.stages.model

    def _find_mistakes(self, validation: Any) -> None:
        """Look at the wrong predictions of the best model, once, where it was asked for."""
        path, rows = self.path, self.record.data["epochs"]
        seconds = rows[-1].get("validation_seconds") if rows else None
        count = mistakes.how_many(
            self.config.tracker.log_mistakes, validation_seconds=seconds, elapsed_seconds=self.elapsed()
        )
        wanted = count if self.best.best and path.exists() else 0
        count = self.peers.broadcast("mistakes", wanted)
        if not count:
            return
        if self.course.lacks_features_of(self.best.best.get("epoch")):
            self.notify(
                "The wrong predictions were not looked at: the best epoch is of a phase with another backbone than the "
                "one that the last phase has features of."
            )
            return
        whole = self.course.stage.cache.network.model
        whole = whole.network if isinstance(whole, ReplicatedModel) else whole
        saved = load_network(path, self.config.model, len(self.data.class_names))
        with mistakes.weights_of(whole, saved):
            scores = self._model.predict(validation, steps=self.plan.validation_steps)
        if not self.peers.is_chief:
            return
        split, names = self.data.validation, self.data.class_names
        found = mistakes.find(scores, split, names, count, self.record.folder)
        found = dataclasses.replace(found, epoch=self.best.best.get("epoch"))
        found.write()
        self.record.update("mistakes", **found.facts())
        self.tracker.mistakes(found)

    def _average(self, validation: Any, epochs: int) -> None:
        """Validate the mean of the last epochs' weights, where it was asked for, and save it if it is the best.

        Args:
            epochs: That were trained.
        """
        average = self.course.average
        if average is None:
            return
        if not average.count:
            self.notify("The training stopped before the epochs that swa.epochs would average: no mean was made.")
            return
        average.put_in()
        # From the start of an epoch, also after a resume.
        train, _ = self.feeding.feeds(self.course.stage.cache, Position(epochs), self.stop.check)
        recompute_statistics(self._model, train, steps=self.plan.steps_per_epoch)
        results = self._model.evaluate(validation, steps=self.plan.validation_steps)
        numbers = {f"val_{name}": value for name, value in results.items()}
        before = self.best.best.get("epoch")
        is_best = self.best.consider(epochs - 1, numbers, averaged_epochs=average.count)
        self.record.update("swa", epochs=average.count, is_best=is_best, **numbers)
        verdict = "the best, and saved" if is_best else f"no better than epoch {before}, whose model stays"
        shown = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
        self.console.print(f"Mean weights of {average.count} epochs: {shown}; {verdict}.", whole_lines=True)

    def _judge(self, train: Any) -> None:
        probe.judge_run(
            self._model,
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
            self.hand_model(self.path, ["best", "latest"])
        verdict = {key: data.get("verdict", {}).get(key) for key in ("bound", "share", "sentence")}
        self.tracker.summary(
            {f"best/{key}": value for key, value in data["best"].items()}
            | {f"throughput/{key}": value for key, value in data["throughput"].items()}
            | {f"verdict/{key}": value for key, value in verdict.items() if value is not None}
            | {f"swa/{key}": value for key, value in data.get("swa", {}).items()}
            | self.course.summary(data["epochs"])
        )
