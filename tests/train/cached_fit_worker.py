"""Trains a frozen MobileNetV2 with and without the feature cache on R replicas and prints what came out, as JSON.

Run by test_feature_cache.py in a process of its own for each R, since TensorFlow's collectives cannot change theirs.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from manyfit import models
from manyfit.array_store import ArrayStore
from manyfit.config import HeadConfig, MobileNetV2Config, StrategyConfig
from manyfit.data.drawn import CLASSES, draw
from manyfit.data.examples import ImageData, Split
from manyfit.data.pipeline import Feed
from manyfit.models import feature_cache
from manyfit.replicated import ReplicatedModel
from manyfit.strategy import make

SIZE, BATCH, EPOCHS = 96, 8, 3


def drawn(folder: Path) -> ImageData:
    """Drawn cats and dogs as JPEG files."""
    splits = []
    for stream, (name, count) in enumerate((("train", 42), ("validation", 13))):
        paths = [folder / f"{name}-{index}.jpg" for index in range(count)]
        for index, path in enumerate(paths):
            if not path.exists():
                draw(CLASSES[index % 2], np.random.default_rng([3, stream, index])).save(path)
        labels = np.arange(count, dtype=np.int32) % 2
        splits.append(Split(name, labels, paths=tuple(map(str, paths))))
    return ImageData("cats_dogs", "sample", CLASSES, *splits)


def train(place, data: ImageData, store_folder: Path | None) -> dict:
    """The same fit, on pictures or on cached features."""
    keras.utils.set_random_seed(5)
    strategy, told = place.strategy, []
    config = MobileNetV2Config(
        alpha=0.35, image_size=SIZE, weights="imagenet", l2=1e-3, head=HeadConfig(units=32, dropout=0.5)
    )
    report, shape = None, (SIZE, SIZE, 3)
    with strategy.scope():
        whole = models.build(
            config, ImageData("cats_dogs", "sample", CLASSES, data.train, data.validation, rehearsal=True)
        )
        network = feature_cache.head_alone(whole) if store_folder else whole
        model = ReplicatedModel(network.model)
        loss, metrics = models.loss_and_metrics(2)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics)
    if store_folder:
        store = ArrayStore(store_folder, 1e9, told.append)
        data, report = feature_cache.compute(
            whole, data, use="disk", store=store, strategy=strategy, on_gpu=place.on_gpu, notify=told.append
        )
        shape = data.train.images.shape[1:]
    steps, validation_steps = -(-len(data.train) // BATCH), -(-len(data.validation) // BATCH)
    history = model.fit(
        Feed(data.train, BATCH, steps, shape, shuffle_seed=11).distribute(strategy),
        epochs=EPOCHS,
        steps_per_epoch=steps,
        validation_data=Feed(data.validation, BATCH, validation_steps, shape).distribute(strategy),
        validation_steps=validation_steps,
    )
    pictures = tf.stack(
        [tf.image.resize(tf.io.decode_jpeg(tf.io.read_file(path)), (SIZE, SIZE)) for path in paths_of(4)]
    )
    return {
        "history": history.history,
        "outputs": np.asarray(whole.model(tf.cast(pictures, tf.uint8), training=False)).tolist(),
        "report": report and report.as_dict(),
        "told": told,
    }


def paths_of(count: int) -> list[str]:
    """The first validation pictures."""
    return [str(Path(sys.argv[2]) / f"validation-{index}.jpg") for index in range(count)]


def main() -> None:
    """Plain, cached, cached again."""
    replicas, folder = int(sys.argv[1]), Path(sys.argv[2])
    name = "mirrored" if replicas > 1 else "default"
    place = make(StrategyConfig(name=name, replicas=replicas, device="cpu"))
    data = drawn(folder)
    results = [train(place, data, store) for store in (None, folder / "arrays", folder / "arrays")]
    print("RESULT " + json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
