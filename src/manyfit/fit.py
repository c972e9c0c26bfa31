"""One run, from the checked configuration to its record: the order of the steps, and nothing else."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import keras

from manyfit import assembly, models, ranks, run_record, strategy
from manyfit import data as data_sets
from manyfit.callbacks.profiler import steps_to_trace
from manyfit.callbacks.stop import StopOnSignal
from manyfit.config import BatchConfig, RunConfig
from manyfit.console import Console
from manyfit.notices import check_devices, notices_of
from manyfit.peers import Peers, alone
from manyfit.record import RunRecord, check_unused, make_run_folder
from manyfit.resume import one_process
from manyfit.schema import metrics
from manyfit.stages import Stages
from manyfit.system import gpus as system_gpus
from manyfit.system.gpus import Gpus
from manyfit.system.sampler import Sampler
from manyfit.tracker import Notify, NullTracker, Tracker
from manyfit.tracking import tracked
from manyfit.training import LOG_NAME, Session
from manyfit.workers import OnLost


def run(
    config: RunConfig,
    *,
    outputs: Path,
    folder: Path | None = None,
    console: Console | None = None,
    peers: Peers | None = None,
) -> RunRecord:
    """Train what `config` asks for and return its record, which says how the run ended.

    Args:
        outputs: Where run folders go by default.
        folder: The run folder, exactly; None to name it after what runs. A run that goes on has its own
            (`manyfit.resume.resolve` makes such a configuration).
        console: Where to show it.
        peers: The other workers, of which each calls this with the same configuration; None for a run of one process.

    Raises:
        UserError: what was asked cannot be had, before a run folder exists; later, the record says so as well.
    """
    console, peers = console or Console(), peers or alone()
    goes_on = config.resume.folder is not None
    if goes_on:
        folder = Path(str(config.resume.folder))
    elif folder is not None and peers.is_chief:
        check_unused(folder)
    asked = config
    lost = OnLost(console, peers)
    peers.watch(lost)
    place = strategy.make(config.strategy, jit_compile=config.jit_compile, cluster=peers.cluster)
    check_devices(config, place)
    gpus = system_gpus.choose(config.tracker, place.gpu_numbers)
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.precision.name)
    with ranks.chief_first(peers, "data"):
        data = data_sets.load(config.data)
    metrics.check_classes(config.metrics, len(data.class_names))
    if goes_on:
        config, search = with_batches_of(folder, config), None
    else:
        config, search = assembly.with_batch_size(config, data, place, console, peers)
        asked = config
    plan = assembly.plan_batches(config, data, place)
    steps_to_trace(config.profile, plan.steps_per_epoch, config.epochs)
    peers.agree("data and batches", ranks.common_facts(data.fingerprint, plan))
    with place.strategy.scope():
        network = models.build(config.model, data)
    stages = Stages(config, plan, network, data, place.strategy)
    stages.model.peers = peers
    name = f"{config.data.name}_{config.model.name}_{config.strategy.name}-x{place.num_replicas}"
    facts = run_record.facts_of(config, place, data, plan, network)
    facts["model"] |= stages.facts()
    where = folder
    folder = ranks.run_folder(peers, lambda: where if goes_on and where else make_run_folder(where, outputs, name))
    with one_process(folder) if peers.is_chief else contextlib.nullcontext():

        def open_record() -> ranks.Opened:
            if goes_on:
                return run_record.go_on(folder, asked, facts, plan)
            return run_record.begin(folder, asked, facts, data), None, []

        record, found, told = ranks.open_record(peers, folder, open_record)
        lost.record = record
        if search is not None:
            record.update("batch", search=search.as_dict())
        console.tee(record.folder / LOG_NAME)

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
            StopOnSignal(config.max_minutes, peers=peers) as stop,
            _told(peers, config, record, console, notify, gpus) as tracker,
            _sampled(config, record, tracker, notify, gpus, run_record.earlier_seconds(found), peers) as sampler,
        ):
            session = Session(
                config=config,
                place=place,
                data=data,
                plan=plan,
                stages=stages,
                record=record,
                found=found,
                tracker=tracker,
                sampler=sampler,
                stop=stop,
                console=console,
                notify=notify,
                peers=peers,
                folder=folder,
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


def _told(
    peers: Peers, config: RunConfig, record: RunRecord, console: Console, notify: Notify, gpus: Gpus
) -> contextlib.AbstractContextManager[Tracker]:
    """The tracker, which the chief alone talks to."""
    return tracked(config, record, console, notify, gpus) if peers.is_chief else NullTracker()


@contextlib.contextmanager
def _sampled(
    config: RunConfig,
    record: RunRecord,
    tracker: Tracker,
    notify: Notify,
    gpus: Gpus,
    earlier_seconds: float,
    peers: Peers,
) -> Iterator[Sampler]:
    interval = config.tracker.system_metrics_seconds
    sampler = Sampler(record.folder, interval, gpus, notify=notify, earlier_seconds=earlier_seconds)
    try:
        with sampler:
            yield sampler
        others = list(enumerate(peers.gather("system", [sampler.section(), sampler.means()])))[1:]
        if others and interval is not None:
            record.update("system", workers=[{"rank": rank, **section} for rank, (section, _) in others])
        for rank, (_, means) in others:
            tracker.summary({f"system/rank-{rank}/{name}": value for name, value in means.items()})
    finally:
        section = sampler.section()
        record.update("system", **section)
        energy = {key: section.get(key) for key in ("energy_watt_hours", "joules_per_image")}
        numbers = sampler.means() | {key: value for key, value in energy.items() if value is not None}
        tracker.summary({f"system/{name}": value for name, value in numbers.items()})
