"""A run's tracker from its opening to its end: what it is told of the run, and what the record says of it."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from manyfit.callbacks.stop import Stopped
from manyfit.code_state import write_diff
from manyfit.config import RunConfig
from manyfit.console import Console
from manyfit.errors import UserError
from manyfit.files import to_plain
from manyfit.masking import mask
from manyfit.record import RunRecord
from manyfit.sweep_arguments import agent_parameters, check_tracked, tracked_config
from manyfit.system.gpus import Gpus
from manyfit.tracker import Notify, Tracker, explain
from manyfit.tracker_opening import open_tracker
from manyfit.wandb_segments import segments_of

DERIVED = ("data", "model", "strategy", "batch", "versions", "git")
"""Sections of the record that W&B's config holds under `derived`."""


@contextlib.contextmanager
def tracked(config: RunConfig, record: RunRecord, console: Console, notify: Notify, gpus: Gpus) -> Iterator[Tracker]:
    """The open tracker of the run, which gets the log; what came of it is in the record.

    Raises:
        ConfigError: the tracker holds another configuration than what trains.
    """
    told = tracked_config(to_plain(dataclasses.asdict(config)), agent_parameters())
    attempt = (record.data.get("attempts") or [{}])[-1]
    diff = write_diff(record.folder, attempt=len(record.data.get("attempts") or [1]))
    derived = {key: record.data[key] for key in DERIVED}
    with open_tracker(
        config.tracker,
        folder=record.folder,
        run_name=run_name(record.data),
        config_dict=mask(told),
        derived=derived | {"learning_rate": record.data["batch"]["learning_rate"]},
        tags=tags_of(record.data),
        notify=notify,
        gpu_indices=gpus.indices,
        earlier=segments_of(record.folder, record.data["tracker"]),
        begins=(attempt.get("from_epoch") or 1, attempt.get("from_step") or 0),
        steps_per_epoch=record.data["batch"]["steps_per_epoch"],
    ) as tracker:
        console.sinks.append(tracker.write_log)
        facts = {"mode": tracker.mode, "run_id": tracker.run_id, "path": tracker.path, "url": tracker.url}
        record.update("tracker", **facts, sync_command=tracker.sync_command, segments=tracker.segments)
        tracker.code([] if diff is None else [diff], {**record.data["git"], "versions": record.data["versions"]})
        if len(tracker.segments) > 1:
            for step, row in rows_of(record.data):
                tracker.log(row, step)
        try:
            check_tracked(mask(dict(tracker.config)), mask(told))
            yield tracker
        except Stopped:
            raise
        except Exception as error:
            tracker.note(f"Failed: {error if isinstance(error, UserError) else explain(error)}")
            raise
        finally:
            console.sinks.remove(tracker.write_log)
    # An upload that failed at the very end leaves something to sync.
    record.update("tracker", sync_command=tracker.sync_command, segments=tracker.segments)


def run_name(record: Mapping[str, Any]) -> str:
    """A name that tells runs apart at a glance.

    >>> run_name({"data": {"name": "cats_dogs"}, "model": {"name": "mobilenet_v2"},
    ...           "strategy": {"name": "mirrored", "num_replicas": 4}, "batch": {"global_batch_size": 64}})
    'cats_dogs mobilenet_v2 mirrored x4 b64'
    """
    place, batch = record["strategy"], record["batch"]["global_batch_size"]
    names = (record["data"]["name"], record["model"]["name"], place["name"])
    return f"{' '.join(map(str, names))} x{place['num_replicas']} b{batch}"


def tags_of(record: Mapping[str, Any]) -> list[str]:
    """What one looks for runs by."""
    place = record["strategy"]
    tags = [record["data"]["name"], record["model"]["name"], f"{place['name']}-x{place['num_replicas']}"]
    return [str(tag) for tag in tags] + (["rehearsal"] if record["rehearsal"] else [])


def rows_of(record: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Step and row of each epoch that a record has, as W&B gets them while they are trained.

    A run that goes on tells them again: what was killed had not written all that it was told, and W&B leaves out the
    steps that it has.
    """
    batch = record["batch"]
    steps = batch["steps_per_epoch"]
    per_step = batch["global_batch_size"] * (batch.get("gradient_accumulation") or 1)
    examples = min(record["data"]["num_train"], steps * per_step)
    for row in record["epochs"]:
        epoch = row["epoch"]
        told = {f"epoch/{name}": value for name, value in row.items() if value is not None}
        yield epoch * steps, told | {"examples_seen": epoch * examples}
