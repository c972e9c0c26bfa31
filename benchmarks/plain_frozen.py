"""The plain script for cats and dogs: frozen MobileNetV2, the recipe of the first write-up in today's Keras.

Sequential map, no cache, Keras' own fit. `python benchmarks/plain_frozen.py PHOTOS WEIGHTS EPOCHS [RATE BATCH]`;
prints JSON.
"""

import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

SIZE = 224


def examples(root: str, split: str, batch: int, shuffle: bool) -> tf.data.Dataset:
    paths, labels = [], []
    for label, name in enumerate(("cats", "dogs")):
        folder = os.path.join(root, split, name)
        for file in sorted(os.listdir(folder)):
            paths.append(os.path.join(folder, file))
            labels.append(label)

    def load(path, label):
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        return tf.image.resize(tf.cast(image, tf.float32) / 127.5 - 1, [SIZE, SIZE]), label

    dataset = tf.data.Dataset.from_tensor_slices((paths, labels))
    if shuffle:
        dataset = dataset.shuffle(len(paths), seed=0)
    return dataset.map(load).batch(batch).prefetch(1)


class Times(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.started = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        seconds.append(time.perf_counter() - self.started)


seconds: list[float] = []


def main() -> None:
    root, weights, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rate, batch = (float(sys.argv[4]), int(sys.argv[5])) if len(sys.argv) > 4 else (1e-3, 32)
    keras.utils.set_random_seed(0)
    base = keras.applications.MobileNetV2(include_top=False, weights=weights, input_shape=(SIZE, SIZE, 3))
    base.trainable = False
    model = keras.Sequential(
        [
            base,
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    accuracy = keras.metrics.BinaryAccuracy(threshold=0.0, name="accuracy")
    model.compile(keras.optimizers.Adam(rate), loss, metrics=[accuracy])
    started = time.perf_counter()
    history = model.fit(
        examples(root, "train", batch, shuffle=True),
        validation_data=examples(root, "validation", batch, shuffle=False),
        epochs=epochs,
        verbose=0,
        callbacks=[Times()],
    ).history
    result = {
        "seconds": time.perf_counter() - started,
        "epoch_seconds": seconds,
        "val_accuracy": history["val_accuracy"],
    }
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
