"""One worker of `benchmarks/ring.py`: times the project's own step on a dense model, with its reductions and without.

`ring_worker.py RESULT PARAMETERS ROWS ROUNDS VARIABLES`, started as `manyfit.local_workers` starts workers. Rank 0
writes RESULT.
"""

import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from manyfit.cluster import resolve
from manyfit.peers import Peers, assemble
from manyfit.quiet import quiet_tensorflow
from manyfit.schema.place import MultiWorkerConfig

FEATURES = 1024
"""Inputs of each variable."""
ROUND_SECONDS = 0.25
"""About what a round of one kind of step takes; each round runs all kinds, so that what drifts meets them alike."""

WITH, WITHOUT, MEETING = "with", "without", "meeting"


def measure(peers: Peers, config: MultiWorkerConfig, parameters: int, rows: int, rounds: int, variables: int) -> dict:
    """Seconds a step of each kind, round by round, and the bytes that the loopback device sent meanwhile."""
    import keras
    import psutil
    import tensorflow as tf

    from manyfit import probe, strategy
    from manyfit.replicated import ReplicatedModel

    place = strategy.make(config, cluster=peers.cluster)
    units = max(1, round(parameters / FEATURES / variables))
    with place.strategy.scope():
        inputs = keras.Input((FEATURES,))
        parts = [keras.layers.Dense(units, use_bias=False)(inputs) for _ in range(variables)]
        network = keras.Model(inputs, keras.layers.Concatenate()(parts) if variables > 1 else parts[0])
        model = ReplicatedModel(network)
        model.peers = peers
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(1e-4), loss)
    stack = [1] if place.num_replicas > 1 else []
    part = (tf.ones([*stack, rows, FEATURES]), tf.zeros([*stack, rows], tf.int32), tf.ones([*stack, rows]))
    made = {WITH: model._make_train_steps()}
    iterators = {name: iter(probe._repeated([part], place.strategy)) for name in (WITH, WITHOUT, MEETING)}

    def call(name: str, steps: int) -> float:
        peers.broadcast("together", steps)
        started = time.perf_counter()
        done, *_ = made[name](iterators[name], tf.constant(steps), *model._scale_state)
        assert int(done) == steps
        return (time.perf_counter() - started) / steps

    call(WITH, 1)  # traces
    if place.num_replicas > 1:
        for name in (WITHOUT, MEETING):
            made[name] = model._make_train_steps()
            with probe._without_all_reduce(meeting=name == MEETING):
                call(name, 1)
    first = {name: max(call(name, 2), 1e-6) for name in made}
    steps = {name: max(2, min(200, round(ROUND_SECONDS / seconds))) for name, seconds in first.items()}
    steps = peers.broadcast("steps", steps)
    seconds: dict[str, list[float]] = {name: [] for name in made}
    sent: list[float] = []
    for _ in range(rounds):
        for name in made:
            before = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
            seconds[name].append(call(name, steps[name]))
            if name == WITH:
                sent.append((psutil.net_io_counters(pernic=True)["lo"].bytes_sent - before) / steps[name])
    return {
        "workers": peers.num_workers,
        "parameters": FEATURES * variables * units,
        "variables": variables,
        "rows": rows,
        "steps": steps,
        "seconds": seconds,
        "loopback_bytes": statistics.median(sent),
    }


def main() -> None:
    target, parameters, rows, rounds, variables = Path(sys.argv[1]), *map(int, sys.argv[2:6])
    config = MultiWorkerConfig(device="cpu", communication="ring")
    cluster = resolve(config)
    assert cluster is not None
    with assemble(cluster, seconds=120, facts={}) as peers:
        with quiet_tensorflow(False):
            import tensorflow  # noqa: F401
        found = measure(peers, config, parameters, rows, rounds, variables)
        peers.broadcast("measured", True)
    if cluster.rank == 0:
        target.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
