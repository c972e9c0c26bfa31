"""What a user should know before long work: what cannot be had as asked, and what was asked that seldom pays."""

import os
from collections.abc import Iterator

from manyfit import phases
from manyfit.batch import BatchPlan
from manyfit.cluster import stray
from manyfit.config import EMNIST_CLASSES, EmnistConfig, LightAugmentConfig, RampConfig, RunConfig
from manyfit.coupled_layers import trains_batch_norm
from manyfit.data.examples import ImageData
from manyfit.errors import ConfigError
from manyfit.models import Network
from manyfit.record import environment, untested_versions
from manyfit.strategy import Place
from manyfit.tpu_strategy import BFLOAT16


def check_devices(config: RunConfig, place: Place) -> None:
    """Refuse what the devices cannot do.

    Raises:
        ConfigError: XLA for several replicas.
    """
    if config.jit_compile and place.num_replicas > 1:
        raise ConfigError(
            f"jit_compile=true does not work with the {place.num_replicas} replicas of "
            f"strategy.replicas={config.strategy.replicas}: TensorFlow cannot compile a step whose variables live on "
            "several devices.",
            "Set jit_compile=false, or strategy.replicas=1.",
        )


def notices_of(config: RunConfig, place: Place, data: ImageData, plan: BatchPlan, network: Network) -> Iterator[str]:
    """A line for each thing that a user of this configuration should know."""
    yield from untested_versions(environment()["versions"])
    if (told := stray(os.environ, config.strategy.name)) is not None:
        yield told
    shape = data.image_shape
    if shape is not None and config.model.image_size is not None and config.model.image_size > 3 * shape[0]:
        yield (
            f"Pictures of {shape[0]}x{shape[1]} are enlarged to {config.model.image_size}: model=small_cnn is made for "
            "their size and trains many times faster."
        )
    if data.name in ("mnist", "emnist") and isinstance(config.augment, LightAugmentConfig) and config.augment.flip > 0:
        yield f"augment.flip={config.augment.flip} mirrors digits and letters into other signs: give augment.flip=0."
    if place.on_tpu and config.precision.name != "mixed_bfloat16":
        yield BFLOAT16
    if config.precision.name != "float32" and not place.on_gpu and not place.on_tpu:
        yield f"precision={config.precision.name} is usually slower than float32 on a CPU."
    if plan.size_was_reduced:
        yield f"The training split is small: {plan.per_replica_batch_size} examples a replica and step."
    for phase in phases.plan(config):
        ramp, epochs = phase.config.schedule, phase.epochs
        if isinstance(ramp, RampConfig) and epochs <= ramp.ramp_up_epochs:
            where = f"phases[{phase.index}].epochs" if config.phases else "epochs"
            yield (
                f"schedule=ramp reaches its highest rate in epoch {ramp.ramp_up_epochs + 1}, but "
                f"{where}={epochs}: give more epochs or a shorter schedule.ramp_up_epochs."
            )
    asked = [phase.trainable or getattr(config.model, "trainable", "all") for phase in phases.plan(config)]
    if config.optimizer.layer_decay is not None and all(trainable == "none" for trainable in asked):
        yield (
            f"optimizer.layer_decay={config.optimizer.layer_decay} changes nothing: the backbone is frozen, and the "
            "head has the whole rate."
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
    if place.num_replicas > 1 and not place.on_gpu and not place.on_tpu:
        what = f"{place.num_replicas} logical devices"
        if place.cluster is not None:
            what = f"The {place.num_replicas} replicas of {place.num_workers} workers"
        if place.cluster is None or len({place.cluster.host(rank) for rank in range(place.num_workers)}) == 1:
            yield f"{what} share one CPU: good for trying things out, not faster."
