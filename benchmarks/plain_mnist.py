"""The plain script for MNIST: the recipe of Keras' distributed-training tutorial in today's Keras.

`python benchmarks/plain_mnist.py MNIST REPLICAS EPOCHS fit|loop [cnn|tiny|wandb]`; `loop` is the hand-written
tf.function loop over data in memory, one replica: the limit; `wandb` is the cnn, logged by W&B offline. Prints JSON.
"""

import json
import os
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import psutil
import tensorflow as tf

PER_REPLICA_BATCH = 64


def digits(root: str) -> tuple[np.ndarray, np.ndarray]:
    import gzip

    with gzip.open(os.path.join(root, "train-images-idx3-ubyte.gz")) as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28, 1)
    with gzip.open(os.path.join(root, "train-labels-idx1-ubyte.gz")) as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    return images, labels


def build(kind: str) -> keras.Model:
    layers = [keras.layers.Conv2D(32, 3, activation="relu"), keras.layers.MaxPooling2D(), keras.layers.Flatten()]
    if kind == "tiny":
        layers = [keras.layers.Flatten()]
    units = 8 if kind == "tiny" else 64
    layers += [keras.layers.Dense(units, activation="relu"), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((28, 28, 1)), *layers])


first_step: list[float] = []
"""Seconds from the start of the process to the end of its first step."""


def fit(images, labels, replicas: int, epochs: int, kind: str) -> list[float]:
    strategy = tf.distribute.get_strategy()
    if replicas > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
        strategy = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])
    batch = PER_REPLICA_BATCH * replicas

    def scale(image, label):
        return tf.cast(image, tf.float32) / 255, label

    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).map(scale).cache().shuffle(10000).batch(batch)
    with strategy.scope():
        model = build(kind)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
    seconds: list[float] = []

    class Times(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.started = time.perf_counter()

        def on_train_batch_end(self, step, logs=None):
            if not first_step:
                first_step.append(time.time() - psutil.Process().create_time())

        def on_epoch_end(self, epoch, logs=None):
            seconds.append(time.perf_counter() - self.started)

    callbacks: list = [Times()]
    if kind == "wandb":
        import wandb
        from wandb.integration.keras import WandbMetricsLogger

        wandb.init(project="benchmark", mode="offline", dir=tempfile.mkdtemp(), settings=wandb.Settings(silent=True))
        callbacks.append(WandbMetricsLogger())
    # Keras under a strategy needs even batches.
    model.fit(dataset.take(len(images) // batch), epochs=epochs, verbose=0, callbacks=callbacks)
    return seconds


def loop(images, labels, epochs: int, kind: str) -> list[float]:
    model, optimizer = build(kind), keras.optimizers.Adam()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    x, y = tf.constant(images), tf.constant(labels.astype(np.int32))
    steps = len(images) // PER_REPLICA_BATCH
    optimizer.build(model.trainable_variables)

    @tf.function
    def epoch(order):
        total = 0.0
        for step in tf.range(steps):
            index = order[step * PER_REPLICA_BATCH : (step + 1) * PER_REPLICA_BATCH]
            inputs = tf.cast(tf.gather(x, index), tf.float32) / 255
            with tf.GradientTape() as tape:
                loss = loss_of(tf.gather(y, index), model(inputs, training=True))
            weights = [variable.value for variable in model.trainable_variables]
            optimizer.apply(tape.gradient(loss, weights), model.trainable_variables)
            total += loss
        return total

    seconds = []
    for _ in range(epochs):
        started = time.perf_counter()
        epoch(tf.random.shuffle(tf.range(len(images)))).numpy()
        seconds.append(time.perf_counter() - started)
    return seconds


def main() -> None:
    root, replicas, epochs, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    kind = sys.argv[5] if len(sys.argv) > 5 else "cnn"
    images, labels = digits(root)
    seconds = loop(images, labels, epochs, kind) if how == "loop" else fit(images, labels, replicas, epochs, kind)
    print(
        "RESULT " + json.dumps({"epoch_seconds": seconds, "first_step_seconds": first_step[0] if first_step else None})
    )


if __name__ == "__main__":
    main()
