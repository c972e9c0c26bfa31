"""Trains what it is told on GPUs and prints what came out: `gpu_worker.py WHERE CROSS_DEVICE_OPS < CASE`.

WHERE is `one` (the first GPU), `all` (every GPU) or `split` (the first GPU as two logical ones); `cpu` trains on two
logical CPU devices, to try the worker out. A case is what tests/train/same_fit_worker.py takes.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

import tensorflow as tf
from same_fit_worker import train

from manyfit.config import StrategyConfig
from manyfit.strategy import make

SPLIT_MEGABYTES = 2048


def strategy_on(where: str, cross_device_ops: str) -> tf.distribute.Strategy:
    """The strategy over the devices of `where`."""
    if where == "one":
        return make(StrategyConfig(replicas=1, device="gpu")).strategy
    if where == "all":
        return make(StrategyConfig(device="gpu", cross_device_ops=cross_device_ops)).strategy
    if where == "cpu":
        return make(StrategyConfig(device="cpu", replicas=2, cross_device_ops=cross_device_ops)).strategy
    gpu = tf.config.list_physical_devices("GPU")[0]
    tf.config.set_visible_devices([gpu], "GPU")
    halves = [tf.config.LogicalDeviceConfiguration(memory_limit=SPLIT_MEGABYTES)] * 2
    tf.config.set_logical_device_configuration(gpu, halves)
    # NCCL refuses two ranks on one GPU.
    return tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"], tf.distribute.HierarchicalCopyAllReduce(num_packs=1))


def main() -> None:
    """Train the one case on standard input."""
    where, cross_device_ops = sys.argv[1], sys.argv[2]
    strategy = strategy_on(where, cross_device_ops)
    # TensorFloat-32 rounds the factors of a product to 10 bits: no bound on a difference in float32 would hold.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    result = train(json.load(sys.stdin), strategy)
    growth = [tf.config.experimental.get_memory_growth(gpu) for gpu in tf.config.get_visible_devices("GPU")]
    print("RESULT " + json.dumps(result | {"num_replicas": strategy.num_replicas_in_sync, "memory_growth": growth}))


if __name__ == "__main__":
    main()
