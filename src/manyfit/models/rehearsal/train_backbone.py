"""Trains the rehearsal backbone on drawings of every kind but cats and dogs, and writes its weights and facts.

Run as `python -m manyfit.models.rehearsal.train_backbone`; then copy the printed sha256 into the package's `__init__`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
import PIL
import tensorflow as tf

from manyfit.data.drawn import CLASSES, OTHER_KINDS, draw
from manyfit.models.rehearsal import ALPHA, FACTS_PATH, WEIGHTS_PATH, load_rehearsal_weights, named_weights

SEED = 20_000  # far from the sample's seeds, though no kind is shared with it
STORED_SIZE = 144
TRAIN_SIZE = 112


def draw_kinds(per_kind: int, stream: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw `per_kind` pictures of each kind: uint8 (n, STORED_SIZE, STORED_SIZE, 3) and integer labels (n,)."""

    def one(task: tuple[int, int]) -> np.ndarray:
        label, index = task
        picture = draw(OTHER_KINDS[label], np.random.default_rng([SEED, stream, label, index]))
        return np.asarray(picture.resize((STORED_SIZE, STORED_SIZE), PIL.Image.Resampling.BILINEAR))

    tasks = [(label, index) for index in range(per_kind) for label in range(len(OTHER_KINDS))]
    with ThreadPoolExecutor(4) as pool:
        images = np.stack(list(pool.map(one, tasks)))
    return images, np.array([label for label, _ in tasks])


def augment(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Crop each image of a batch at a random place and zoom, flip half of them, and scale to -1..1.

    The zoom, .85 to 1.4 of the picture, is what makes the features work at other input sizes than the trained one.
    """
    count = tf.shape(images)[0]
    side = 1.0 / tf.exp(tf.random.uniform([count, 1], np.log(0.85), np.log(1.4)))
    corner = tf.random.uniform([count, 2]) * (1.0 - side)
    top, left = tf.split(corner, 2, axis=1)
    flip = tf.random.uniform([count, 1]) < 0.5
    x_from, x_to = tf.where(flip, left + side, left), tf.where(flip, left, left + side)
    boxes = tf.concat([top, x_from, top + side, x_to], axis=1)
    crops = tf.image.crop_and_resize(images, boxes, tf.range(count), [TRAIN_SIZE, TRAIN_SIZE], extrapolation_value=128)
    return crops / 127.5 - 1.0, labels


def make_models(steps: int) -> tuple[keras.Model, keras.Model]:
    """Make the backbone and the compiled classifier on top of it."""
    backbone = keras.applications.MobileNetV2(
        input_shape=(TRAIN_SIZE, TRAIN_SIZE, 3), alpha=ALPHA, include_top=False, weights=None
    )
    for layer in backbone.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.9  # Keras' .999 leaves the moving statistics behind in a training this short
    features = keras.layers.GlobalAveragePooling2D()(backbone.output)
    logits = keras.layers.Dense(len(OTHER_KINDS))(keras.layers.Dropout(0.2)(features))
    classifier = keras.Model(backbone.input, logits)
    schedule = keras.optimizers.schedules.CosineDecay(3e-4, steps, warmup_target=3e-3, warmup_steps=steps // 20)
    classifier.compile(
        keras.optimizers.Adam(schedule),
        keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.05),
        metrics=["accuracy"],
    )
    return backbone, classifier


def save_weights(backbone: keras.Model, path: Path) -> str:
    """Write the weights as an npz without pickles, kernels in float16, and return its sha256."""
    arrays = {}
    for name, variable in named_weights(backbone):
        values = np.asarray(variable)
        # Batch-norm variances can lie below float16's range; only the kernels weigh anything.
        arrays[name] = values.astype(np.float16) if "kernel" in name else values
    np.savez_compressed(path, allow_pickle=False, **arrays)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    """Draw, train, save, load again, and record what was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-kind", type=int, default=350)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--weights", type=Path, default=WEIGHTS_PATH)
    parser.add_argument("--facts", type=Path, default=FACTS_PATH)
    options = parser.parse_args()
    started = time.time()
    keras.utils.set_random_seed(SEED)
    images, labels = draw_kinds(options.per_kind, stream=0)
    held_out, held_out_labels = draw_kinds(25, stream=1)
    print(f"drew {len(images)} + {len(held_out)} pictures in {time.time() - started:.0f} s", flush=True)
    one_hot = np.eye(len(OTHER_KINDS), dtype=np.float32)
    steps = len(images) // options.batch * options.epochs
    train = tf.data.Dataset.from_tensor_slices((images, one_hot[labels])).shuffle(len(images), seed=SEED)
    train = train.batch(options.batch, drop_remainder=True).map(augment, num_parallel_calls=2).prefetch(2)
    backbone, classifier = make_models(steps)
    resized = np.asarray(tf.image.resize(held_out, [TRAIN_SIZE, TRAIN_SIZE])) / 127.5 - 1.0
    classifier.fit(train, epochs=options.epochs, validation_data=(resized, one_hot[held_out_labels]), verbose=2)
    sha256 = save_weights(backbone, options.weights)
    if options.weights == WEIGHTS_PATH:
        import manyfit.models.rehearsal as package

        package.WEIGHTS_SHA256 = sha256
        load_rehearsal_weights(backbone)  # so that the accuracy below is of the rounded weights that ship
    accuracy = classifier.evaluate(resized, one_hot[held_out_labels], verbose=0)[1]
    facts = {
        "script": "python -m manyfit.models.rehearsal.train_backbone "
        f"--per-kind {options.per_kind} --epochs {options.epochs} --batch {options.batch}",
        "architecture": f"keras.applications.MobileNetV2(alpha={ALPHA}, include_top=False, weights=None)",
        "input": f"RGB, x / 127.5 - 1; trained at {TRAIN_SIZE} px",
        "kinds": list(OTHER_KINDS),
        "never_shown": list(CLASSES),
        "pictures": len(images),
        "held_out_pictures": len(held_out),
        "held_out_accuracy": round(float(accuracy), 4),
        "seed": SEED,
        "seconds": round(time.time() - started),
        "versions": {
            "python": platform.python_version(),
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "numpy": np.__version__,
            "pillow": PIL.__version__,
        },
        "sha256": sha256,
    }
    options.facts.write_text(json.dumps(facts, indent=2) + "\n")
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
