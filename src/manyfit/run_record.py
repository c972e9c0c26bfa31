"""The record of one run, from its first entries to how it ended, and the run that goes on."""

import contextlib
import json
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from manyfit import checkpoint, phases, schedule
from manyfit import data as data_sets
from manyfit.batch import BatchPlan
from manyfit.callbacks.stop import Stopped
from manyfit.checkpoint import Checkpoint
from manyfit.config import RunConfig, to_yaml
from manyfit.console import Console
from manyfit.coupled_layers import trains_batch_norm
from manyfit.data.examples import ImageData
from manyfit.errors import EXIT_FAILED, EXIT_FINISHED, ConfigError, DataError, UserError
from manyfit.files import write_atomically
from manyfit.models import Network
from manyfit.processes import process_seconds
from manyfit.record import RunRecord, environment
from manyfit.resume import CONFIG_NAME
from manyfit.strategy import Place
from manyfit.tracker import Notify

MANIFEST_NAME = "manifest.json"


def facts_of(config: RunConfig, place: Place, data: ImageData, plan: BatchPlan, network: Network) -> dict[str, Any]:
    """What a record says of a run before it trains."""
    model = network.model
    return {
        "rehearsal": data.rehearsal,
        "data": {
            "name": data.name,
            "source": data.source,
            "num_train": len(data.train),
            "num_validation": len(data.validation),
            "num_skipped": len(data.skipped),
            "class_names": list(data.class_names),
            "fingerprint": data.fingerprint,
        },
        "model": {
            "name": config.model.name,
            "weights": network.weights,
            "num_parameters": model.count_params(),
            "num_trainable_parameters": sum(int(keras.ops.size(variable)) for variable in model.trainable_variables),
            "sync_batch_norm": config.model.sync_batch_norm,
            "trains_batch_norm": trains_batch_norm(model),
        },
        "strategy": place.facts(),
        "batch": {
            "global_batch_size": plan.global_batch_size,
            "per_replica_batch_size": plan.per_replica_batch_size,
            "steps_per_epoch": plan.steps_per_epoch,
            "validation_steps": plan.validation_steps,
            "gradient_accumulation": plan.gradient_accumulation,
            "padding_rows": plan.padding_rows,
            "learning_rate": schedule.learning_rates(phases.plan(config)[0].config, plan)[0],
        },
        **environment(),
    }


def begin(folder: Path, config: RunConfig, facts: dict[str, Any], data: ImageData) -> RunRecord:
    """The record of a new run, and beside it what was asked and which examples it has."""
    record = RunRecord.create(folder, **facts)
    write_atomically(folder / CONFIG_NAME, to_yaml(config))
    write_atomically(folder / MANIFEST_NAME, json.dumps(data_sets.manifest(data), indent=1))
    return record


def go_on(
    folder: Path, config: RunConfig, facts: dict[str, Any], plan: BatchPlan
) -> tuple[RunRecord, Checkpoint | None, list[str]]:
    """The record of the run in `folder`, the checkpoint it goes on from (None: from its start), and what to tell.

    Raises:
        DataError: the data are not those that it began with.
        ConfigError: its batches are others.
    """
    record = RunRecord.load(folder)
    before, now = record.data["data"].get("fingerprint"), facts["data"]["fingerprint"]
    if before != now:
        raise DataError(
            f"The run in {folder} began with other data (fingerprint {before}, now {now}).",
            "Give back the data that it began with (manifest.json lists them), or start a new run.",
        )
    size = record.data["batch"].get("global_batch_size")
    if size != plan.global_batch_size:
        raise ConfigError(
            f"The run in {folder} has a global batch size of {size}, now it would be {plan.global_batch_size}.",
            f"Give batch.global_batch_size={size}.",
        )
    told: list[str] = []
    found = checkpoint.newest(folder / checkpoint.FOLDER_NAME, told.append)
    position = checkpoint.START if found is None else found.position
    if len(record.data["epochs"]) < position.epoch:
        raise UserError(
            f"{folder} has the rows of {len(record.data['epochs'])} epochs, but a checkpoint after {position.epoch}.",
            "Restore record.json, or start a new run.",
        )
    checkpoint.discard_after(folder / checkpoint.FOLDER_NAME, position)
    kept = {key: facts[key] for key in ("strategy", "batch", "versions", "git", "host", "command")}
    record.go_on(position.epoch, position.step, **kept)
    write_atomically(folder / CONFIG_NAME, to_yaml(config))
    told.append(f"The run goes on at {position}.")
    return record, found, told


def earlier_seconds(found: Checkpoint | None) -> float:
    """Seconds that the run had taken when the checkpoint was written."""
    return 0.0 if found is None else float(found.state.get("elapsed_seconds") or 0.0)


@contextlib.contextmanager
def closed(record: RunRecord, console: Console, notify: Notify, earlier: float = 0.0) -> Iterator[None]:
    """Whatever happens inside, the record says how it ended, and so does the log.

    Args:
        earlier: Seconds that earlier attempts at the run took.
    """

    def close(status: str, exit_code: int, error: str | None = None) -> None:
        record.update("timing", total_seconds=earlier + process_seconds())
        record.set_status(status, exit_code=exit_code, error=error)

    try:
        yield
    except Stopped as error:
        close("stopped", error.exit_code, str(error))
        notify(f"The run was {error}; its record and best model are in {record.folder}.")
    except UserError as error:
        close("failed", error.exit_code, str(error))
        console.log(f"error: {error}")
        raise
    except BaseException as error:
        close("failed", EXIT_FAILED, f"{type(error).__name__}: {error}")
        console.log(traceback.format_exc())
        raise
    else:
        close("finished", EXIT_FINISHED)
