"""Fine-tuning MobileNetV2, everything trainable, on pictures in memory: Keras' fit, or a loop written by hand.

`python benchmarks/plain_finetune.py STEPS BATCH SIZE fit|loop`; prints JSON. The first call, which traces, is left out.
"""

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf


def build(size: int) -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((size, size, 3))
    base = keras.applications.MobileNetV2(include_top=False, weights=None, input_shape=(size, size, 3))
    x = keras.layers.GlobalAveragePooling2D()(base(inputs / 127.5 - 1))
    x = keras.layers.Dropout(0.5)(keras.layers.Dense(512, activation="relu")(x))
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def main() -> None:
    steps, batch, size, how = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (batch * 4, size, size, 3), dtype=np.uint8)
    labels = rng.integers(0, 2, batch * 4).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().batch(batch).prefetch(2)
    model, loss_of = build(size), keras.losses.BinaryCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(1e-4)
    times: list[float] = []
    if how == "fit":

        class Times(keras.callbacks.Callback):
            def on_train_batch_end(self, step, logs=None):
                times.append(time.perf_counter())

        model.compile(optimizer, loss_of, metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)])
        model.fit(dataset, steps_per_epoch=steps + 1, epochs=1, verbose=0, callbacks=[Times()])
    else:
        optimizer.build(model.trainable_variables)

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(y[:, None], model(tf.cast(x, tf.float32), training=True))
            weights = [variable.value for variable in model.trainable_variables]
            optimizer.apply(tape.gradient(loss, weights), model.trainable_variables)
            return loss

        for x, y in dataset.take(steps + 1):
            step(x, y).numpy()
            times.append(time.perf_counter())
    print("RESULT " + json.dumps({"images_per_second": batch * steps / (times[-1] - times[0])}))


if __name__ == "__main__":
    main()
