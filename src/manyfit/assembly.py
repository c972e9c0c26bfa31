"""The parts of a run from its configuration: batches, the compiled model, what it is fed with."""

import dataclasses

import numpy as np

from manyfit import batch_search, layer_rates, models, optimizer, phases, schedule
from manyfit import data as data_sets
from manyfit.augment import Augmentation
from manyfit.batch import BatchPlan
from manyfit.checkpoint import START, Position
from manyfit.config import AutoBatchConfig, RunConfig
from manyfit.console import Console
from manyfit.data.examples import ImageData
from manyfit.data.pipeline import Feed
from manyfit.errors import ConfigError
from manyfit.models import Network
from manyfit.peers import Peers, alone
from manyfit.precision import LossScale
from manyfit.replicated import ReplicatedModel
from manyfit.schema.augment import check_rows
from manyfit.schema.place import of_one_worker
from manyfit.strategy import Place

PHASE_SEEDS = 1 << 31
"""Between the seeds of two phases: more than there are seeds of runs."""


def with_batch_size(
    config: RunConfig, data: ImageData, place: Place, console: Console, peers: Peers | None = None
) -> tuple[RunConfig, batch_search.Search | None]:
    """`config` with a size in the place of `batch=auto`, and the search that found it; else as it is.

    Raises:
        ConfigError: no size fits.
    """
    if not isinstance(config.batch, AutoBatchConfig):
        return config, None
    peers, search, size = peers or alone(), None, None
    if peers.is_chief:
        found, search = batch_search.resolve(
            dataclasses.replace(  # tried in a process of its own
                phases.heaviest(config).config, strategy=of_one_worker(config.strategy)
            ),
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
        size = found.batch.per_replica_batch_size
    size = peers.broadcast("batch size", size)
    return dataclasses.replace(config, batch=dataclasses.replace(config.batch, per_replica_batch_size=size)), search


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


def compiled(
    config: RunConfig,
    plan: BatchPlan,
    network: Network,
    data: ImageData,
    whole: Network | None = None,
    *,
    phase: int = 0,
) -> ReplicatedModel:
    """The model that trains `network`; call it inside the scope of the strategy.

    A network that its factory compiled keeps its own loss.

    Args:
        whole: The network that `network` is a part of, by which layers know how deep they lie.
        phase: The part of the run, counted from 0: each draws its own random pictures.

    Raises:
        ConfigError: mixup or cutmix with an odd number of rows a replica, or with a training step of the user's own.
    """
    check_rows(config.augment, plan.per_replica_batch_size)
    own = network.model
    model = own if isinstance(own, ReplicatedModel) else ReplicatedModel(own, name="replicated")
    outputs = model.network.output_shape[-1]
    loss, metrics = models.loss_and_metrics(len(data.class_names), outputs, config.loss, config.metrics)
    if network.loss is not None:
        if config.loss.is_adjusted:
            raise ConfigError(
                "loss.* changes the cross-entropy, but the factory brings a loss of its own.", "Leave it out."
            )
        loss = network.loss
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
        augmentation=Augmentation.of(config.augment, config.seed + PHASE_SEEDS * phase),
    )
    if config.optimizer.layer_decay is not None:
        layer_rates.scale(model.optimizer, layer_rates.factors(whole or network, config.optimizer.layer_decay))
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
    config: RunConfig,
    plan: BatchPlan,
    data: ImageData,
    input_shape: tuple[int, ...] | None = None,
    start: Position = START,
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
        start_epoch=start.epoch,
        start_step=start.step,
        **how,
    )
    return train, Feed(data.validation, plan.global_batch_size, plan.validation_steps, shape, **how)
