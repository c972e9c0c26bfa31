"""The course of a training through its phases: which one runs, and the callbacks that begin anew with each."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from manyfit import phases
from manyfit.callbacks.early_stop import EarlyStopping
from manyfit.callbacks.learning_rate import EpochLearningRate
from manyfit.callbacks.phase_marks import PhaseMarks
from manyfit.callbacks.throughput import EpochRows
from manyfit.checkpoint import Checkpoint, Position
from manyfit.config import RunConfig
from manyfit.console import Console, plural
from manyfit.errors import UserError
from manyfit.phases import Standing
from manyfit.record import RunRecord
from manyfit.stages import Stage, Stages
from manyfit.weight_average import WeightAverage


class Course:
    """A training from phase to phase; one that has none is a single phase.

    Args:
        rows: Mark the phase in each row.
        notify: Told why a phase ends early.

    Raises:
        ConfigError: `early_stopping.metric` is no metric of the model.
    """

    def __init__(
        self,
        stages: Stages,
        config: RunConfig,
        record: RunRecord,
        rows: EpochRows,
        console: Console,
        notify: Callable[[str], None],
    ):
        self.stages = stages
        self.at = Standing()
        self.rate = EpochLearningRate(stages.current.rates, stages.current.phase.config.schedule)
        self.average = None if config.swa.epochs is None else WeightAverage(config.swa.epochs)
        self._config, self._rows, self._console = config, rows, console
        self._marks = PhaseMarks(record, config.best_metric) if stages.are_asked_for else None
        self._early = None
        if config.early_stopping.metric is not None:
            self._early = EarlyStopping(config.early_stopping, notify)
            self._early.check([metric.name for metric in stages.model.metrics])
        self.begin(self.at)

    @property
    def stage(self) -> Stage:
        """The phase that runs."""
        return self.stages.current

    @property
    def has_next(self) -> bool:
        """Whether a phase follows the one that runs."""
        return self.at.index + 1 < len(self.stages)

    @property
    def before_rows(self) -> list[keras.callbacks.Callback]:
        """The callbacks that stand before the rows."""
        return [self.rate]

    @property
    def after_rows(self) -> list[keras.callbacks.Callback]:
        """The callbacks that stand after the rows and before the checkpoints."""
        return [callback for callback in (self._marks, self.average, self._early) if callback is not None]

    @property
    def members(self) -> dict[str, Any]:
        """The callbacks whose state belongs to a checkpoint, by name."""
        found = {"learning_rate": self.rate, "early_stopping": self._early, "average": self.average}
        return {name: callback for name, callback in found.items() if callback is not None}

    def begin(self, at: Standing) -> None:
        """Let the phase that `at` names be the one that runs, from its start."""
        self.at = at
        model, phase = self.stages.enter(at.index), self.stage.phase
        model.stop_training = False
        self.rate.begin(self.stage.rates, phase.config.schedule, first_epoch=at.first_epoch)
        if self._early is not None:
            self._early.begin(at.first_epoch, phase.number if self.stages.are_asked_for else None)
        if self.average is not None:
            self.average.begin(at.first_epoch + phase.epochs if not self.has_next else None)
        if self.stages.are_asked_for:
            self._rows.begin_phase(phase.number)

    def go_on(self, epoch: int) -> Position:
        """Begin the next phase at the start of `epoch`, counted from 0."""
        self.begin(Standing(self.at.index + 1, epoch))
        return Position(epoch)

    def until(self, start: Position) -> int:
        """The epoch at whose start the phase that runs ends, counted from 0, if nothing stops it early."""
        return start.epoch if self.at.ended else self.at.first_epoch + self.stage.phase.epochs

    def announce(self) -> None:
        """Mark the phase that runs in the record and on the screen."""
        if self._marks is None:
            return
        number, first = self.stage.phase.number, self.at.first_epoch + 1
        self._marks.begin(self.stage.entry(first))
        said = f"Phase {number} of {len(self.stages)}, from epoch {first}: {self.stage.in_words}."
        self._console.print(said, whole_lines=True)

    def lacks_features_of(self, epoch: int | None) -> bool:
        """Whether the phase that runs has cached features, and the backbone may have been another in `epoch`.

        Args:
            epoch: Counted from 1.
        """
        cached = self.stage.cache.features.use is not None
        return cached and self.stages.has_learned and (epoch or 0) <= self.at.first_epoch

    # --- in a checkpoint ----------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """Where it stands."""
        ended = self.at.ended or bool(self.stages.model.stop_training)
        return dataclasses.replace(self.at, ended=ended).as_dict()

    def arrays(self) -> dict[str, np.ndarray]:
        """What belongs to the state of the training and is no variable of the model that trains."""
        return self.stages.apart() | (self.average.arrays() if self.average is not None else {})

    def restored(self, found: Checkpoint) -> dict[str, np.ndarray]:
        """Begin the phase that a checkpoint is in; its arrays for the model of that phase.

        Raises:
            UserError: there is no such phase.
        """
        at = Standing.of(found.state)
        if at.index >= len(self.stages):
            raise UserError(
                f"The checkpoint is in phase {at.index + 1}, but the run now has {plural(len(self.stages), 'phase')}.",
                "Give the phases that it began with, or more.",
            )
        self.begin(at)
        arrays = self.stages.restored(found.arrays)
        return arrays if self.average is None else self.average.restored(arrays)

    def skip(self, position: Position) -> None:
        """Begin the next phase if nothing of the one that runs is left at `position`."""
        if self.has_next and self.at.is_over(self.stage.phase, position.epoch):
            self.go_on(position.epoch)

    # --- in words -----------------------------------------------------------------------------------------------------

    def header(self) -> dict[str, str]:
        """Rows of the header: how it learns, and what is kept instead of computed in every epoch."""
        name, precision = self._config.optimizer.name, self._config.precision.name
        if self.stages.are_asked_for:
            rows = {f"phase {s.phase.number}": f"{plural(s.phase.epochs, 'epoch')}: {s.in_words}" for s in self.stages}
            return {"optimizer": name, "precision": precision, **rows}
        rates = self.stage.rates
        rate = f"{rates[0]:g}"
        if len(set(rates)) > 1:
            rate += f", {self._config.schedule.name}, at most {max(rates):g}"
        return {"optimizer": f"{name}, learning rate {rate}", "precision": precision} | self.stage.cache.facts()

    def summary(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """What the tracker is told at the end: `phase/1/epochs_trained`, `phase/1/best_val_accuracy` ..."""
        told: dict[str, Any] = {}
        if self.stages.are_asked_for:
            for stage in self.stages:
                number = stage.phase.number
                outcome = phases.outcome(rows, number, self._config.best_metric)
                best = {f"best_{name}": value for name, value in outcome.pop("best").items()}
                flat = outcome | best
                told |= {f"phase/{number}/{name}": value for name, value in flat.items() if value is not None}
        return told
