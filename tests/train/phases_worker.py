"""Trains runs with phases on R replicas and prints what came out: one JSON case a line in, one result a line out.

Run by test_phases.py in a process of its own for each R, since TensorFlow's collectives cannot change their group. The
backbone is small, so that a run takes seconds; all else is the product's.
"""

import dataclasses
import json
import os
import sys
from io import StringIO
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from manyfit import checkpoint, epoch_loop, fit, fused_updates, models, strategy
from manyfit.config import RunConfig, check
from manyfit.console import Console
from manyfit.models.backbones import build_head
from manyfit.models.network import Network
from manyfit.models.trainable import set_layers

fused_updates.SMALLEST_ON_CPU = 0  # the small variables of this network take the kernels of big ones


def build_small(config, image_shape, num_classes, rehearsal=False) -> Network:
    """Two blocks with batch norm whose statistics are those of nothing, dropout, and the project's head."""
    keras.utils.set_random_seed(3)
    inputs = x = keras.Input(image_shape)
    for number, filters in enumerate((4, 6), start=1):
        x = keras.layers.Conv2D(filters, 3, use_bias=False, name=f"block_{number}_convolution")(x)
        x = keras.layers.BatchNormalization(momentum=0.8, name=f"block_{number}_norm")(x)
        x = keras.layers.Activation("tanh", name=f"block_{number}_tanh")(x)
    x = keras.layers.Dropout(0.2, name="dropout")(x)
    backbone = keras.Model(inputs, x, name="small")
    rng = np.random.default_rng(5)
    for layer in backbone.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            shape = layer.moving_mean.shape
            layer.moving_mean.assign(rng.normal(size=shape) * 0.1)
            layer.moving_variance.assign(rng.uniform(0.5, 2.0, size=shape))
    set_layers(backbone, config.trainable)
    pixels = keras.Input(image_shape, dtype="uint8", name="pixels")
    features = keras.layers.GlobalAveragePooling2D(name="pool")(backbone(keras.layers.Rescaling(1 / 127.5, -1)(pixels)))
    feature_model = keras.Model(pixels, features, name="backbone_features")
    head = build_head(config.head, features.shape[-1], num_classes)
    return Network(keras.Model(pixels, head(features), name="whole"), feature_model, head, config.weights)


models.BUILDERS["application"] = build_small

_make, _made = strategy.make, []


def make_once(*arguments, **named) -> strategy.Place:
    """The place of the first run: a second strategy object in one process meets the collectives' fault."""
    if not _made:
        _made.append(_make(*arguments, **named))
    return _made[0]


strategy.make = make_once


def main() -> None:
    """Serve cases until standard input ends."""
    for line in sys.stdin:
        case = json.loads(line)
        try:
            result = run(case)
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        print("RESULT " + json.dumps(result), flush=True)


def run(case: dict) -> dict:
    """What came of a run: its record, and the variables of its last checkpoint.

    `interrupt`: it fails before the first step of that many epochs.
    """
    from hydra import compose, initialize_config_dir

    from manyfit.command import repository_root

    folder = Path(case["folder"])
    with initialize_config_dir(str(repository_root() / "conf"), version_base="1.3"):
        config: RunConfig = check(compose("config", overrides=case["overrides"]))
    if case.get("resume"):
        config = dataclasses.replace(config, resume=dataclasses.replace(config.resume, folder=str(folder)))
    own, epochs = epoch_loop.EpochLoop._train_epoch, iter(range(case.get("interrupt", 1) - 1))

    def train_epoch(*arguments):
        if "interrupt" in case and next(epochs, None) is None:
            raise RuntimeError("interrupted")
        return own(*arguments)

    epoch_loop.EpochLoop._train_epoch = train_epoch
    try:
        return trained(config, folder)
    finally:
        epoch_loop.EpochLoop._train_epoch = own


def trained(config: RunConfig, folder: Path) -> dict:
    """Train, and read what is left."""
    screen = StringIO()
    record = fit.run(config, outputs=folder.parent, folder=folder, console=Console(stdout=screen, stderr=screen))
    last = checkpoint.load(checkpoint.paths(folder / checkpoint.FOLDER_NAME)[0])
    saved = keras.models.load_model(folder / "model.keras", compile=False)
    return {
        "record": record.data,
        "screen": screen.getvalue(),
        "weights": {name: array.tolist() for name, array in last.arrays.items() if name.startswith("network/")},
        "optimizer": {name: array.tolist() for name, array in last.arrays.items() if name.startswith("optimizer/")},
        "saved": [np.asarray(variable.numpy()).tolist() for variable in saved.weights],
    }


if __name__ == "__main__":
    main()
