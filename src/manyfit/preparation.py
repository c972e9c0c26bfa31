"""What a run is made of before it has a folder: what cannot be had is refused here, and nothing has been written."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from manyfit import assembly, models, ranks, run_record, strategy
from manyfit import data as data_sets
from manyfit.batch import BatchPlan
from manyfit.callbacks.profiler import steps_to_trace
from manyfit.config import BatchConfig, RunConfig
from manyfit.console import Console
from manyfit.data.examples import ImageData
from manyfit.models import Network
from manyfit.notices import check_devices, notices_of
from manyfit.peers import Peers
from manyfit.record import RunRecord
from manyfit.schema import metrics
from manyfit.stages import Stages
from manyfit.strategy import Place
from manyfit.system import gpus as system_gpus
from manyfit.system.gpus import Gpus


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Devices, data, batches and model of one run.

    Attributes:
        asked: What the record says was asked.
        config: What trains, its batch size settled.
        search: How `batch=auto` found the size, as the record has it; None where it did not.
    """

    asked: RunConfig
    config: RunConfig
    place: Place
    gpus: Gpus
    data: ImageData
    search: dict[str, Any] | None
    plan: BatchPlan
    network: Network
    stages: Stages

    @property
    def name(self) -> str:
        """What a run folder is named after: data, model, strategy and replicas."""
        config = self.config
        return f"{config.data.name}_{config.model.name}_{config.strategy.name}-x{self.place.num_replicas}"

    def facts(self) -> dict[str, Any]:
        """The record's sections on devices, data, batches and model."""
        facts = run_record.facts_of(self.config, self.place, self.data, self.plan, self.network)
        facts["model"] |= self.stages.facts()
        return facts

    def notices(self) -> Iterator[str]:
        """What the user is told before the training."""
        for part in (self.place, self.data, self.network):
            yield from part.notices
        yield from notices_of(self.config, self.place, self.data, self.plan, self.network)


def prepare(config: RunConfig, console: Console, peers: Peers) -> Preparation:
    """Take the devices, load the data, settle the batch size and build the model.

    A run that goes on (`config.resume.folder`) keeps its global batch size, whatever the number of replicas is now.

    Raises:
        UserError: what was asked cannot be had, or the workers differ in it.
    """
    asked = config
    place = strategy.make(config.strategy, jit_compile=config.jit_compile, cluster=peers.cluster)
    check_devices(config, place)
    gpus = system_gpus.choose(config.tracker, place.gpu_numbers)
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.precision.name)
    with ranks.chief_first(peers, "data"):
        data = data_sets.load(config.data)
    metrics.check_classes(config.metrics, len(data.class_names))
    if config.resume.folder is not None:
        config, search = with_batches_of(Path(str(config.resume.folder)), config), None
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
    found = None if search is None else search.as_dict()
    return Preparation(asked, config, place, gpus, data, found, plan, network, stages)


def with_batches_of(folder: Path, config: RunConfig) -> RunConfig:
    """`config` with the global batch size of the run in `folder`, whatever the number of replicas is now.

    Raises:
        UserError: there is no such run.
    """
    size = RunRecord.load(folder).data["batch"].get("global_batch_size")
    same = {field.name: getattr(config.batch, field.name) for field in dataclasses.fields(BatchConfig)}
    return dataclasses.replace(
        config,
        batch=BatchConfig(**{**same, "name": "default", "per_replica_batch_size": None, "global_batch_size": size}),
    )
