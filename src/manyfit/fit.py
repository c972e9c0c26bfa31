"""One run, from the checked configuration to its record: the order of the steps, and nothing else."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import keras

from manyfit import assembly, caches, models, run_record, strategy
from manyfit import data as data_sets
from manyfit.callbacks.stop import StopOnSignal
from manyfit.config import BatchConfig, RunConfig
from manyfit.console import Console
from manyfit.notices import check_devices, notices_of
from manyfit.record import RunRecord, check_unused, make_run_folder
from manyfit.resume import one_process
from manyfit.system import gpus as system_gpus
from manyfit.system.gpus import Gpus
from manyfit.system.sampler import Sampler
from manyfit.tracker import Notify, Tracker
from manyfit.tracking import tracked
from manyfit.training import LOG_NAME, Session


def run(config: RunConfig, *, outputs: Path, folder: Path | None = None, console: Console | None = None) -> RunRecord:
    """Train what `config` asks for and return its record, which says how the run ended.

    Args:
        outputs: Where run folders go by default.
        folder: The run folder, exactly; None to name it after what runs. A run that goes on has its own
            (`manyfit.resume.resolve` makes such a configuration).
        console: Where to show it.

    Raises:
        UserError: what was asked cannot be had, before a run folder exists; later, the record says so as well.
    """
    console = console or Console()
    goes_on = config.resume.folder is not None
    if goes_on:
        folder = Path(str(config.resume.folder))
    elif folder is not None:
        check_unused(folder)
    asked = config
    place = strategy.make(config.strategy, jit_compile=config.jit_compile)
    check_devices(config, place)
    gpus = system_gpus.choose(config.tracker, place.gpu_numbers)
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.precision.name)
    data = data_sets.load(config.data)
    if goes_on:
        config, search = with_batches_of(folder, config), None
    else:
        config, search = assembly.with_batch_size(config, data, place, console)
        asked = config
    plan = assembly.plan_batches(config, data, place)
    with place.strategy.scope():
        network = models.build(config.model, data)
        cache = caches.decide(config, network, data, augments=config.augment.active)
        model = assembly.compiled(config, plan, cache.trained, data)
    name = f"{config.data.name}_{config.model.name}_{config.strategy.name}-x{place.num_replicas}"
    facts = run_record.facts_of(config, place, data, plan, network)
    if not goes_on:
        folder = make_run_folder(folder, outputs, name)
    assert folder is not None
    with one_process(folder):
        if goes_on:
            record, found, told = run_record.go_on(folder, asked, facts, plan)
        else:
            record, found, told = run_record.begin(folder, asked, facts, data), None, []
        if search is not None:
            record.update("batch", search=search.as_dict())
        console.tee(folder / LOG_NAME)

        def notify(text: str) -> None:
            record.notice(text)
            console.notice(text)

        for notice in (
            *told,
            *place.notices,
            *data.notices,
            *network.notices,
            *notices_of(config, place, data, plan, network),
        ):
            notify(notice)
        with (
            run_record.closed(record, console, notify, run_record.earlier_seconds(found)),
            StopOnSignal(config.max_minutes) as stop,
            tracked(config, record, console, notify, gpus) as tracker,
            _sampled(config, record, tracker, notify, gpus, run_record.earlier_seconds(found)) as sampler,
        ):
            session = Session(
                config, place, data, plan, model, cache, record, found, tracker, sampler, stop, console, notify
            )
            session.train()
        console.summary(record.data, folder=folder, sync_command=record.data["tracker"].get("sync_command"))
    return record


def with_batches_of(folder: Path | None, config: RunConfig) -> RunConfig:
    """`config` with the global batch size of the run in `folder`, whatever the number of replicas is now.

    Raises:
        UserError: there is no such run.
    """
    assert folder is not None
    size = RunRecord.load(folder).data["batch"].get("global_batch_size")
    same = {field.name: getattr(config.batch, field.name) for field in dataclasses.fields(BatchConfig)}
    return dataclasses.replace(
        config,
        batch=BatchConfig(**{**same, "name": "default", "per_replica_batch_size": None, "global_batch_size": size}),
    )


@contextlib.contextmanager
def _sampled(
    config: RunConfig, record: RunRecord, tracker: Tracker, notify: Notify, gpus: Gpus, earlier_seconds: float
) -> Iterator[Sampler]:
    interval = config.tracker.system_metrics_seconds
    sampler = Sampler(record.folder, interval, gpus, notify=notify, earlier_seconds=earlier_seconds)
    try:
        with sampler:
            yield sampler
    finally:
        section = sampler.section()
        record.update("system", **section)
        energy = {key: section.get(key) for key in ("energy_watt_hours", "joules_per_image")}
        numbers = sampler.means() | {key: value for key, value in energy.items() if value is not None}
        tracker.summary({f"system/{name}": value for name, value in numbers.items()})
