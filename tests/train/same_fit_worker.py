"""Trains what it is told on R replicas and prints what came out: one JSON case a line in, one result a line out.

Run by test_same_fit.py in a process of its own for each R, since TensorFlow's collectives cannot change their group.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from manyfit import fused_updates, metrics
from manyfit import optimizer as optimizers
from manyfit.augment import Augmentation
from manyfit.config import SCHEMAS, EMAConfig, StrategyConfig
from manyfit.data.examples import Split
from manyfit.data.pipeline import Feed
from manyfit.precision import LossScale
from manyfit.replicated import ReplicatedModel
from manyfit.strategy import make

fused_updates.SMALLEST_ON_CPU = 0  # the small variables of these networks take the kernels of big ones
NUM_CLASSES, SHAPE = 3, (6, 6, 1)


def examples(num_examples: int) -> Split:
    """Pictures whose class can be learned."""
    rng = np.random.default_rng(7)
    labels = rng.integers(0, NUM_CLASSES, num_examples).astype(np.int32)
    noise = rng.normal(size=(num_examples, *SHAPE)) * 30
    images = (noise + 90 + labels[:, None, None, None] * 30).clip(0, 255).astype(np.uint8)
    return Split("train", labels, images=images)


def network(case: dict) -> keras.Model:
    """Convolution, batch norm where asked, tanh (no kink whose side rounding could decide), dense."""
    keras.utils.set_random_seed(5)
    l2 = keras.regularizers.L2(case["l2"]) if case.get("l2") else None
    inputs = keras.Input(SHAPE, dtype="uint8")
    x = keras.layers.Rescaling(1 / 127.5, -1)(inputs)
    x = keras.layers.Conv2D(4, 3, use_bias=not case.get("batch_norm"), kernel_regularizer=l2)(x)
    if case.get("batch_norm"):
        x = keras.layers.BatchNormalization(momentum=0.8)(x)
    x = keras.layers.Activation("tanh")(x)
    if case.get("dropout"):
        x = keras.layers.SpatialDropout2D(case["dropout"], seed=1)(x)
        x = keras.layers.Dropout(case["dropout"], seed=2)(x)
        x = keras.layers.Dropout(case["dropout"], seed=3, noise_shape=(None, 1, 1, 1))(x)
    x = keras.layers.Flatten()(x)
    return keras.Model(inputs, keras.layers.Dense(NUM_CLASSES, dtype="float32", kernel_regularizer=l2)(x))


def make_optimizer(case: dict) -> keras.optimizers.Optimizer:
    """The case's optimizer, through the project's own builder."""
    config = SCHEMAS["optimizer"][case["optimizer"]](**case.get("optimizer_arguments", {}))
    ema = EMAConfig(case["ema_decay"]) if case.get("ema_decay") else None
    return optimizers.build(config, learning_rate=case.get("learning_rate", 0.02), ema=ema)


def augmentation(case: dict) -> Augmentation | None:
    """The case's augmentation, if it asks for one."""
    dials = case.get("augment")
    return None if dials is None else Augmentation.of(SCHEMAS["augment"]["strong"](**dials), seed=3)


def train(case: dict, strategy: tf.distribute.Strategy) -> dict:
    """The project's own fit."""
    keras.config.set_dtype_policy(case.get("policy", "float32"))
    split, validation = examples(case["num_examples"]), examples(case.get("num_validation", 5))
    micro_batches, rows = case.get("gradient_accumulation", 1), case["batch"]
    with strategy.scope():
        model = ReplicatedModel(network(case))
        model.compile(
            make_optimizer(case),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics.make(case.get("metrics", ()), NUM_CLASSES, NUM_CLASSES),
            steps_per_execution=case.get("steps_per_execution", "auto"),
            gradient_accumulation=micro_batches,
            class_weight=case.get("class_weight"),
            loss_scale=LossScale.of_policy(case.get("policy", "float32")),
            on_non_finite=case.get("on_non_finite", "stop"),
            jit_compile=case.get("jit_compile", False),
            augmentation=augmentation(case),
        )
    steps = -(-case["num_examples"] // (rows * micro_batches))
    validation_steps = -(-len(validation) // rows)
    feed = Feed(split, rows * micro_batches, steps, SHAPE, micro_batches, shuffle_seed=11)
    validation_feed = Feed(validation, rows, validation_steps, SHAPE)
    history = model.fit(
        feed.distribute(strategy),
        epochs=case.get("epochs", 2),
        steps_per_epoch=steps,
        validation_data=validation_feed.distribute(strategy),
        validation_steps=validation_steps,
        callbacks=[Counts()],
    )
    outputs = model.predict(validation_feed.distribute(strategy), steps=validation_steps)
    return {
        "history": history.history,
        "weights": [variable.numpy().tolist() for variable in model.network.weights],
        "outputs": outputs.tolist(),
        "skipped_steps": model.skipped_steps,
        "iterations": int(model.optimizer.iterations.numpy()),
    }


class Counts(keras.callbacks.Callback):
    """Adds the number of examples that each epoch trained and validated on, and the steps seen, to the history."""

    def on_epoch_begin(self, epoch, logs=None):
        self.last_step, self.validated = -1, 0

    def on_train_batch_begin(self, step, logs=None):
        assert step == self.last_step + 1

    def on_train_batch_end(self, step, logs=None):
        self.last_step, self.trained = step, self.model.num_examples

    def on_test_batch_end(self, step, logs=None):
        self.validated = self.model.num_examples

    def on_epoch_end(self, epoch, logs=None):
        logs |= {"num_trained": self.trained, "num_validated": self.validated, "num_steps": self.last_step + 1}


def train_by_hand(case: dict) -> dict:
    """The plain loop on one device that the fit must equal: real rows only, a short last batch, no padding."""
    keras.config.set_dtype_policy("float32")
    split, validation = examples(case["num_examples"]), examples(case.get("num_validation", 5))
    model, optimizer = network(case), make_optimizer(case)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    factors = tf.constant(case.get("class_weight") or [1.0] * NUM_CLASSES)
    rows = case["batch"] * case.get("gradient_accumulation", 1)
    history: dict[str, list[float]] = {name: [] for name in ("loss", "accuracy", "val_loss", "val_accuracy")}
    for epoch in range(case.get("epochs", 2)):
        order = tf.random.experimental.stateless_shuffle(tf.range(len(split)), seed=[11, epoch]).numpy()
        total_loss = total_right = 0.0
        for start in range(0, len(split), rows):
            index = order[start : start + rows]
            x, y = split.images[index], split.labels[index]
            with tf.GradientTape() as tape:
                outputs = model(x, training=True)
                losses = loss_of(y, outputs) * tf.gather(factors, y)
                loss = tf.reduce_mean(losses) + sum(model.losses)
            gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
            optimizer.apply(gradients, model.trainable_variables)
            total_loss += float(loss) * len(index)
            total_right += int(np.sum(np.argmax(outputs, -1) == y))
        history["loss"].append(total_loss / len(split))
        history["accuracy"].append(total_right / len(split))
        outputs = model(validation.images, training=False)
        history["val_loss"].append(float(tf.reduce_mean(loss_of(validation.labels, outputs)) + sum(model.losses)))
        history["val_accuracy"].append(float(np.mean(np.argmax(outputs, -1) == validation.labels)))
    return {"history": history, "weights": [variable.numpy().tolist() for variable in model.weights]}


def main() -> None:
    """Serve cases until standard input ends."""
    replicas, cross_device_ops = int(sys.argv[1]), sys.argv[2]
    place = make(
        StrategyConfig(name="mirrored", replicas=replicas, device="cpu", cross_device_ops=cross_device_ops)
        if replicas > 1
        else StrategyConfig(name="default", device="cpu")
    )
    for line in sys.stdin:
        case = json.loads(line)
        try:
            result = train_by_hand(case) if case.get("by_hand") else train(case, place.strategy)
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
