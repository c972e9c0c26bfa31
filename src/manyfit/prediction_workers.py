"""Predictions by several workers: each reads and predicts its blocks of the files, and all get all in order."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from manyfit.peers import Peers
from manyfit.prediction import Prediction, Predictor, Unreadable


def stream_of_all(predictor: Predictor, paths: Sequence[str], peers: Peers) -> Iterator[Prediction | Unreadable]:
    """What comes of each file, in the order of `paths`, on every worker; each calls it with the same files.

    A worker takes every `num_workers`-th block, of as many files as its replicas predict in a call. Nothing is reduced,
    so that each worker has a strategy of its own.
    """
    if peers.num_workers == 1:
        yield from predictor.stream(paths)
        return
    peers.agree("replicas", {"replicas of a worker": predictor.place.num_replicas})
    size, count = predictor.most_rows * predictor.place.num_replicas, peers.num_workers
    blocks = [paths[first : first + size] for first in range(0, len(paths), size)]
    own = predictor.stream([path for block in blocks[peers.rank :: count] for path in block])
    for first in range(0, len(blocks), count):
        mine = first + peers.rank
        done = list(islice(own, len(blocks[mine]))) if mine < len(blocks) else []
        for told in peers.gather("predictions", [_told(one) for one in done]):
            yield from map(_heard, told)


def _told(one: Prediction | Unreadable) -> list[Any]:
    return [one.path, one.reason if isinstance(one, Unreadable) else one.probabilities.tolist()]


def _heard(told: list[Any]) -> Prediction | Unreadable:
    path, what = told
    return Unreadable(path, what) if isinstance(what, str) else Prediction(path, np.asarray(what, np.float64))
