"""The learning-rate range test: some steps of a run's own training, the rate growing from each to the next."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras

from manyfit import assembly, caches, models, run_record, strategy
from manyfit import data as data_sets
from manyfit.bar import Bar
from manyfit.batch import BatchPlan
from manyfit.config import RunConfig, to_yaml
from manyfit.console import Console
from manyfit.data.examples import ImageData
from manyfit.epoch_loop import NonFiniteError
from manyfit.errors import ConfigError
from manyfit.faults import explained
from manyfit.files import write_atomically
from manyfit.notices import check_devices, notices_of
from manyfit.record import RunRecord, check_unused, make_run_folder
from manyfit.replicated import ReplicatedModel
from manyfit.report.learning_rate_range import Losses, RangeSettings, check_asked
from manyfit.report.learning_rate_suggestion import RangeTest, factors
from manyfit.resume import CONFIG_NAME

LOG_NAME = "log.txt"


@dataclass(frozen=True)
class Found:
    """What a range test leaves.

    Args:
        folder: Made for it; it holds `config.yaml` and `log.txt`.
        facts: What a record says of a run before it trains, and `notices`.
    """

    folder: Path
    test: RangeTest
    facts: Mapping[str, Any]


class _Facts(RunRecord):
    """What the parts of a run note: it stays in memory, since no run is to be found in this folder."""

    def write(self) -> None:
        """Nothing is written: the caller has the facts."""


class _GrowingRate(keras.callbacks.Callback):
    """Gives every step its rate, and ends the training where the test is over."""

    def __init__(self, settings: RangeSettings, bar: Bar):
        super().__init__()
        self.found = Losses(settings)
        self._rates = settings.rates
        self._bar = bar

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Set the rate of this step, and count its examples alone."""
        self.model.optimizer.learning_rate = self._rates[batch]
        self.model.reset_metrics()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Take the loss of this step."""
        if self.found.add((logs or {})["loss"]):
            self.model.stop_training = True
        self._bar(batch + 1, len(self._rates))


def find_learning_rate(
    config: RunConfig, settings: RangeSettings, *, outputs: Path, folder: Path | None = None, console: Console
) -> Found:
    """Train `settings.steps` steps of what `config` asks for, from its own start, and say what the losses suggest.

    Args:
        outputs: Where folders go by default.
        folder: The folder of the test, exactly; None to name it after what is tested.

    Raises:
        UserError: what was asked cannot be had, before a folder exists, or memory runs out.
    """
    check_asked(config)
    if folder is not None:
        check_unused(folder)
    place = strategy.make(config.strategy, jit_compile=config.jit_compile)
    check_devices(config, place)
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.precision.name)
    data = data_sets.load(config.data)
    config = assembly.with_batch_size(config, data, place, console)[0]
    plan = assembly.plan_batches(config, data, place)
    _check_room(plan)
    # A call a step: the rate is another in each. Nothing ends the test but its losses.
    one_by_one = replace(config, steps_per_execution=1, on_non_finite="stop")
    with place.strategy.scope():
        network = models.build(config.model, data)
        passes = replace(config, epochs=math.ceil(settings.steps / plan.steps_per_epoch))  # pictures pay by them
        cache = caches.decide(passes, network, data, augments=config.augment.active)
        model = assembly.compiled(one_by_one, plan, cache.trained, data)
    facts = run_record.facts_of(config, place, data, plan, network)
    name = f"find_lr_{config.data.name}_{config.model.name}_{config.strategy.name}-x{place.num_replicas}"
    folder = make_run_folder(folder, outputs, name)
    write_atomically(folder / CONFIG_NAME, to_yaml(config))
    console.tee(folder / LOG_NAME)
    record = _Facts(folder, {**facts, "notices": []})

    def notify(text: str) -> None:
        record.notice(text)
        console.notice(text)

    told = (*place.notices, *data.notices, *network.notices, *notices_of(config, place, data, plan, network))
    for notice in (*told, *_passes(settings, plan)):
        notify(notice)
    console.header(record.data, folder=folder, facts=_rows(config, settings) | cache.facts())
    kept = cache.prepare(data, place, record, console, notify, lambda: None)
    train, _ = assembly.feeds(config, plan, kept.data, kept.input_shape)
    found = _train(model, train.distribute(place.strategy), settings, plan, data, console)
    return Found(folder, RangeTest.of(found, *factors(config, plan)), record.data)


def _train(
    model: ReplicatedModel, train: Any, settings: RangeSettings, plan: BatchPlan, data: ImageData, console: Console
) -> Losses:
    with Bar(console, "range test", "steps") as bar, explained(plan, data):
        growing = _GrowingRate(settings, bar)
        try:
            # One epoch as long as the test: the feed goes on with the next order of the examples by itself.
            model.fit(train, steps_per_epoch=settings.steps, callbacks=[growing])
        except NonFiniteError:
            growing.found.add(float("nan"))
    return growing.found


def _check_room(plan: BatchPlan) -> None:
    """Refuse steps that all hold the same examples: the curve would show how fast these are learned by heart."""
    if plan.steps_per_epoch > 1:
        return
    raise ConfigError(
        f"The training split has {plan.num_train} examples, which one step of {plan.examples_per_step} takes at once: "
        "every step of the test would see the same ones.",
        f"Give batch.global_batch_size={max(1, plan.global_batch_size // 8 // plan.num_replicas) * plan.num_replicas} "
        "or another smaller size, or more data.",
    )


def _passes(settings: RangeSettings, plan: BatchPlan) -> list[str]:
    passes = settings.steps / plan.steps_per_epoch
    if passes <= 1:
        return []
    return [
        f"{settings.steps} steps are {passes:.1f} passes over the {plan.num_train} training examples: towards the end "
        "the loss also falls because they come again."
    ]


def _rows(config: RunConfig, settings: RangeSettings) -> dict[str, str]:
    """Rows of the header."""
    return {
        "optimizer": config.optimizer.name,
        "precision": config.precision.name,
        "rates tried": f"{settings.lowest:g} to {settings.highest:g} in {settings.steps} steps",
    }
