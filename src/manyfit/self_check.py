"""Do N replicas give the numbers of one on this very machine: a few steps of the configured model, compared.

Each replica count runs in a process of its own (`python -m manyfit.self_check CONFIG REPLICAS OUT`), since
TensorFlow's collectives cannot change their group; the comparison needs no TensorFlow.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from manyfit.config import RunConfig, ScheduleConfig, SGDConfig, from_yaml, to_yaml
from manyfit.errors import ConfigError, UserError
from manyfit.report.self_check import Comparison

NUM_STEPS = 4
TOLERANCE = {"float32": 1e-4, "mixed_float16": 2e-2, "mixed_bfloat16": 5e-2}
"""Largest relative difference that rounding explains: sums in another order, and on a GPU other kernels."""


def self_check(config: RunConfig) -> Comparison:
    """Train a few steps on one replica and on the configured number, with the same global batch, and compare.

    Raises:
        UserError: what was asked cannot be had, or a child process ended without a result.
    """
    with tempfile.TemporaryDirectory(prefix="manyfit-check-") as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
        many = _run(folder, "asked")
        if many["num_replicas"] == 1:
            raise ConfigError(
                "There is one replica only: nothing to compare.",
                "Give strategy=mirrored on several GPUs, or strategy.device=cpu strategy.replicas=4.",
            )
        one = _run(folder, "one", global_batch_size=many["global_batch_size"])
        difference, worst = _weight_difference(folder / "one.npz", folder / "asked.npz")
    losses = np.stack([one["losses"], many["losses"]], axis=1)
    tolerance = TOLERANCE[config.precision.name]
    return Comparison(many["num_replicas"], tuple(many["devices"]), losses, difference, worst, tolerance)


def _run(folder: Path, name: str, global_batch_size: int = 0) -> dict:
    command = [sys.executable, "-m", "manyfit.self_check", str(folder), name, str(global_batch_size)]
    child = subprocess.run(command, capture_output=True, text=True, env=_environment())
    result = folder / f"{name}.json"
    if child.returncode or not result.exists():
        lines = [line for line in child.stderr.strip().splitlines() if line.strip()]
        message = child.stdout.strip() if child.returncode == ConfigError.exit_code else "\n".join(lines[-12:])
        error = ConfigError if child.returncode == ConfigError.exit_code else UserError
        raise error(message or f"The check's process ended with code {child.returncode} and said nothing.")
    return json.loads(result.read_text())


def _environment() -> dict[str, str]:
    source = str(Path(__file__).resolve().parents[1])
    paths = [source, os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _weight_difference(one: Path, many: Path) -> tuple[float, str]:
    worst = (0.0, "")
    with np.load(one) as first, np.load(many) as second:
        for name in first.files:
            scale = max(float(np.max(np.abs(first[name]), initial=0.0)), 1e-6)
            difference = float(np.max(np.abs(first[name] - second[name]), initial=0.0)) / scale
            if not difference <= worst[0]:  # NaN is the worst of all
                worst = (difference, name)
    return worst


def train_few_steps(config: RunConfig, steps: int = NUM_STEPS) -> tuple[dict, dict[str, np.ndarray]]:
    """Losses of the first steps, where they ran, and the weights after them; in a process of its own."""
    import keras
    import tensorflow as tf

    from manyfit import assembly, models, strategy
    from manyfit import data as data_sets

    place = strategy.make(config.strategy, jit_compile=config.jit_compile)
    # TensorFloat-32, on by default on newer GPUs, rounds products to 10 bits, and not for every batch size alike.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.precision.name)
    data = data_sets.load(config.data)
    plan = assembly.plan_batches(config, data, place)
    with place.strategy.scope():
        network = models.build(config.model, data)
        model = assembly.compiled(replace(config, steps_per_execution=1), plan, network, data)
    losses: list[float] = []

    class KeepLosses(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            losses.append((logs or {})["loss"])

    train, _ = assembly.feeds(config, plan, data)
    model.fit(train.distribute(place.strategy), steps_per_epoch=steps, callbacks=[KeepLosses()])
    facts = {
        "num_replicas": place.num_replicas,
        "devices": place.devices,
        "global_batch_size": plan.global_batch_size,
        "losses": losses,
    }
    return facts, {variable.path: variable.numpy() for variable in model.network.weights}


def with_sgd(config: RunConfig) -> RunConfig:
    """The config with plain gradient descent: an adaptive optimizer makes large steps of gradients that are only
    rounding (a bias before batch norm has no other), and would report them as a difference."""
    return replace(config, optimizer=SGDConfig(learning_rate=0.01), schedule=ScheduleConfig())


def main(folder: Path, name: str, global_batch_size: int) -> int:
    """The child process: train and leave the numbers in `folder`."""
    config = from_yaml((folder / "config.yaml").read_text(encoding="utf-8"))
    if name == "one":
        devices = config.strategy.devices[:1] if config.strategy.devices else None
        config = replace(
            config,
            strategy=replace(config.strategy, replicas=1, devices=devices),
            batch=replace(config.batch, per_replica_batch_size=None, global_batch_size=global_batch_size),
        )
    try:
        facts, weights = train_few_steps(with_sgd(config))
    except UserError as error:
        print(error)
        return error.exit_code
    np.savez(folder / f"{name}.npz", **{path.replace("/", "|"): value for path, value in weights.items()})
    (folder / f"{name}.json").write_text(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
