"""One run, from the checked configuration to its record: the order of the steps, and nothing else."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from manyfit import ranks, run_record
from manyfit.callbacks.stop import StopOnSignal
from manyfit.checkpoint import Checkpoint
from manyfit.config import RunConfig
from manyfit.console import Console
from manyfit.peers import Peers, alone
from manyfit.preparation import Preparation, prepare
from manyfit.record import RunRecord, check_unused, make_run_folder
from manyfit.resume import one_process
from manyfit.system.gpus import Gpus
from manyfit.system.sampler import Sampler
from manyfit.system.statistics import ENERGIES, energy_of_all
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
    lost = OnLost(console, peers)
    peers.watch(lost)
    parts = prepare(config, console, peers)
    folder = _run_folder(folder, parts.name, outputs, peers, goes_on=goes_on)
    with one_process(folder) if peers.is_chief else contextlib.nullcontext():
        record, found, told = _opened_record(folder, parts, peers, goes_on=goes_on)
        lost.record = record
        if parts.search is not None:
            record.update("batch", search=parts.search)
        console.tee(record.folder / LOG_NAME)

        def notify(text: str) -> None:
            record.notice(text)
            console.notice(text)

        for notice in (*told, *parts.notices()):
            notify(notice)
        _train(parts, record, found, console, notify, peers, folder)
        console.summary(record.data, folder=folder, sync_command=record.data["tracker"].get("sync_command"))
    return record


def _run_folder(folder: Path | None, name: str, outputs: Path, peers: Peers, *, goes_on: bool) -> Path:
    return ranks.run_folder(peers, lambda: folder if goes_on and folder else make_run_folder(folder, outputs, name))


def _opened_record(folder: Path, parts: Preparation, peers: Peers, *, goes_on: bool) -> ranks.Opened:
    facts = parts.facts()

    def open_record() -> ranks.Opened:
        if goes_on:
            return run_record.go_on(folder, parts.asked, facts, parts.plan)
        return run_record.begin(folder, parts.asked, facts, parts.data), None, []

    return ranks.open_record(peers, folder, open_record)


def _train(
    parts: Preparation,
    record: RunRecord,
    found: Checkpoint | None,
    console: Console,
    notify: Notify,
    peers: Peers,
    folder: Path,
) -> None:
    """Train, with everything open that has to be closed however it ends."""
    config, earlier_seconds = parts.config, run_record.earlier_seconds(found)
    with (
        run_record.closed(record, console, notify, earlier_seconds),
        StopOnSignal(config.max_minutes, peers=peers) as stop,
        _told(peers, config, record, console, notify, parts.gpus) as tracker,
        _sampled(config, record, tracker, notify, parts.gpus, earlier_seconds, peers) as sampler,
    ):
        session = Session(
            config=config,
            place=parts.place,
            data=parts.data,
            plan=parts.plan,
            stages=parts.stages,
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
    energy = energy_of_all([{}])
    sampler = Sampler(record.folder, interval, gpus, notify=notify, earlier_seconds=earlier_seconds)
    try:
        with sampler:
            yield sampler
        sections, means = zip(*peers.gather("system", [sampler.section(), sampler.means()]), strict=True)
        if peers.num_workers > 1 and interval is not None:
            record.update("system", workers=[{"rank": rank, **one} for rank, one in enumerate(sections)][1:])
        for rank, values in list(enumerate(means))[1:]:
            tracker.summary({f"system/rank-{rank}/{name}": value for name, value in values.items()})
        energy = energy_of_all(sections)
    finally:
        section = sampler.section()
        if peers.num_workers > 1 and interval is not None:  # rank 0 speaks for all, or where it could not ask, for none
            section |= energy
        record.update("system", **section)
        known = {key: section[key] for key in ENERGIES if section.get(key) is not None}
        numbers = sampler.means() | known
        tracker.summary({f"system/{name}": value for name, value in numbers.items()})
