"""Photos alone, from file to a batch in memory: ours, the best bare tf.data pipeline, and what a plain script writes.

`python benchmarks/photo_input.py PHOTOS ours|best|plain|sequential`; prints JSON. Two passes warm up; the
median of five is the result.
`plain` is `map` without `num_parallel_calls`, which tf.data makes parallel by itself today (`map_parallelization`);
`sequential` is the same with that turned off, one picture after the other.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np
import tensorflow as tf

SIZE, BATCH = 224, 32


def bare(paths: list[str], labels: list[int], how: str) -> tf.data.Dataset:
    def load(path, label):
        image = tf.image.resize(tf.io.decode_jpeg(tf.io.read_file(path), channels=3), [SIZE, SIZE])
        return tf.cast(tf.round(image), tf.uint8), label

    dataset = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths)).repeat()
    dataset = dataset.map(load, num_parallel_calls=tf.data.AUTOTUNE if how == "best" else None)
    options = tf.data.Options()
    if how == "sequential":
        options.experimental_optimization.map_parallelization = False
    return dataset.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE).with_options(options)


def main() -> None:
    root, how = Path(sys.argv[1]), sys.argv[2]
    paths = sorted(str(path) for path in (root / "train").glob("*/*.jpg"))
    labels = [int("dogs" in path) for path in paths]
    steps = len(paths) // BATCH
    if how == "ours":
        from manyfit.data.examples import Split
        from manyfit.data.pipeline import Feed

        split = Split("train", np.array(labels, np.int32), paths=tuple(paths))
        dataset = Feed(split, BATCH, steps, (SIZE, SIZE, 3), shuffle_seed=0).distribute(tf.distribute.get_strategy())
    else:
        dataset = bare(paths, labels, how)
    iterator = iter(dataset)
    seconds = []
    for _ in range(2 + 5):
        started = time.perf_counter()
        for _ in range(steps):
            next(iterator)
        seconds.append(time.perf_counter() - started)
    print("RESULT " + json.dumps({"images_per_second": steps * BATCH / statistics.median(seconds[2:])}))


if __name__ == "__main__":
    main()
