"""What each phase of a training is fed with: features or pictures, prepared once and kept as long as they are right."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from manyfit import assembly
from manyfit.batch import BatchPlan
from manyfit.caches import Caches, Prepared
from manyfit.checkpoint import Position
from manyfit.config import RunConfig
from manyfit.console import Console
from manyfit.data.examples import ImageData
from manyfit.peers import Peers
from manyfit.record import RunRecord
from manyfit.strategy import Place
from manyfit.system.sampler import Sampler


@dataclass
class Feeding:
    """Makes the training and the validation feed of a phase.

    Args:
        notify: Told what the user should know.
    """

    config: RunConfig
    plan: BatchPlan
    data: ImageData
    place: Place
    record: RunRecord
    sampler: Sampler
    console: Console
    notify: Callable[[str], None]
    peers: Peers
    _kept: dict[str, Prepared] = field(init=False, default_factory=dict)
    _seconds: float = field(init=False, default=0.0)

    def feeds(self, cache: Caches, start: Position, check: Callable[[], Any]) -> tuple[Any, Any]:
        """Both, distributed over the replicas, after whatever long work they need.

        Args:
            cache: What the phase keeps.
            start: Where the training begins.
            check: Called now and then; what it raises ends the work.
        """
        kind = "features" if cache.features.use else "pictures"
        if kind == "pictures":
            self._kept.pop("features", None)  # the backbone is about to change
        if kind not in self._kept:
            self._kept[kind] = self._prepare(cache, check)
        kept = self._kept[kind]
        feeds = assembly.feeds(self.config, self.plan, kept.data, kept.input_shape, start)
        train, validation = (feed.distribute(self.place.strategy) for feed in feeds)
        return train, validation

    def _prepare(self, cache: Caches, check: Callable[[], Any]) -> Prepared:
        if cache.work:
            self.sampler.enter("features")
        prepared = cache.prepare(self.data, self.place, self.record, self.console, self.notify, check, self.peers)
        if cache.work:  # each phase may have work of its own
            self._seconds += self.record.data["timing"]["prepare_seconds"]
            self.record.update("timing", prepare_seconds=self._seconds)
        return prepared
