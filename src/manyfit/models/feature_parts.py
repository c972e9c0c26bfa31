"""The features of one split, computed by several workers: each a part of the rows, in a store that they share."""

from typing import Any, Protocol

import numpy as np

from manyfit.array_store import ArrayStore, key_of
from manyfit.data.decoded import Progress
from manyfit.data.examples import Split
from manyfit.peers import Peers


class Pass(Protocol):
    """What computes features (`feature_cache`)."""

    def facts_of(self, split: Split) -> dict[str, Any]:
        """What determines the features of a split."""
        ...

    def shape_of(self, split: Split) -> tuple[int, int]:
        """The shape of its features."""
        ...

    def fill(self, array: np.ndarray, split: Split, on_progress: Progress) -> None:
        """Compute them into an array."""
        ...


class _Missing(Exception):
    """A part that another worker should have stored."""


def compute_in_parts(cache: Pass, store: ArrayStore, split: Split, peers: Peers, on_progress: Progress) -> None:
    """Put the features of a split into the store, where they are missing; every worker calls it at the same time.

    Workers without a store in common find each other's parts missing: nothing is joined, and each will compute all.
    """
    whole, (num_rows, num_features) = cache.facts_of(split), cache.shape_of(split)
    if all(peers.gather("features are there", store.has(key_of(whole)))):
        return
    bounds = [num_rows * rank // peers.num_workers for rank in range(peers.num_workers + 1)]
    spans = [span for span in zip(bounds, bounds[1:], strict=False) if span[0] < span[1]]
    keys = {span: key_of(whole | {"rows": list(span)}) for span in spans}
    own = (bounds[peers.rank], bounds[peers.rank + 1])
    if own in keys:
        shape, facts = (own[1] - own[0], num_features), whole | {"rows": list(own)}
        part = split.rows(*own)
        store.get_or_make(keys[own], shape, np.float32, lambda array: cache.fill(array, part, on_progress), facts=facts)
    peers.gather("features are computed", True)

    def refuse(array: np.ndarray) -> None:
        raise _Missing

    def join(array: np.ndarray) -> None:
        for (first, last), key in keys.items():
            array[first:last] = store.get_or_make(key, (last - first, num_features), np.float32, refuse).array

    if peers.is_chief and all(map(store.has, keys.values())):
        store.get_or_make(key_of(whole), (num_rows, num_features), np.float32, join, facts=whole)
    for key in keys.values():
        store.release(key)
    peers.gather("features are joined", True)
    if peers.is_chief:
        for key in keys.values():
            store.remove(key)
