"""Cross-entropy with smoothed labels, and the focal loss, of class scores (logits)."""

import keras
import tensorflow as tf


class ClassLoss(keras.losses.Loss):
    """The cross-entropy of one score for two classes, or of a score a class.

    With K classes, p the probability of the true class and q_k those of all:

        loss = (1 - p)^gamma * [ -(1 - s) log p - s / K * sum_k log q_k ]

    s: Szegedy et al. 2016, "Rethinking the Inception architecture", section 7. gamma: Lin et al. 2017, "Focal loss for
    dense object detection", equation 4, without its class weights (`class_weight` has those).

    Args:
        label_smoothing: s, from 0 to below 1.
        focal_gamma: gamma; 0 for none.
        outputs: Scores an example: 1, or the number of classes.
    """

    def __init__(self, label_smoothing: float, focal_gamma: float, outputs: int):
        super().__init__(name="loss")
        self._smoothing = label_smoothing
        self._gamma = focal_gamma
        self._outputs = outputs

    def call(self, y_true, y_pred):
        """The loss of every row: float32 [rows]."""
        labels = tf.cast(tf.reshape(y_true, [-1]), tf.int32)
        scores = tf.cast(y_pred, tf.float32)
        if self._outputs == 1:
            score = tf.reshape(scores, [-1])
            logs = tf.stack([tf.math.log_sigmoid(-score), tf.math.log_sigmoid(score)], axis=1)
        else:
            logs = tf.nn.log_softmax(scores)
        log_true = tf.gather(logs, labels, axis=1, batch_dims=1)
        losses = -(1 - self._smoothing) * log_true - self._smoothing * tf.reduce_mean(logs, axis=1)
        if self._gamma:
            # 1 - p as exp would give 0 with an infinite slope where p is 1 and gamma is below 1.
            losses *= tf.pow(tf.maximum(-tf.math.expm1(log_true), 1e-7), self._gamma)
        return losses
