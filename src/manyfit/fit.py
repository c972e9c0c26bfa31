"""One run, from the checked configuration to its record: the order of the steps, and nothing else."""

import contextlib
import dataclasses
import json
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import psutil

from manyfit import batch_search, caches, models, optimizer, probe, schedule, strategy
from manyfit import data as data_sets
from manyfit.augment import Augmentation
from manyfit.batch import BatchPlan
from manyfit.caches import Caches
from manyfit.callbacks.best_model import BestModel
from manyfit.callbacks.learning_rate import EpochLearningRate
from manyfit.callbacks.progress import EpochProgress
from manyfit.callbacks.stop import StopOnSignal, Stopped
from manyfit.callbacks.throughput import EpochRows
from manyfit.config import EMNIST_CLASSES, EmnistConfig, LightAugmentConfig, RampConfig, RunConfig, to_yaml
from manyfit.console import Console
from manyfit.coupled_layers import trains_batch_norm
from manyfit.data.examples import ImageData
from manyfit.data.pipeline import Feed
from manyfit.errors import EXIT_FAILED, EXIT_FINISHED, ConfigError, UserError
from manyfit.files import write_atomically
from manyfit.models import Network
from manyfit.precision import LossScale
from manyfit.record import RunRecord, check_unused, environment, make_run_folder, untested_versions
from manyfit.replicated import ReplicatedModel
from manyfit.schema.augment import check_rows
from manyfit.strategy import Place
from manyfit.tracker import Notify, Tracker, open_tracker

MODEL_NAME = "model.keras"
CONFIG_NAME = "config.yaml"
MANIFEST_NAME = "manifest.json"
LOG_NAME = "log.txt"


def run(config: RunConfig, *, outputs: Path, folder: Path | None = None, console: Console | None = None) -> RunRecord:
    """Train what `config` asks for and return its record, which says how the run ended.

    Args:
        outputs: Where run folders go by default.
        folder: The run folder, exactly; None to name it after what runs.
        console: Where to show it.

    Raises:
        UserError: what was asked cannot be had, before a run folder exists; later, the record says so as well.
    """
    console = console or Console()
    if folder is not None:
        check_unused(folder)
    place = strategy.make(config.strategy, jit_compile=config.jit_compile)
    _check_devices(config, place)
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.precision.name)
    data = data_sets.load(config.data)
    config, search = batch_search.resolve(
        config,
        facts={
            "devices": list(place.devices),
            "input_shape": list(models.input_shape(config.model, data)),
            "num_classes": len(data.class_names),
        },
        num_train=len(data.train),
        num_replicas=place.num_replicas,
        cache_dir=data_sets.default_cache_dir(),
        show=lambda line: console.print(line, whole_lines=True),
    )
    plan = plan_batches(config, data, place)
    with place.strategy.scope():
        network = models.build(config.model, data)
        cache = caches.decide(config, network, data, augments=config.augment.active)
        model = compiled(config, plan, cache.trained, data)
    name = f"{config.data.name}_{config.model.name}_{config.strategy.name}-x{place.num_replicas}"
    folder = make_run_folder(folder, outputs, name)
    record = _start_record(folder, config, place, data, plan, network)
    if search is not None:
        record.update("batch", search=search.as_dict())
    console.tee(folder / LOG_NAME)
    _write_inputs(folder, config, data)

    def notify(text: str) -> None:
        record.notice(text)
        console.notice(text)

    for notice in (*place.notices, *data.notices, *network.notices, *_notices(config, place, data, plan, network)):
        notify(notice)
    with (
        _closed(record, console, notify),
        StopOnSignal() as stop,
        _tracker(config, record, console, notify, name) as tracker,
    ):
        _train(config, model, cache, place, data, plan, record, tracker, stop, console, notify)
    console.summary(record.data, folder=folder, sync_command=record.data["tracker"].get("sync_command"))
    return record


def plan_batches(config: RunConfig, data: ImageData, place: Place) -> BatchPlan:
    """The batches of `data` on the replicas of `place`.

    Raises:
        ConfigError: sizes that the replicas cannot share, or that the data cannot fill.
    """
    return BatchPlan.make(
        config.batch,
        num_train=len(data.train),
        num_validation=len(data.validation),
        num_replicas=place.num_replicas,
        gradient_accumulation=config.gradient_accumulation,
    )


def compiled(config: RunConfig, plan: BatchPlan, network: Network, data: ImageData) -> ReplicatedModel:
    """The model that trains `network`; call it inside the scope of the strategy.

    A network that its factory compiled keeps its own loss.

    Raises:
        ConfigError: mixup or cutmix with an odd number of rows a replica, or with a training step of the user's own.
    """
    check_rows(config.augment, plan.per_replica_batch_size)
    own = network.model
    model = own if isinstance(own, ReplicatedModel) else ReplicatedModel(own, name="replicated")
    loss, metrics = models.loss_and_metrics(len(data.class_names), model.network.output_shape[-1])
    if own.compiled and own.loss is not None:
        loss = own.loss
    model.compile(
        optimizer.build(config.optimizer, learning_rate=schedule.learning_rates(config, plan)[0], ema=config.ema),
        loss,
        metrics,
        steps_per_execution=config.steps_per_execution,
        gradient_accumulation=config.gradient_accumulation,
        class_weight=class_weight(config, data),
        sync_batch_norm=config.model.sync_batch_norm,
        loss_scale=LossScale.of_policy(config.precision.name),
        on_non_finite=config.on_non_finite,
        jit_compile=config.jit_compile,
        augmentation=Augmentation.of(config.augment, config.seed),
    )
    return model


def class_weight(config: RunConfig, data: ImageData) -> list[float] | None:
    """The factor of each class in the training loss; `balanced` gives every class the same share of it.

    Raises:
        ConfigError: another number of factors than classes.
    """
    num_classes = len(data.class_names)
    if config.class_weight is None:
        return None
    if config.class_weight == "balanced":
        counts = np.bincount(data.train.labels, minlength=num_classes)
        return (len(data.train) / (num_classes * np.maximum(counts, 1))).tolist()
    if len(config.class_weight) != num_classes:
        raise ConfigError(
            f"class_weight={config.class_weight} has {len(config.class_weight)} factors; the data has {num_classes} "
            "classes.",
            f"Give one a class, in this order: {', '.join(data.class_names[:12])}.",
        )
    return [float(factor) for factor in config.class_weight]


def feeds(
    config: RunConfig, plan: BatchPlan, data: ImageData, input_shape: tuple[int, ...] | None = None
) -> tuple[Feed, Feed]:
    """The training and the validation feed, of examples that are pictures of the network's size unless said."""
    shape = input_shape or models.input_shape(config.model, data)
    how = {"parallel_map": config.data.parallel_map, "prefetch": config.data.prefetch}
    train = Feed(
        data.train,
        plan.examples_per_step,
        plan.steps_per_epoch,
        shape,
        plan.gradient_accumulation,
        config.seed,
        **how,
    )
    return train, Feed(data.validation, plan.global_batch_size, plan.validation_steps, shape, **how)


def _train(
    config: RunConfig,
    model: ReplicatedModel,
    cache: Caches,
    place: Place,
    data: ImageData,
    plan: BatchPlan,
    record: RunRecord,
    tracker: Tracker,
    stop: StopOnSignal,
    console: Console,
    notify: Notify,
) -> None:
    rates = schedule.learning_rates(config, plan)
    console.header(record.data, folder=record.folder, facts=_facts(config, rates) | cache.facts())
    rows = EpochRows(
        record,
        num_train=plan.examples_per_epoch,
        steps_per_epoch=plan.steps_per_epoch,
        global_batch_size=plan.examples_per_step,
        num_replicas=place.num_replicas,
    )

    whole = cache.network.model  # where features are kept, only its head trains
    whole = whole.network if isinstance(whole, ReplicatedModel) else whole

    def save(path: Path) -> None:
        with model.averaged_weights():
            whole.save(path)

    best = BestModel(record, record.folder / MODEL_NAME, save, notify=notify)
    progress = EpochProgress(console, rows, best)
    prepared = cache.prepare(data, place, record, console, notify, stop.check)
    train, validation = (
        feed.distribute(place.strategy) for feed in feeds(config, plan, prepared.data, prepared.input_shape)
    )
    record.update("timing", startup_seconds=_process_seconds())
    with contextlib.closing(progress):
        model.fit(
            train,
            epochs=config.epochs,
            steps_per_epoch=plan.steps_per_epoch,
            validation_data=validation,
            validation_steps=plan.validation_steps,
            callbacks=[
                EpochLearningRate(rates),
                rows,
                best,
                progress,
                *tracker.callbacks(),
                stop,
            ],
        )
    record.update("timing", skipped_steps=model.skipped_steps)
    probe.judge_run(
        model,
        train,
        rows,
        record,
        asked=config.probe,
        settings=dataclasses.asdict(config),
        first_step_seconds=record.data["timing"].get("first_step_seconds"),
        on_gpu=place.on_gpu,
        notify=notify,
    )
    verdict = {key: record.data.get("verdict", {}).get(key) for key in ("bound", "share", "sentence")}
    tracker.summary(
        {f"best/{key}": value for key, value in record.data["best"].items()}
        | {f"throughput/{key}": value for key, value in record.data["throughput"].items()}
        | {f"verdict/{key}": value for key, value in verdict.items() if value is not None}
    )


@contextlib.contextmanager
def _tracker(config: RunConfig, record: RunRecord, console: Console, notify: Notify, name: str) -> Iterator[Tracker]:
    derived = {key: record.data[key] for key in ("data", "model", "strategy", "batch", "versions", "git")}
    tags = [config.data.name, config.model.name, f"{config.strategy.name}-x{record.data['strategy']['num_replicas']}"]
    if record.data["rehearsal"]:
        tags.append("rehearsal")
    with open_tracker(
        config.tracker,
        folder=record.folder,
        run_name=name,
        config_dict=dataclasses.asdict(config),
        derived=derived | {"learning_rate": record.data["batch"]["learning_rate"]},
        tags=tags,
        notify=notify,
    ) as tracker:
        console.sinks.append(tracker.write_log)
        facts = {"mode": tracker.mode, "run_id": tracker.run_id, "path": tracker.path, "url": tracker.url}
        record.update("tracker", **facts, sync_command=tracker.sync_command)
        try:
            yield tracker
        finally:
            console.sinks.remove(tracker.write_log)
    # An upload that failed at the very end leaves something to sync.
    record.update("tracker", sync_command=tracker.sync_command)


@contextlib.contextmanager
def _closed(record: RunRecord, console: Console, notify: Notify) -> Iterator[None]:
    """Whatever happens inside, the record says how it ended, and so does the log."""

    def close(status: str, exit_code: int, error: str | None = None) -> None:
        record.update("timing", total_seconds=_process_seconds())
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


def _process_seconds() -> float:
    """Seconds since this process began: what the user has waited."""
    return time.time() - psutil.Process().create_time()


def _start_record(
    folder: Path, config: RunConfig, place: Place, data: ImageData, plan: BatchPlan, network: Network
) -> RunRecord:
    model = network.model
    return RunRecord.create(
        folder,
        rehearsal=data.rehearsal,
        data={
            "name": data.name,
            "source": data.source,
            "num_train": len(data.train),
            "num_validation": len(data.validation),
            "num_skipped": len(data.skipped),
            "class_names": list(data.class_names),
            "fingerprint": data.fingerprint,
        },
        model={
            "name": config.model.name,
            "weights": network.weights,
            "num_parameters": model.count_params(),
            "num_trainable_parameters": sum(int(keras.ops.size(variable)) for variable in model.trainable_variables),
            "sync_batch_norm": config.model.sync_batch_norm,
            "trains_batch_norm": trains_batch_norm(model),
        },
        strategy={"name": place.name, "num_replicas": place.num_replicas, "devices": list(place.devices)},
        batch={
            "global_batch_size": plan.global_batch_size,
            "per_replica_batch_size": plan.per_replica_batch_size,
            "steps_per_epoch": plan.steps_per_epoch,
            "validation_steps": plan.validation_steps,
            "gradient_accumulation": plan.gradient_accumulation,
            "padding_rows": plan.padding_rows,
            "learning_rate": schedule.learning_rates(config, plan)[0],
        },
        **environment(),
    )


def _write_inputs(folder: Path, config: RunConfig, data: ImageData) -> None:
    write_atomically(folder / CONFIG_NAME, to_yaml(config))
    write_atomically(folder / MANIFEST_NAME, json.dumps(data_sets.manifest(data), indent=1))


def _check_devices(config: RunConfig, place: Place) -> None:
    if config.jit_compile and place.num_replicas > 1:
        raise ConfigError(
            f"jit_compile=true does not work with the {place.num_replicas} replicas of "
            f"strategy.replicas={config.strategy.replicas}: TensorFlow cannot compile a step whose variables live on "
            "several devices.",
            "Set jit_compile=false, or strategy.replicas=1.",
        )


def _notices(config: RunConfig, place: Place, data: ImageData, plan: BatchPlan, network: Network) -> Iterator[str]:
    yield from untested_versions(environment()["versions"])
    shape = data.image_shape
    if shape is not None and config.model.image_size is not None and config.model.image_size > 3 * shape[0]:
        yield (
            f"Pictures of {shape[0]}x{shape[1]} are enlarged to {config.model.image_size}: model=small_cnn is made for "
            "their size and trains many times faster."
        )
    if data.name in ("mnist", "emnist") and isinstance(config.augment, LightAugmentConfig) and config.augment.flip > 0:
        yield f"augment.flip={config.augment.flip} mirrors digits and letters into other signs: give augment.flip=0."
    if config.precision.name != "float32" and not place.on_gpu:
        yield f"precision={config.precision.name} is usually slower than float32 on a CPU."
    if plan.size_was_reduced:
        yield f"The training split is small: {plan.per_replica_batch_size} examples a replica and step."
    if isinstance(config.schedule, RampConfig) and config.epochs <= config.schedule.ramp_up_epochs:
        yield (
            f"schedule=ramp reaches its highest rate in epoch {config.schedule.ramp_up_epochs + 1}, but "
            f"epochs={config.epochs}: give more epochs or a shorter schedule.ramp_up_epochs."
        )
    if isinstance(config.data, EmnistConfig) and len(data.class_names) != EMNIST_CLASSES[config.data.variant]:
        yield (
            f"data.variant={config.data.variant} has {EMNIST_CLASSES[config.data.variant]} classes, but the data found "
            f"has {len(data.class_names)}: the data decides."
        )
    if place.num_replicas > 1 and not config.model.sync_batch_norm and trains_batch_norm(network.model):
        yield (
            "model.sync_batch_norm=false: each replica normalises with statistics of its own rows, so that the numbers "
            "of this run depend on the number of replicas."
        )
    if place.num_replicas > 1 and not place.on_gpu:
        yield f"{place.num_replicas} logical devices share one CPU: good for trying things out, not faster."


def _facts(config: RunConfig, rates: list[float]) -> dict[str, str]:
    rate = f"{rates[0]:g}" if len(set(rates)) == 1 else f"{rates[0]:g}, {config.schedule.name}, at most {max(rates):g}"
    return {"optimizer": f"{config.optimizer.name}, learning rate {rate}", "precision": config.precision.name}
