"""The head of the first write-up on features in memory: Keras' own fit, or a loop written by hand.

2,000 rows of 1,280 numbers, batch 32. `python benchmarks/plain_head.py EPOCHS fit|loop`; prints JSON.
"""

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

ROWS, FEATURES, BATCH = 2000, 1280, 32


def head() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )


def with_fit(model, loss, features, labels, epochs: int) -> list[float]:
    seconds: list[float] = []

    class Times(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.started = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            seconds.append(time.perf_counter() - self.started)

    accuracy = keras.metrics.BinaryAccuracy(threshold=0.0, name="accuracy")
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=[accuracy])
    dataset = tf.data.Dataset.from_tensor_slices((features, labels)).shuffle(ROWS, seed=0).batch(BATCH).prefetch(1)
    model.fit(dataset, epochs=epochs, verbose=0, callbacks=[Times()])
    return seconds


def with_loop(model, loss, features, labels, epochs: int) -> list[float]:
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    data, targets = tf.constant(features), tf.constant(labels[:, None])

    @tf.function
    def epoch(order):
        for step in tf.range(ROWS // BATCH):
            rows = order[step * BATCH : (step + 1) * BATCH]
            with tf.GradientTape() as tape:
                value = loss(tf.gather(targets, rows), model(tf.gather(data, rows), training=True))
            gradients = tape.gradient(value, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    seconds = []
    for _ in range(epochs):
        started = time.perf_counter()
        epoch(tf.random.shuffle(tf.range(ROWS)))
        seconds.append(time.perf_counter() - started)
    return seconds


def main() -> None:
    epochs, how = int(sys.argv[1]), sys.argv[2]
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    features = rng.random((ROWS, FEATURES), np.float32)
    labels = rng.integers(0, 2, ROWS).astype(np.float32)
    train = {"fit": with_fit, "loop": with_loop}[how]
    seconds = train(head(), keras.losses.BinaryCrossentropy(from_logits=True), features, labels, epochs)
    print("RESULT " + json.dumps({"epoch_seconds": seconds}))


if __name__ == "__main__":
    main()
