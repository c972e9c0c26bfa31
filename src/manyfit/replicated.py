"""The Keras model whose N replicas give the numbers of one: the loss, the gradient, the step.

One step, on every replica r of R, with its rows i, their mask m_i (1 real, 0 padding) and class weights c_i:

    n     = sum over all replicas of m_i                        real examples of the global batch
    L_r   = sum_i m_i c_i loss_i / n  +  regularisation / R      this replica's share
    g     = sum over all replicas of dL_r/dw                     = the gradient of one replica with all rows

The sum over replicas is the mean over real examples plus the regularisation, whatever R is and however many rows
are padding: it is the loss scaling that TensorFlow's guide to custom training under a strategy derives, with the
number of real examples in place of the batch size. Clipping, weight decay and the optimizer see g itself.
With mixup or cutmix loss_i is the sum over both labels of the row, each by its share and with its class weight.
"""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from manyfit.augment import Augmentation
from manyfit.coupled_layers import couple, real_rows
from manyfit.data.pipeline import num_workers, of_each_replica
from manyfit.epoch_loop import EpochLoop
from manyfit.errors import ConfigError
from manyfit.fused_updates import fuse
from manyfit.peers import alone
from manyfit.precision import LossScale
from manyfit.summing import SUM, sums


class ReplicatedModel(EpochLoop):
    """Trains `network` so that N replicas give the numbers of one.

    Build and compile it inside the strategy's scope; `fit`, `evaluate` and `predict` then take distributed data sets
    of `(x, y, mask)` with the same number of rows on every replica (`manyfit.data.pipeline` makes them). Keras' own
    loops cannot: they reduce the first batch symbolically, need even batches and one step a call.

    Subclass it and override `example_losses` for a training step of your own.

    Args:
        network: A built Keras model from inputs to outputs.
    """

    def __init__(self, network: keras.Model, **kwargs):
        super().__init__(**kwargs)
        if not network.built:
            raise ValueError("The network is not built; expected one whose input shape is known.")
        self.network = network
        self.built = True
        self.skipped_steps = 0
        self.peers = alone()

    def call(self, x, training=None):
        """The outputs of the network for `x`."""
        return self.network(x, training=training)

    def compile(
        self,
        optimizer,
        loss,
        metrics=(),
        *,
        steps_per_execution: int | str = "auto",
        gradient_accumulation: int = 1,
        class_weight: Iterable[float] | None = None,
        sync_batch_norm: bool = True,
        loss_scale: LossScale | None = None,
        on_non_finite: str = "stop",
        jit_compile: bool = False,
        augmentation: Augmentation | None = None,
    ):
        """Set how it learns; inside the scope of the strategy.

        Args:
            optimizer: Any Keras optimizer. It gets gradients that are summed over the replicas already.
            loss: A Keras loss, its name, or a function `(y_true, y_pred)` that gives a value an example.
            metrics: Keras metrics; each is weighted by the mask, so that every real example counts once.
            steps_per_execution: Steps a call, or `auto`.
            gradient_accumulation: Micro-batches that each replica splits its rows into.
            class_weight: One factor a class for the training loss, or None.
            sync_batch_norm: Batch-norm statistics over all replicas.
            loss_scale: The scale of mixed float16, or None.
            on_non_finite: `stop` at a loss or gradient that is not finite, or `skip` that step and count it.
            jit_compile: Compile the arithmetic of a step with XLA; one replica only.
            augmentation: Varies the pictures of every training step; None for the pictures as they are.

        Raises:
            ConfigError: an augmentation that mixes examples, where `example_losses` is not this class's own.
        """
        if augmentation and augmentation.mixes and type(self).example_losses is not ReplicatedModel.example_losses:
            raise ConfigError(
                f"{type(self).__name__} has a training step of its own, which cannot take two labels an example.",
                "Give augment.mixup=0 augment.cutmix=0, or compile the model with a loss instead.",
            )
        super().compile(optimizer=optimizer, loss=loss, jit_compile=False, auto_scale_loss=False)
        # The gradients arrive summed: summing them again inside the optimizer would count every replica R times.
        optimizer._all_reduce_sum_gradients = list
        optimizer.build(self.network.trainable_variables)
        fuse(optimizer)
        couple(self.network, sync_batch_norm=sync_batch_norm)
        loss = keras.losses.get(loss)
        self._example_loss: Callable = loss.call if isinstance(loss, keras.losses.Loss) else loss
        self._loss_mean = keras.metrics.Mean(name="loss")
        self._example_metrics = list(metrics)
        self._loss_scale = loss_scale or LossScale.none()
        self.loss_scale_state = (self._loss_scale.initial, 0)
        self._gradient_accumulation = gradient_accumulation
        self._class_weight = None if class_weight is None else tf.constant(list(class_weight), tf.float32)
        self._on_non_finite = on_non_finite
        self._steps_per_execution = steps_per_execution
        self._jit_compile_step = jit_compile
        self._augmentation = augmentation
        self._train_steps: Any = None
        self._test_steps: Any = None
        self._predict_step: Any = None

    @property
    def metrics(self):
        """The loss and the compiled metrics."""
        return [self._loss_mean, *self._example_metrics]

    # --- the arithmetic of one replica -----------------------------------------------------------------------------

    def example_losses(self, x, y, training: bool):
        """The loss of every row and the outputs: `([rows], outputs)`. Override it for a step of your own.

        It must not average over the rows: the caller weighs them, so that padding counts nothing and every replica's
        rows count alike.
        """
        outputs = self.network(x, training=training)
        return self._losses_of(y, outputs), outputs

    def _losses_of(self, y, outputs) -> tf.Tensor:
        losses = tf.cast(self._example_loss(y, outputs), tf.float32)
        if losses.shape.rank == 1:
            return losses
        return tf.reduce_mean(tf.reshape(losses, [tf.shape(losses)[0], -1]), axis=1)

    def _class_weighted(self, losses, y) -> tf.Tensor:
        if self._class_weight is None:
            return losses
        return losses * tf.gather(self._class_weight, tf.cast(tf.reshape(y, [-1]), tf.int32))

    def _augmented(self, data):
        """The rows of a step as they are trained on: `(x, y, mask)`, and how they are mixed, where they are."""
        if self._augmentation is None:
            return data
        replica = tf.distribute.get_replica_context()
        return self._augmentation(
            *data,
            step=tf.convert_to_tensor(self.optimizer.iterations),
            replica_id=replica.replica_id_in_sync_group,
            num_replicas=replica.num_replicas_in_sync,
            micro_batches=self._gradient_accumulation,
        )

    def _regularization(self) -> tf.Tensor | None:
        return tf.add_n([tf.cast(value, tf.float32) for value in self.network.losses]) if self.network.losses else None

    def _count(self, y, outputs, losses, mask, regularization) -> None:
        losses = losses if regularization is None else losses + regularization
        self._loss_mean.update_state(losses, sample_weight=mask)
        for metric in self._example_metrics:
            metric.update_state(y, outputs, sample_weight=mask)

    def _micro_gradients(self, rows, num_real, num_shares, loss_scale):
        """Gradients and loss of some rows, as their share of the global batch's loss."""
        x, y, mask, *mixed = rows
        share = mask / num_real
        with tf.GradientTape() as tape:
            with real_rows(mask):
                losses, outputs = self.example_losses(x, y, training=True)
            losses = self._class_weighted(losses, y)
            if mixed:
                partner_y, own_share = mixed
                partner_losses = self._class_weighted(self._losses_of(partner_y, outputs), partner_y)
                losses = own_share * losses + (1 - own_share) * partner_losses
            regularization = self._regularization()
            loss = tf.reduce_sum(losses * share)
            if regularization is not None:
                loss += regularization / num_shares
            scaled_loss = loss * loss_scale if self._loss_scale.dynamic else loss
        gradients = tape.gradient(scaled_loss, self._trained(), unconnected_gradients="zero")
        self._count(y, outputs, losses, mask, regularization)
        return [tf.convert_to_tensor(gradient) for gradient in gradients], loss

    def _trained(self) -> list[tf.Variable]:
        return [variable.value for variable in self.network.trainable_variables]

    def _gradients(self, data, loss_scale):
        """The gradient of the whole global batch, its loss, and whether both are finite; in a replica's context."""
        x, y, mask, *mixed = data
        replica = tf.distribute.get_replica_context()
        mask = tf.cast(mask, tf.float32)
        rows = (x, y, mask, *mixed)
        num_real = tf.maximum(replica.all_reduce(SUM, tf.reduce_sum(mask)), 1.0)
        num_shares = tf.cast(replica.num_replicas_in_sync * self._gradient_accumulation, tf.float32)
        if self._gradient_accumulation == 1:
            gradients, loss = self._micro_gradients(rows, num_real, num_shares, loss_scale)
        else:
            gradients, loss = self._accumulate(rows, num_real, num_shares, loss_scale)
        *gradients, loss = sums(replica, [*gradients, loss])
        if self._loss_scale.dynamic:
            gradients = [gradient / tf.cast(loss_scale, gradient.dtype) for gradient in gradients]
        # A sum is finite where all its terms are, and takes one pass over the gradient instead of two.
        totals = [tf.reduce_sum(tf.cast(gradient, tf.float32)) for gradient in gradients]
        return gradients, loss, tf.reduce_all(tf.math.is_finite(tf.stack(totals)))

    def _accumulate(self, rows, num_real, num_shares, loss_scale):
        # Unrolled: batch norm updates its statistics on all replicas at once, which a loop inside one may not enclose.
        count = self._gradient_accumulation
        parts = [tf.split(tensor, count) for tensor in rows]
        totals, loss = [tf.zeros_like(variable) for variable in self._trained()], tf.zeros([])
        for micro in zip(*parts, strict=True):
            # One after the other: side by side they would need the memory of the whole batch.
            with tf.control_dependencies([loss, *totals]):
                micro = [tf.identity(part) for part in micro]
                gradients, micro_loss = self._micro_gradients(micro, num_real, num_shares, loss_scale)
            totals = [total + gradient for total, gradient in zip(totals, gradients, strict=True)]
            loss += micro_loss
        return totals, loss

    def _apply(self, gradients) -> None:
        self.optimizer.apply(gradients, self.network.trainable_variables)

    def _test_step(self, data) -> None:
        x, y, mask = data
        mask = tf.cast(mask, tf.float32)
        losses, outputs = self.example_losses(x, y, training=False)
        self._count(y, outputs, losses, mask, self._regularization())

    # --- the compiled loops over steps ------------------------------------------------------------------------------

    def _first(self, value):
        return self.distribute_strategy.experimental_local_results(value)[0]

    def _make_train_steps(self) -> Callable:
        """A compiled `(iterator, num_steps, scale, good_steps) -> (done, scale, good_steps, skipped, loss, ok)`.

        The number of steps is a tensor: another number needs no new trace. Gradients are applied in a second
        `strategy.run`, since a condition inside one replica may not enclose an update of all of them.
        """
        strategy = self.distribute_strategy
        gradients_of = tf.function(self._gradients, jit_compile=True) if self._jit_compile_step else self._gradients
        may_skip = tf.constant(self._on_non_finite == "skip")

        def step_gradients(data, scale):
            return gradients_of(self._augmented(data), scale)  # XLA cannot resample pictures

        def apply(gradients):
            strategy.run(self._apply, args=(gradients,))
            return tf.constant(True)

        def one_step(iterator, step, scale, good_steps, skipped):
            gradients, loss, finite = strategy.run(
                step_gradients, args=(of_each_replica(next(iterator), strategy), scale)
            )
            loss, finite = self._first(loss), self._first(finite)
            loss_is_finite = tf.math.is_finite(loss)
            good = finite & loss_is_finite
            tf.cond(good, lambda: apply(gradients), lambda: tf.constant(False))
            # Gradients that overflow at a large scale are how a dynamic scale finds its place, not a fault.
            overflow = loss_is_finite & ~finite & (scale > 1.0) & self._loss_scale.dynamic
            scale, good_steps = self._loss_scale.after(scale, good_steps, good)
            return step + 1, scale, good_steps, skipped + tf.cast(~good, tf.int32), loss, good | overflow | may_skip

        def train_steps(iterator, num_steps, scale, good_steps):
            zero = tf.constant(0)
            return tf.while_loop(
                lambda step, scale, good_steps, skipped, loss, ok: (step < num_steps) & ok,
                lambda step, scale, good_steps, skipped, loss, ok: one_step(iterator, step, scale, good_steps, skipped),
                (zero, scale, good_steps, zero, tf.zeros([]), tf.constant(True)),
            )

        return tf.function(train_steps, autograph=False)

    def _make_test_steps(self) -> Callable:
        strategy = self.distribute_strategy

        def one_step(iterator, step):
            strategy.run(self._test_step, args=(of_each_replica(next(iterator), strategy),))
            return step + 1

        def test_steps(iterator, num_steps):
            return tf.while_loop(
                lambda step: step < num_steps, lambda step: one_step(iterator, step), (tf.constant(0),)
            )

        return tf.function(test_steps, autograph=False)

    def _make_predict_step(self) -> Callable:
        strategy = self.distribute_strategy

        workers = num_workers(strategy)

        def outputs_of(data):
            inputs, _, mask = data
            outputs = self.network(inputs, training=False)
            if workers == 1:
                return outputs, mask
            # Every worker wants the rows of all. TensorFlow refuses a tensor that no device has made.
            replica = tf.distribute.get_replica_context()
            return tuple(replica.all_gather(tf.identity(part), axis=0) for part in (outputs, mask))

        def predict_step(data):
            return strategy.run(outputs_of, args=(of_each_replica(data, strategy),))

        return tf.function(predict_step, autograph=False)
