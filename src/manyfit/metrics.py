"""What is counted of class scores beside the loss: exact over the whole set, whatever the replicas and the padding.

Each metric adds up counts, weighted by the mask, in variables of its own on every replica, which are summed when it is
read: the value of N replicas is that of one. Keras' own metrics are taken where they fit. Its `AUC` has 200 thresholds
between 0 and 1, where the scores of a sure model crowd at both ends, and its `F1Score` counts a tie as several
predictions; both count a class without examples as 0.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from manyfit.schema import metrics as words_of

NUM_BINS = 15
"""Of the calibration error."""
AUC_BINS = 1024
_AUC_SCALE = 8.0
"""Log odds z are counted at z / (8 + |z|): narrow bins where most are, and no end however sure a model is."""


def make(words: Sequence[str], num_classes: int, outputs: int) -> list[keras.metrics.Metric]:
    """The accuracy, then the metrics that the words stand for; call it inside the scope of the strategy.

    Args:
        words: Checked by `manyfit.schema.metrics`.
        outputs: Scores of an example: one for two classes, or one a class.

    Raises:
        ConfigError: a metric that says nothing of so many classes.
    """
    words_of.check_classes(words, num_classes)
    if outputs == 1:
        accuracy: keras.metrics.Metric = keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)
    else:
        accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
    others = [word for word in words_of.names(words) if word not in words_of.ALWAYS]
    return [accuracy, *(_one(word, num_classes) for word in others)]


def _one(word: str, num_classes: int) -> keras.metrics.Metric:
    if (k := words_of.top_k(word)) is not None:
        return keras.metrics.SparseTopKCategoricalAccuracy(k=k, name=word)
    return {"auc": AUC, "f1": MacroF1, "calibration_error": CalibrationError}[word](num_classes, name=word)


class _Counts(keras.metrics.Metric):
    """A metric of float32 counts, which are exact up to 2^24 examples each.

    Args:
        num_classes: Of the data.
        shape: Of the counts.
    """

    def __init__(self, num_classes: int, shape: tuple[int, ...], name: str):
        super().__init__(name=name, dtype="float32")
        self.num_classes = num_classes
        self.counts = self.add_variable(shape, "zeros", dtype="float32", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None) -> None:
        """Add rows: labels [n] or [n, 1], class scores [n, classes] or [n, 1], weights [n] or None."""
        labels = tf.cast(tf.reshape(y_true, [-1]), tf.int32)
        scores = tf.cast(y_pred, tf.float32)
        if scores.shape[-1] == 1:
            scores = tf.concat([tf.zeros_like(scores), scores], axis=-1)
        weights = tf.ones_like(scores[:, 0]) if sample_weight is None else tf.cast(sample_weight, tf.float32)
        self.counts.assign_add(self.counted(labels, scores, tf.reshape(weights, [-1])))

    def counted(self, labels: tf.Tensor, scores: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """What the rows add to the counts: labels int32 [n], scores float32 [n, classes], weights float32 [n]."""
        raise NotImplementedError

    def read(self) -> tf.Tensor:
        """The counts of all replicas."""
        return keras.ops.convert_to_tensor(self.counts)

    def reset_state(self) -> None:
        """Begin anew."""
        self.counts.assign(tf.zeros(self.counts.shape))


class MacroF1(_Counts):
    """The mean F1 of the classes, F1 = 2 TP / (examples + predictions); the prediction is the class of highest score.

    A class with neither examples nor predictions does not count (as in scikit-learn, whose classes are those that it
    meets).
    """

    def __init__(self, num_classes: int, name: str = "f1"):
        super().__init__(num_classes, (3, num_classes), name)

    def counted(self, labels, scores, weights):
        """True positives, examples and predictions of each class."""
        predicted = tf.argmax(scores, axis=-1, output_type=tf.int32)
        right = weights * tf.cast(labels == predicted, tf.float32)
        pairs = ((right, labels), (weights, labels), (weights, predicted))
        return tf.stack([tf.math.unsorted_segment_sum(values, at, self.num_classes) for values, at in pairs])

    def result(self):
        """From 0 to 1; 0 of nothing."""
        right, there, predicted = tf.unstack(self.read())
        met = tf.cast(there + predicted > 0, tf.float32)
        each = tf.math.divide_no_nan(2 * right, there + predicted)
        return tf.math.divide_no_nan(tf.reduce_sum(each), tf.reduce_sum(met))


class CalibrationError(_Counts):
    """The expected calibration error: by how much confidence and accuracy differ, on average over the examples.

    Guo et al. 2017, "On calibration of modern neural networks", equations 2, 3 and 5: 15 bins of equal width,
    ((m-1)/15, m/15]; the confidence is the probability of the predicted class, also with two classes.
    """

    def __init__(self, num_classes: int, name: str = "calibration_error"):
        super().__init__(num_classes, (3, NUM_BINS), name)

    def counted(self, labels, scores, weights):
        """Examples, right ones and the sum of confidences in each bin."""
        predicted = tf.argmax(scores, axis=-1, output_type=tf.int32)
        confidence = tf.reduce_max(tf.nn.softmax(scores), axis=-1)
        bins = tf.clip_by_value(tf.cast(tf.math.ceil(confidence * NUM_BINS), tf.int32) - 1, 0, NUM_BINS - 1)
        right = weights * tf.cast(labels == predicted, tf.float32)
        parts = (weights, right, weights * confidence)
        return tf.stack([tf.math.unsorted_segment_sum(values, bins, NUM_BINS) for values in parts])

    def result(self):
        """From 0 to 1; 0 of nothing."""
        there, right, confidence = tf.unstack(self.read())
        return tf.math.divide_no_nan(tf.reduce_sum(tf.abs(right - confidence)), tf.reduce_sum(there))


class AUC(_Counts):
    """The area under the ROC curve: the mean over the classes, each against the rest; of two classes the plain one.

    It is the chance that an example of the class has a higher probability of it than one of another class, ties
    counting half. The log odds of the probabilities are counted in 1,024 bins (0.016 wide at even odds, 0.14 at 16),
    which keeps their order but within a bin: what is read differs from the exact value by at most half the sum over the
    bins of (share of the class's examples there) x (share of the others' there), `bound`. A class without examples, or
    without others, does not count.
    """

    def __init__(self, num_classes: int, name: str = "auc"):
        # Of two classes, one against the rest is the other against the rest.
        self.num_curves = 1 if num_classes == 2 else num_classes
        super().__init__(num_classes, (2, self.num_curves, AUC_BINS), name)

    def counted(self, labels, scores, weights):
        """Examples of other classes, and of the class, in each bin of each class."""
        odds = log_odds(scores)[:, -self.num_curves :]
        first = self.num_classes - self.num_curves
        squeezed = odds / (_AUC_SCALE + tf.abs(odds))
        bins = tf.cast((squeezed + 1) * (AUC_BINS / 2), tf.int32)
        curves = tf.range(self.num_curves)[None, :]
        own = tf.cast(labels[:, None] == curves + first, tf.int32)
        at = (own * self.num_curves + curves) * AUC_BINS + tf.minimum(bins, AUC_BINS - 1)
        values = tf.broadcast_to(weights[:, None], tf.shape(at))
        size = 2 * self.num_curves * AUC_BINS
        counts = tf.math.unsorted_segment_sum(tf.reshape(values, [-1]), tf.reshape(at, [-1]), size)
        return tf.reshape(counts, self.counts.shape)

    def result(self):
        """From 0 to 1; 0 where no class has both examples and others."""
        others, own, known = self._shares()
        below = tf.cumsum(others, axis=-1, exclusive=True) + others / 2
        each = tf.reduce_sum(own * below, axis=-1)
        return tf.math.divide_no_nan(tf.reduce_sum(each * known), tf.reduce_sum(known))

    def bound(self):
        """The largest difference of the result from the exact value."""
        others, own, known = self._shares()
        each = tf.reduce_sum(own * others, axis=-1) / 2
        return tf.math.divide_no_nan(tf.reduce_sum(each * known), tf.reduce_sum(known))

    def _shares(self) -> tuple[Any, Any, Any]:
        """Shares of the others' and of the class's examples in each bin, and which classes have both."""
        others, own = tf.unstack(tf.cast(self.read(), tf.float64))
        totals = [tf.reduce_sum(one, axis=-1, keepdims=True) for one in (others, own)]
        shares = [tf.math.divide_no_nan(one, total) for one, total in zip((others, own), totals, strict=True)]
        known = tf.cast(tf.reduce_min(tf.stack(totals), axis=0)[:, 0] > 0, tf.float64)
        return shares[0], shares[1], known


def log_odds(scores: tf.Tensor) -> tf.Tensor:
    """log(p / (1 - p)) of the probability of each class, from class scores [n, classes]: the order of p, but finer.

    The scores of the other classes are summed apart, since 1 - p of a sure prediction has no digits left.
    """
    if scores.shape[-1] == 2:
        difference = scores[:, 1:] - scores[:, :1]
        return tf.concat([-difference, difference], axis=-1)
    highest = tf.reduce_max(scores, axis=-1, keepdims=True)
    raised = tf.exp(scores - highest)
    total = tf.reduce_sum(raised, axis=-1, keepdims=True)
    # Of the class of highest score itself, the others are summed without it; for the rest the difference is safe.
    at = tf.one_hot(tf.argmax(scores, axis=-1), scores.shape[-1])
    others_of_highest = tf.reduce_sum(raised * (1 - at), axis=-1, keepdims=True)
    others = tf.where(at > 0, others_of_highest, total - raised)
    return scores - highest - tf.math.log(tf.maximum(others, 1e-37))
