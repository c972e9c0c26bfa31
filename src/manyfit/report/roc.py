"""ROC curves of class scores: the area under each, of the examples themselves and of their resamples."""

import numpy as np


class Curves:
    """The ROC curves of the classes, each against the rest; of two classes one, since both are the same.

    Args:
        odds: Of each class, float64 [n, classes]; any numbers that order the examples.
        labels: int [n].
    """

    def __init__(self, odds: np.ndarray, labels: np.ndarray):
        num_classes = odds.shape[1]
        self.classes = np.arange(num_classes) if num_classes > 2 else np.array([1])
        self.num_examples = len(labels)
        self.num_ranks = len(self.classes) * len(labels)
        order = np.argsort(odds, axis=0, kind="stable")[:, self.classes]
        ordered = np.take_along_axis(odds[:, self.classes], order, axis=0)
        new = np.concatenate([np.ones((1, len(self.classes)), bool), ordered[1:] != ordered[:-1]])
        at = np.arange(self.num_examples)[:, None]
        first = np.maximum.accumulate(np.where(new, at, 0), axis=0)
        ends = np.concatenate([new[1:], np.ones((1, len(self.classes)), bool)])
        last = np.minimum.accumulate(np.where(ends, at, self.num_examples)[::-1], axis=0)[::-1]
        self._order = order.T.astype(np.int32)
        own = labels[self._order] == self.classes[:, None]
        self._own_curve, self._own_at = np.nonzero(own)
        self._own_example = self._order[self._own_curve, self._own_at]
        self._before = first[self._own_at, self._own_curve]  # others below: those before the first equal one ...
        self._upto = last[self._own_at, self._own_curve] + 1  # ... and half of those up to the last

    def areas(self, weights: np.ndarray | None = None) -> np.ndarray:
        """The area under each class's curve, float64 [curves]: NaN without examples of the class, or without others.

        It is the Mann-Whitney statistic (Hanley and McNeil, 1982), ties counting half.
        """
        weights = np.ones(self.num_examples) if weights is None else weights
        others = weights[self._order]
        others[self._own_curve, self._own_at] = 0
        below = np.zeros((len(self.classes), self.num_examples + 1))
        np.cumsum(others, axis=1, out=below[:, 1:])
        own = weights[self._own_example]
        beaten = (below[self._own_curve, self._before] + below[self._own_curve, self._upto]) / 2
        wins = np.bincount(self._own_curve, own * beaten, len(self.classes))
        pairs = np.bincount(self._own_curve, own, len(self.classes)) * below[:, -1]
        with np.errstate(invalid="ignore"):
            return np.where(pairs > 0, wins / np.where(pairs > 0, pairs, 1), np.nan)

    def mean_area(self, weights: np.ndarray | None = None) -> float:
        """The mean over the classes that have one; 0 where none has."""
        areas = self.areas(weights)
        known = areas[~np.isnan(areas)]
        return float(known.mean()) if len(known) else 0.0


def log_odds(scores: np.ndarray) -> np.ndarray:
    """log(p / (1 - p)) of the probability of each class, from class scores float64 [n, classes].

    >>> log_odds(np.array([[0.0, 0.0]])).tolist()
    [[0.0, 0.0]]
    """
    rows = np.arange(len(scores))
    best = scores.argmax(axis=-1)
    highest = scores[rows, best]
    raised = np.exp(scores - highest[:, None])
    # 1 - p of a sure prediction has no digits left: the other classes of the highest score are summed without it.
    rest = raised.copy()
    rest[rows, best] = 0
    others = raised.sum(axis=-1, keepdims=True) - raised
    others[rows, best] = rest.sum(axis=-1)
    with np.errstate(divide="ignore"):
        return scores - highest[:, None] - np.log(np.maximum(others, 1e-300))
