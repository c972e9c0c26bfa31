"""The feature cache: a frozen backbone runs once over every picture, and the head trains on what it made of them.

Exact: a backbone that does not change and sees no random picture makes the same features in every epoch. What is
kept on disk is addressed by everything that determines it, so that other runs take it as it is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from manyfit.array_store import ArrayStore, Stored, aligned_array, key_of
from manyfit.coupled_layers import DROPOUTS
from manyfit.data.decoded import Choice, Progress, pixel_facts, read_in_order
from manyfit.data.examples import ImageData, Split
from manyfit.errors import ConfigError
from manyfit.models import inference
from manyfit.models.feature_parts import compute_in_parts
from manyfit.models.network import Network
from manyfit.peers import Peers

FEATURE_VERSION = 1
"""Raise it when the features of the same pictures and weights change."""


_LOOKED_AT = 4
"""Cached features that every run compares with Keras' own."""

_AHEAD_BYTES = 1 << 28
"""Decoded pictures that may wait for the engine: enough to keep the cores busy while it is made."""


@dataclass(frozen=True)
class FeatureReport:
    """How the features of a run came about.

    Args:
        engine: What computed them; None where all were on disk.
        reused: All were on disk.
        num_images: Pictures that went through the backbone.
        seconds: From the first look at the cache to the last feature; 0 where all were reused.
        images_per_second: Of the pass alone, without making the engine; None where all were reused.
        path: Folder of the cache; None where the features are in memory.
    """

    engine: str | None
    reused: bool
    num_images: int
    seconds: float
    images_per_second: float | None
    path: str | None

    def as_dict(self) -> dict[str, Any]:
        """The report for the record."""
        return dataclasses.asdict(self)

    def of_all(self, peers: Peers) -> FeatureReport:
        """What all workers did together."""
        numbers = [self.engine, self.num_images, self.seconds, self.images_per_second or 0.0]
        engines, images, seconds, rates = zip(*peers.gather("feature report", numbers), strict=True)
        return dataclasses.replace(
            self,
            engine=next((engine for engine in engines if engine), None),
            reused=not sum(images),
            num_images=sum(images),
            seconds=max(seconds) if sum(images) else 0.0,
            images_per_second=sum(rates) or None,
        )

    def in_words(self) -> str:
        """One line for the user."""
        if self.reused:
            return f"Features: all taken from {self.path}."
        kept = f"kept in {self.path}" if self.path else "kept in memory"
        speed = f" ({self.images_per_second:,.0f} images/s)" if self.images_per_second else ""
        return f"Features: {self.num_images:,} pictures in {self.seconds:.1f} s{speed}, engine {self.engine}, {kept}."


def decide(feature_cache: str, network: Network, *, augments: bool = False) -> Choice:
    """Where the features of a run are kept: `disk` unless asked otherwise, nowhere if they are not always the same.

    Args:
        feature_cache: `model.feature_cache`: `auto`, `off`, `memory` or `disk`.
        augments: The pictures are changed at random before the backbone sees them.

    Raises:
        ConfigError: `memory` or `disk` is asked for and would not give the run's own numbers.
    """
    if feature_cache == "off":
        return Choice(None, "model.feature_cache=off")
    why_not = _why_not(network, augments)
    if why_not is None:
        return Choice(
            "disk" if feature_cache == "auto" else feature_cache,
            "the backbone is frozen and sees the same pictures in every epoch",
        )
    if feature_cache != "auto":
        raise ConfigError(
            f"model.feature_cache={feature_cache} is not possible: {why_not}.",
            "Give model.feature_cache=auto or off; with a backbone, model.trainable=none freezes it.",
        )
    return Choice(None, why_not)


def _why_not(network: Network, augments: bool) -> str | None:
    if network.backbone is None or network.head is None:
        return "the model has no backbone apart from its head"
    if network.backbone.trainable_variables:
        return "the backbone is trained, so that its features change"
    if augments:
        return "the pictures are augmented at random before the backbone"
    random = [layer.name for layer in network.backbone._flatten_layers() if _is_random(layer)]
    if random:
        return f"the backbone has random layers of its own, {random[0]} first"
    return None


def _is_random(layer: keras.layers.Layer) -> bool:
    """Whether a layer draws random numbers in training; a frozen dropout does not (see `coupled_layers`)."""
    if isinstance(layer, DROPOUTS) and not layer.trainable:
        return False
    strength = getattr(layer, "rate", getattr(layer, "stddev", 1.0))
    return getattr(layer, "seed_generator", None) is not None and strength != 0


def head_alone(network: Network) -> Network:
    """The network that trains on features; it shares its head with `network`, which stays the one to save."""
    assert network.head is not None
    return dataclasses.replace(network, model=network.head)


def compute(
    network: Network,
    data: ImageData,
    *,
    use: str,
    store: ArrayStore,
    strategy: tf.distribute.Strategy,
    on_gpu: bool,
    notify: Callable[[str], None],
    on_progress: Progress = lambda done, total: None,
    peers: Peers | None = None,
) -> tuple[ImageData, FeatureReport]:
    """The data set with features, float32 [N, num_features], in place of its training and validation pictures.

    Args:
        network: A network for which `decide` said yes.
        use: `memory` or `disk`.
        store: Where they are on disk.
        strategy: Where the run trains.
        on_gpu: Whether its replicas are GPUs.
        notify: Told what the user should know.
        on_progress: Told pictures done and their total; what it raises ends the pass.
        peers: The other workers. On disk each computes a share of what is missing, and all take the whole from the
            store, where they share one; in memory each computes all.
    """
    cache = _Pass(network.backbone, use, store, strategy, on_gpu, notify)
    cache.total = len(data.train) + len(data.validation)
    if peers is not None and peers.num_workers > 1 and use == "disk":
        for split in (data.train, data.validation):
            compute_in_parts(cache, store, split, peers, on_progress)
    train = cache.features_of(data.train, on_progress)
    validation = cache.features_of(data.validation, on_progress)
    report = cache.report()
    if peers is not None and peers.num_workers > 1:
        report = report.of_all(peers)
    return dataclasses.replace(data, train=train, validation=validation, test=None), report


def split_network(model: keras.Model) -> Network | None:
    """The backbone and the head of a saved model; None for a model without this division."""
    heads = [layer for layer in model.layers if isinstance(layer, keras.Model) and layer.name == "head"]
    calls = [(head, node) for head in heads for node in head._inbound_nodes if node.outputs[0] is model.outputs[0]]
    if len(model.inputs) != 1 or not calls:
        return None
    head, call = calls[0]
    return Network(model, keras.Model(model.inputs[0], call.input_tensors[0]), head)


def compute_split(
    network: Network,
    split: Split,
    *,
    strategy: tf.distribute.Strategy,
    on_gpu: bool,
    notify: Callable[[str], None] = lambda text: None,
) -> Split:
    """One split with features in place of its pictures, in memory."""
    cache = _Pass(network.backbone, "memory", None, strategy, on_gpu, notify)
    return cache.features_of(split, lambda done, total: None)


class _Pass:
    """One pass over some splits with one engine, made when the first picture is not in the cache."""

    def __init__(self, backbone, use: str, store: ArrayStore | None, strategy, on_gpu: bool, notify):
        self.backbone = backbone
        self.image_shape = tuple(backbone.input_shape[1:])
        self.facts = _facts(backbone) if use == "disk" else {}
        self.total = 0
        self._use, self.store = use, store
        self._strategy, self._on_gpu, self._notify = strategy, on_gpu, notify
        self._engine: inference.Engine | None = None
        self.stored: list[Stored] = []
        self._started = time.perf_counter()
        self._before = self._num_images = 0
        self._pass_seconds = 0.0

    def features_of(self, split: Split, on_progress: Progress) -> Split:
        """The split with features; in the cache, or made now."""
        shape = self.shape_of(split)

        def fill(array: np.ndarray) -> None:
            self.fill(array, split, on_progress)

        def accept(features: np.ndarray) -> bool:
            return self._agrees(features[:_LOOKED_AT], split.rows(0, _LOOKED_AT))

        if self._use == "memory" or self.store is None:
            stored = Stored(aligned_array(shape, np.float32), False, None)
            fill(stored.array)
        else:
            facts = self.facts_of(split)
            stored = self.store.get_or_make(key_of(facts), shape, np.float32, fill, accept=accept, facts=facts)
        self._before += len(split)
        self.stored.append(stored)
        return Split(split.name, split.labels, images=stored.array)

    def facts_of(self, split: Split) -> dict[str, Any]:
        """What determines the features of a split on disk; the engine does not, since engines agree."""
        assert self.store is not None
        return pixel_facts(split, self.image_shape, self.store.folder / "contents") | self.facts

    def shape_of(self, split: Split) -> tuple[int, int]:
        """The shape of its features."""
        return len(split), int(self.backbone.output_shape[-1])

    def fill(self, array: np.ndarray, split: Split, on_progress: Progress) -> None:
        """Compute the features of a split into an array."""
        rows = inference.chunk_rows(self._strategy, self._on_gpu)
        chunks = read_in_order(split, self.image_shape, rows, ahead_bytes=_AHEAD_BYTES)
        first = next(chunks)  # from here on, decoding goes on while the engine is made
        if self._engine is None:
            self._engine = inference.choose(
                self.backbone,
                first[: inference.CHECKED_ROWS],
                strategy=self._strategy,
                on_gpu=self._on_gpu,
                notify=self._notify,
                num_pictures=max(self.total, len(split)),
            )
        before, total = self._before, max(self.total, len(split))
        started = time.perf_counter()
        inference.run(
            self._engine, itertools.chain([first], chunks), array, lambda done: on_progress(before + done, total)
        )
        self._pass_seconds += time.perf_counter() - started
        self._num_images += len(split)

    def _agrees(self, features: np.ndarray, split: Split) -> bool:
        """Whether cached features are those of the Keras model, which notices what no hash can: a wrong program."""
        pictures = np.concatenate(list(read_in_order(split, self.image_shape)))
        difference = inference.disagreement(features, inference.keras_features(self.backbone, pictures))
        if difference <= inference.tolerance_of(self.backbone, self._on_gpu):
            return True
        self._notify(f"The cached features differ from Keras' by {difference:.1e} and are made anew.")
        return False

    def report(self) -> FeatureReport:
        """How it went."""
        reused = all(stored.reused for stored in self.stored)
        on_disk = self.store is not None and any(stored.path for stored in self.stored)
        return FeatureReport(
            engine=self._engine.name if self._engine else None,
            reused=reused,
            num_images=self._num_images,
            seconds=0.0 if reused else time.perf_counter() - self._started,
            images_per_second=self._num_images / self._pass_seconds if self._pass_seconds else None,
            path=str(self.store.folder) if self.store is not None and on_disk else None,
        )


# --- what determines the features -----------------------------------------------------------------------------------


def _facts(backbone: keras.Model) -> dict[str, Any]:
    """All about the backbone that determines the features of given pixels."""
    return {
        "features": FEATURE_VERSION,
        "keras": keras.__version__,
        "architecture": architecture_of(backbone),
        "weights": weights_of(backbone),
        "precision": sorted({layer.compute_dtype for layer in backbone._flatten_layers()}),
    }


def architecture_of(model: keras.Model) -> str:
    """Hash the layers of a model, their settings and connections; hex, 64 digits.

    Names don't count: Keras numbers them by what else was built in the process.
    """
    names: dict[str, str] = {}
    for layer in model._flatten_layers():
        for operation in (layer, *getattr(layer, "operations", ())):
            names.setdefault(operation.name, f"#{len(names)}")

    def unnamed(value: Any, is_name: bool = False) -> Any:
        if isinstance(value, dict):
            keys = ("name", "keras_history", "input_layers", "output_layers")
            return {key: unnamed(item, key in keys) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [unnamed(item, is_name) for item in value]
        return names.get(value, value) if is_name and isinstance(value, str) else value

    plain = unnamed(json.loads(model.to_json()))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def weights_of(model: keras.Model) -> str:
    """Hash every weight of a model, in order; hex, 64 digits."""
    digest = hashlib.sha256()
    for variable in model.weights:
        value = np.ascontiguousarray(tf.convert_to_tensor(variable.value).numpy())
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()
