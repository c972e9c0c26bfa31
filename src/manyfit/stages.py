"""The phases of a run made ready: what trains in each, on what, and the compiled model of the one that runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from manyfit import assembly, caches, models, phases, schedule
from manyfit.batch import BatchPlan
from manyfit.caches import Caches
from manyfit.config import AUTO, RunConfig
from manyfit.coupled_layers import trains_batch_norm
from manyfit.data.examples import ImageData
from manyfit.models import Network, feature_cache, trainable
from manyfit.phases import Phase
from manyfit.replicated import ReplicatedModel
from manyfit.schema.augment import check_rows

_APART = "apart/"


@dataclass(frozen=True, eq=False)
class Stage:
    """A phase, what it keeps instead of computing it again, and how much of the network trains in it.

    Args:
        counts: As `trainable.counts`.
        rates: The learning rate of each of its epochs.
        trains_batch_norm: Whether it moves the statistics of batch norm.
    """

    phase: Phase
    cache: Caches
    counts: dict[str, int]
    rates: list[float]
    trains_batch_norm: bool

    @property
    def in_words(self) -> str:
        """What trains, where, and how, in words."""
        config = self.phase.config
        rate = f"{self.rates[0]:g}" if len(set(self.rates)) == 1 else f"{self.rates[0]:g} to {self.rates[-1]:g}"
        where = "on features" if self.cache.features.use else f"augment={config.augment.name}"
        parameters = f"{self.counts['num_trainable_parameters']:,} parameters"
        what = f"{phases.in_words(self.phase.trainable, has_head=self.cache.network.head is not None)} ({parameters})"
        return f"{what}, learning rate {rate} ({config.schedule.name}), {where}"

    def entry(self, first_epoch: int) -> dict[str, Any]:
        """What the record says of it at its start.

        Args:
            first_epoch: Counted from 1.
        """
        config = self.phase.config
        return {
            "phase": self.phase.number,
            "first_epoch": first_epoch,
            "epochs": self.phase.epochs,
            "trainable": self.phase.trainable,
            "has_head": self.cache.network.head is not None,
            **self.counts,
            "learning_rate": self.rates[0],
            "schedule": config.schedule.name,
            "augment": config.augment.name,
            "features": self.cache.features.use is not None,
        }


class Stages(Sequence[Stage]):
    """The phases of a run, all decided before any long work; one at a time has a compiled model.

    One strategy serves them all: what TensorFlow's collectives cannot do is serve a second strategy object of other
    sizes in one process; models of one strategy number theirs apart.

    Raises:
        ConfigError: layers that do not exist, caches that cannot be had, examples that cannot be mixed.
    """

    def __init__(
        self, config: RunConfig, plan: BatchPlan, network: Network, data: ImageData, strategy: tf.distribute.Strategy
    ):
        self.network = network
        self._index = 0
        self._apart: dict[str, np.ndarray] | None = None
        self._config, self._plan, self._data, self._strategy = config, plan, data, strategy
        with strategy.scope():
            self._stages = self._decide()
        self.model = self._compiled(0)

    def __len__(self) -> int:
        return len(self._stages)

    def __getitem__(self, index: Any) -> Any:
        return self._stages[index]

    @property
    def current(self) -> Stage:
        """The one whose model is compiled."""
        return self._stages[self._index]

    @property
    def are_asked_for(self) -> bool:
        """Whether the run has phases at all."""
        return bool(self._config.phases)

    def facts(self) -> dict[str, Any]:
        """What the record's section `model` says of all phases: the most that trains, and whether batch norm does."""
        if not self.are_asked_for:
            return {}
        return {
            "num_trainable_parameters": max(stage.counts["num_trainable_parameters"] for stage in self),
            "trains_batch_norm": any(stage.trains_batch_norm for stage in self),
        }

    @property
    def has_learned(self) -> bool:
        """Whether one before the current one has changed more than the head."""
        return any(stage.cache.features.use is None for stage in self._stages[: self._index])

    def enter(self, index: int) -> ReplicatedModel:
        """The compiled model of a phase: the weights of the network as they are, and an optimizer that begins anew."""
        if index != self._index:
            before, self.model = self.model, self._compiled(index)
            self._index, self._apart = index, None
            self.model.skipped_steps, self.model.peers = before.skipped_steps, before.peers
        return self.model

    def apart(self) -> dict[str, np.ndarray]:
        """The variables that the current model lacks and that the network did not begin with, for a checkpoint."""
        if self.current.cache.features.use is None or not self.has_learned:
            return {}
        if self._apart is None:
            variables = self.network.model.variables
            self._apart = {f"{_APART}{index}": variable.numpy() for index, variable in enumerate(variables)}
        return self._apart

    def restored(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Give the network the variables that a checkpoint kept apart; the others."""
        variables = self.network.model.variables
        apart = {name: array for name, array in arrays.items() if name.startswith(_APART)}
        for name, array in apart.items():
            variables[int(name.removeprefix(_APART))].assign(array)
        return {name: array for name, array in arrays.items() if name not in apart}

    def _compiled(self, index: int) -> ReplicatedModel:
        stage = self._stages[index]
        with self._strategy.scope():
            self._thaw(stage.phase)
            config = stage.phase.config
            return assembly.compiled(config, self._plan, stage.cache.trained, self._data, self.network, phase=index)

    def _thaw(self, phase: Phase) -> None:
        if not self.are_asked_for:
            return  # the builder did
        key = f"phases[{phase.index}].trainable"
        trainable.of_network(self.network, phase.trainable, batch_norm=phase.batch_norm, key=key)
        models.penalize(self.network.model, phase.config.model.l2)

    def _decide(self) -> list[Stage]:
        planned = phases.plan(self._config)
        asked = self._config.model.feature_cache
        possible, counted = [], []
        for phase in planned:
            self._thaw(phase)
            check_rows(phase.config.augment, self._plan.per_replica_batch_size)
            found = feature_cache.decide(AUTO, self.network, augments=phase.config.augment.active)
            possible.append(asked != "off" and found.use is not None)
            counted.append(trainable.counts(self.network))
        if not any(possible):  # say so where it was asked for
            feature_cache.decide(asked, self.network, augments=planned[-1].config.augment.active)
        on_pictures = sum(phase.epochs for phase, features in zip(planned, possible, strict=True) if not features)
        stages = []
        for phase, features, counts in zip(planned, possible, counted, strict=True):
            self._thaw(phase)
            config = phase.config
            if self.are_asked_for and not features and asked != "off":
                config = replace(config, model=replace(config.model, feature_cache=AUTO))  # which says why not
            cache = caches.decide(
                config, self.network, self._data, augments=config.augment.active, epochs=on_pictures or phase.epochs
            )
            rates = schedule.learning_rates(config, self._plan)
            stages.append(Stage(phase, cache, counts, rates, trains_batch_norm(self.network.model)))
        if isinstance(self.network.model, ReplicatedModel):  # its own step may refuse what a later phase asks for
            for stage in stages[1:]:
                assembly.compiled(stage.phase.config, self._plan, stage.cache.trained, self._data, self.network)
        return stages
