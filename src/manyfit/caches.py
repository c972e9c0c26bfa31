"""What a run keeps instead of computing it in every epoch: the features of a frozen backbone, or decoded pictures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from manyfit import data as data_sets
from manyfit import models
from manyfit.array_store import ArrayStore
from manyfit.bar import Bar
from manyfit.config import RunConfig
from manyfit.console import Console
from manyfit.data import decoded
from manyfit.data.decoded import Choice
from manyfit.data.examples import ImageData
from manyfit.models import Network, feature_cache
from manyfit.models.feature_cache import FeatureReport
from manyfit.peers import Peers
from manyfit.record import RunRecord
from manyfit.strategy import Place

ARRAYS = "arrays"


@dataclass(frozen=True, eq=False)
class Prepared:
    """What the run trains on.

    Args:
        data: The data set, whose splits may hold features or decoded pictures.
        input_shape: Of one example that the trained network takes: height, width, channels, or one number.
        features: How the features came about; None without them.
    """

    data: ImageData
    input_shape: tuple[int, ...]
    features: FeatureReport | None = None


@dataclass(frozen=True, eq=False)
class Caches:
    """The caches of a run, decided before any long work.

    Args:
        network: The whole network.
        features: Where features are kept.
        pictures: Where decoded pictures are kept.
        input_shape: Of the pictures that the whole network takes.
        store_folder: Where arrays are kept on disk.
        limit_bytes: What they may take there.
    """

    network: Network
    features: Choice
    pictures: Choice
    input_shape: tuple[int, int, int]
    store_folder: Path
    limit_bytes: float

    @property
    def trained(self) -> Network:
        """The network that trains: the head alone where features are kept; it shares the head with the whole one."""
        return feature_cache.head_alone(self.network) if self.features.use else self.network

    @property
    def work(self) -> str:
        """The long work before the first epoch, in words; empty where there is none."""
        if self.features.use:
            return "the features"
        return "the decoded pixels" if self.pictures.use else ""

    def facts(self) -> dict[str, str]:
        """Rows of the header."""
        return {"feature cache": _in_words(self.features), "picture cache": _in_words(self.pictures)}

    def prepare(
        self,
        data: ImageData,
        place: Place,
        record: RunRecord,
        console: Console,
        notify: Callable[[str], None],
        check: Callable[[], object],
        peers: Peers | None = None,
    ) -> Prepared:
        """Compute, decode or find what the run trains on: the long work before the first step.

        Args:
            record: Gets `features`, `timing.feature_seconds` (0 where all were on disk) and `timing.prepare_seconds`.
            console: Told in a line what is done, and what came out.
            notify: Told what the user should know.
            check: Called now and then; what it raises ends the work.
            peers: The other workers, each of which computes a share of the features.
        """
        if not self.work:
            return Prepared(data, self.input_shape)
        console.print(
            f"Once, before the first epoch: {self.work} of {len(data.train) + len(data.validation)} pictures."
        )
        started = time.perf_counter()
        store = ArrayStore(self.store_folder, self.limit_bytes, notify)  # open until the process ends: in use
        with Bar(console, self.work.removeprefix("the "), "images") as bar:

            def on_progress(done: int, total: int) -> None:
                check()
                bar(done, total)

            prepared = self._features(data, place, store, notify, on_progress, peers) if self.features.use else None
            prepared = prepared or self._pixels(data, store, on_progress)
        seconds = time.perf_counter() - started
        record.update("timing", prepare_seconds=seconds)
        if prepared.features is not None:
            record.update("features", **prepared.features.as_dict())
            record.update("timing", feature_seconds=prepared.features.seconds)
        done = prepared.features.in_words() if prepared.features else f"Decoded in {seconds:.1f} s."
        console.print(done, whole_lines=True)
        return prepared

    def _features(
        self, data: ImageData, place: Place, store: ArrayStore, notify, on_progress, peers: Peers | None
    ) -> Prepared:
        data, report = feature_cache.compute(
            self.network,
            data,
            use=self.features.use or "memory",
            store=store,
            strategy=place.strategy,
            on_gpu=place.on_gpu,
            notify=notify,
            on_progress=on_progress,
            peers=peers,
        )
        assert self.network.head is not None
        return Prepared(data, tuple(self.network.head.input_shape[1:]), report)

    def _pixels(self, data: ImageData, store: ArrayStore, on_progress) -> Prepared:
        use = self.pictures.use or "memory"
        data = decoded.decode(data, self.input_shape, use=use, store=store, on_progress=on_progress)
        return Prepared(data, self.input_shape)


def decide(
    config: RunConfig, network: Network, data: ImageData, *, augments: bool = False, epochs: int | None = None
) -> Caches:
    """What the run keeps, by its configuration, its network and its data.

    Args:
        augments: The pictures of the training are changed at random.
        epochs: Passes over the pictures, where they are not the configuration's epochs.

    Raises:
        ConfigError: a cache is asked for that would not give the run's own numbers, or that does not fit.
    """
    input_shape = models.input_shape(config.model, data)
    features = feature_cache.decide(config.model.feature_cache, network, augments=augments)
    pictures = decoded.decide(
        config.data.cache, data, input_shape, epochs=epochs or config.epochs, features=features.use is not None
    )
    folder = Path(config.data.cache_dir or data_sets.default_cache_dir()).expanduser().absolute() / ARRAYS
    return Caches(network, features, pictures, input_shape, folder, config.data.cache_gb * 1e9)


def _in_words(choice: Choice) -> str:
    return f"{choice.use or 'off'} ({choice.why})"
