"""Trains the rehearsal backbone on drawings of every kind but cats and dogs, and writes its weights and facts.

Run as `python -m manyfit.models.rehearsal.train_backbone`; then copy the printed sha256 into the package's `__init__`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
import PIL
import PIL.Image
import tensorflow as tf

from manyfit.data.drawn import CLASSES, OTHER_KINDS, draw
from manyfit.models import rehearsal
from manyfit.models.rehearsal import ALPHA, FACTS_PATH, WEIGHTS_PATH, load_rehearsal_weights, named_weights

SEED = 20_000  # far from the sample's seeds, though no kind is shared with it
STORED_SIZE = 224
TEST_SIZES = (96, 128, 224)
# Each batch is of one of these sizes: features learned at one size alone lose .05 to .1 of accuracy at the others.
TRAIN_SIZES = (96, 96, 96, 128, 128, 128, 160, 224)


def draw_kinds(per_kind: int, seed: int, stream: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw `per_kind` pictures of each kind: uint8 (n, STORED_SIZE, STORED_SIZE, 3) and integer labels (n,)."""

    def one(task: tuple[int, int]) -> np.ndarray:
        label, index = task
        picture = draw(OTHER_KINDS[label], np.random.default_rng([seed, stream, label, index]))
        # A plain bilinear sample, as `tf.image.resize` takes it in the pipeline: no smoothing before shrinking.
        scale = (picture.width / STORED_SIZE, 0, 0, 0, picture.height / STORED_SIZE, 0)
        size = (STORED_SIZE, STORED_SIZE)
        transform, bilinear = PIL.Image.Transform.AFFINE, PIL.Image.Resampling.BILINEAR
        return np.asarray(picture.transform(size, transform, scale, bilinear))

    tasks = [(label, index) for index in range(per_kind) for label in range(len(OTHER_KINDS))]
    with ThreadPoolExecutor(4) as pool:
        images = np.stack(list(pool.map(one, tasks)))
    return images, np.array([label for label, _ in tasks])


def augment(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Crop each image at random, flip half of them, and give the whole batch one of `TRAIN_SIZES`, in -1..1."""
    count = tf.shape(images)[0]
    side = 1.0 / tf.exp(tf.random.uniform([count, 1], np.log(0.9), np.log(1.35)))
    corner = tf.random.uniform([count, 2]) * (1.0 - side)
    top, left = tf.split(corner, 2, axis=1)
    flip = tf.random.uniform([count, 1]) < 0.5
    x_from, x_to = tf.where(flip, left + side, left), tf.where(flip, left, left + side)
    boxes = tf.concat([top, x_from, top + side, x_to], axis=1)
    size = tf.gather(TRAIN_SIZES, tf.random.uniform([], 0, len(TRAIN_SIZES), tf.int32))
    crops = tf.image.crop_and_resize(images, boxes, tf.range(count), [size, size], extrapolation_value=128)
    return crops / 127.5 - 1.0, labels


def make_models(steps: int, peak: float) -> tuple[keras.Model, keras.Model]:
    """Make the backbone and the compiled classifier on top of it."""
    backbone = keras.applications.MobileNetV2(input_shape=(None, None, 3), alpha=ALPHA, include_top=False, weights=None)
    for layer in backbone.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.95  # Keras' .999 leaves the moving statistics behind in a training this short
    features = keras.layers.GlobalAveragePooling2D()(backbone.output)
    logits = keras.layers.Dense(len(OTHER_KINDS))(keras.layers.Dropout(0.2)(features))
    classifier = keras.Model(backbone.input, logits)
    schedule = keras.optimizers.schedules.CosineDecay(peak / 10, steps, warmup_target=peak, warmup_steps=steps // 20)
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


def accuracy_by_size(classifier: keras.Model, images: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Measure the accuracy on whole pictures at each of `TEST_SIZES`."""
    result = {}
    for size in TEST_SIZES:
        inputs = np.asarray(tf.image.resize(images, [size, size])) / 127.5 - 1.0
        result[str(size)] = round(float(np.mean(classifier.predict(inputs, verbose=0).argmax(axis=1) == labels)), 4)
    return result


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-kind", type=int, default=240)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1.5e-3, help="the schedule's peak")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--go-on", action="store_true", help="start from the shipped weights instead of random ones")
    return parser.parse_args()


def main() -> None:
    """Draw, train, save, load again, and record what was reached."""
    options = parse_options()
    started = time.time()
    keras.utils.set_random_seed(options.seed)
    images, labels = draw_kinds(options.per_kind, options.seed, stream=0)
    held_out, held_out_labels = draw_kinds(25, options.seed, stream=1)
    print(f"drew {len(images)} + {len(held_out)} pictures in {time.time() - started:.0f} s", flush=True)
    one_hot = np.eye(len(OTHER_KINDS), dtype=np.float32)
    train = tf.data.Dataset.from_tensor_slices((images, one_hot[labels])).shuffle(2000, seed=options.seed)
    train = train.batch(options.batch, drop_remainder=True).map(augment, num_parallel_calls=2).prefetch(2)
    backbone, classifier = make_models(len(images) // options.batch * options.epochs, options.learning_rate)
    stages = []
    if options.go_on:
        load_rehearsal_weights(backbone)
        stages = json.loads(FACTS_PATH.read_text())["stages"]
    for epoch in range(options.epochs):
        classifier.fit(train, initial_epoch=epoch, epochs=epoch + 1, verbose=2)
        print(accuracy_by_size(classifier, held_out, held_out_labels), flush=True)
    rehearsal.WEIGHTS_SHA256 = save_weights(backbone, WEIGHTS_PATH)
    load_rehearsal_weights(backbone)  # so that the accuracy below is of the rounded weights that ship
    stage = {
        "command": "python -m manyfit.models.rehearsal.train_backbone " + " ".join(sys.argv[1:]),
        "seed": options.seed,
        "pictures": len(images),
        "epochs": options.epochs,
        "seconds": round(time.time() - started),
        "held_out_pictures": len(held_out),
        "held_out_accuracy_by_size": accuracy_by_size(classifier, held_out, held_out_labels),
    }
    write_facts([*stages, stage])


def write_facts(stages: list[dict]) -> None:
    """Write what made the weights beside them."""
    facts = {
        "architecture": f"keras.applications.MobileNetV2(alpha={ALPHA}, include_top=False, weights=None)",
        "input": "RGB, x / 127.5 - 1",
        "kinds": list(OTHER_KINDS),
        "never_shown": list(CLASSES),
        "stages": stages,
        "versions": {
            "python": platform.python_version(),
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "numpy": np.__version__,
            "pillow": PIL.__version__,
        },
        "sha256": rehearsal.WEIGHTS_SHA256,
    }
    FACTS_PATH.write_text(json.dumps(facts, indent=2) + "\n")
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
