"""Engines: the fastest exact ways to run a frozen backbone, and one pass of pictures through one of them.

An engine counts as exact when its features differ from those of the Keras model by at most 1e-4 of the largest, or by
what shorter arithmetic rounds; the first pictures of every run are looked at.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from manyfit.data.pipeline import replicas_of_this_worker
from manyfit.processes import num_cores
from manyfit.quiet import quiet_tensorflow

TOLERANCES = {"float32": 1e-4, "tensor_float_32": 2e-3, "float16": 5e-3, "bfloat16": 5e-2}
"""The largest difference that counts as none, by the arithmetic of the backbone, as a share of the largest feature."""

ROWS_PER_GPU = 32
ROWS_OF_CPU = 16
LARGE_PICTURE = 128 * 128
"""From so many pixels on, one picture at a time is fastest on a CPU: what it makes of it stays in the core's cache."""

LITERT_PAYS_FROM = 350
"""Pictures from which LiteRT gains more than making it costs (MobileNetV2 at 224 pixels, 2 CPU cores)."""

CHECKED_ROWS = 8
_ROWS_OF_SMALL_PICTURES = 4
_PROGRESS_SECONDS = 0.2

Features = Callable[[np.ndarray], np.ndarray]
"""Up to `Engine.rows` pictures, uint8 [n, height, width, channels], to float32 [n, num_features]."""


class _CannotRun(Exception):
    """Why an engine is not to be had here, in words."""


@dataclass(frozen=True, eq=False)
class Engine:
    """A way to run a backbone.

    Args:
        name: `litert`, `frozen_graph` or `keras`.
        rows: Pictures of one call, at most.
        workers: One function for each thread that may run at a time.
    """

    name: str
    rows: int
    workers: tuple[Features, ...]


def choose(
    backbone: keras.Model,
    first: np.ndarray,
    *,
    strategy: tf.distribute.Strategy,
    on_gpu: bool,
    notify: Callable[[str], None],
    num_pictures: int | None = None,
    names: tuple[str, ...] | None = None,
) -> Engine:
    """The fastest engine whose features of the `first` pictures are those of the Keras model.

    Args:
        backbone: uint8 pixels to features, all of it frozen.
        first: uint8 [n, height, width, channels], n >= 1.
        strategy: Where the Keras model runs.
        on_gpu: Whether its replicas are GPUs.
        notify: Told of an engine that does not agree or fails.
        num_pictures: How many there will be, if that is known: an engine that takes seconds to make needs many.
        names: The engines to try, in this order; None for what suits the device, the precision and the number.
    """
    names = _suitable(backbone, on_gpu, num_pictures) if names is None else names
    tolerance = tolerance_of(backbone, on_gpu)
    expected = keras_features(backbone, first)
    for name in names:
        try:
            engine = _ENGINES[name](backbone, strategy, chunk_rows(strategy, on_gpu))
            found = np.concatenate([engine.workers[0](part) for part in _parts(first, engine.rows)])
        except _CannotRun as reason:
            logging.getLogger(__name__).info("The engine %s is left out: %s", name, reason)
            continue
        except Exception as error:  # a converter or a kernel may fail in any way; the next engine is there for that
            line = (str(error).strip().splitlines() or [""])[0][:200]
            notify(f"The inference engine {name} failed ({type(error).__name__}: {line}): the next one takes over.")
            continue
        difference = disagreement(found, expected)
        if difference <= tolerance or name == "keras":
            return engine
        notify(
            f"The inference engine {name} differs from Keras by {difference:.1e} of the largest feature "
            f"(at most {tolerance:g} counts as equal): the next one takes over."
        )
    raise RuntimeError(f"None of the engines {', '.join(names)} can run {backbone.name}.")


def keras_features(backbone: keras.Model, pictures: np.ndarray) -> np.ndarray:
    """What the Keras model itself makes of some pictures: float32 [n, num_features]; no trace, so at once."""
    return backbone(pictures, training=False).numpy().astype(np.float32)


def disagreement(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference as a share of the largest expected value; infinite where shapes or a NaN differ.

    >>> disagreement(np.array([1.0, 2.0]), np.array([1.0, 2.5]))
    0.2
    """
    if found.shape != expected.shape or not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return float("inf")
    largest = float(np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected)))
    difference = float(np.max(np.abs(found - expected), initial=0.0, where=np.isfinite(expected)))
    return difference / largest if largest else difference


def arithmetic_of(backbone: keras.Model, on_gpu: bool) -> str:
    """The shortest arithmetic of the backbone: `float32`, `tensor_float_32` (its form on GPUs), or 16 bits."""
    types = {layer.compute_dtype for layer in backbone._flatten_layers() if layer.weights}
    shorter = sorted(types & {"float16", "bfloat16"})
    if shorter:
        return shorter[0]
    return "tensor_float_32" if on_gpu and tf.config.experimental.tensor_float_32_execution_enabled() else "float32"


def tolerance_of(backbone: keras.Model, on_gpu: bool) -> float:
    """The difference from Keras' features that counts as none."""
    return TOLERANCES[arithmetic_of(backbone, on_gpu)]


def chunk_rows(strategy: tf.distribute.Strategy, on_gpu: bool) -> int:
    """Pictures that a pass hands over at a time: a call of an engine on all replicas, or some of an interpreter."""
    replicas = _local_replicas(strategy)
    return replicas * (ROWS_PER_GPU if on_gpu else -(-ROWS_OF_CPU // replicas))


def _local_replicas(strategy: tf.distribute.Strategy) -> int:
    own = replicas_of_this_worker(strategy)  # each worker makes its own pass
    return own.stop - own.start


def run(
    engine: Engine,
    chunks: Iterator[np.ndarray],
    out: np.ndarray,
    on_progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Write the features of all pictures to `out`, float32 [N, num_features], in their order.

    Args:
        chunks: uint8 [n, height, width, channels] each, N pictures in all; asked for by one thread at a time.
        on_progress: Called now and then, in this thread, with the pictures done; what it raises ends the pass.
    """
    numbered = _numbered(chunks)
    lock, stop = threading.Lock(), threading.Event()
    done = [0] * len(engine.workers)

    def work(index: int, features: Features) -> None:
        while not stop.is_set():
            with lock:
                first, chunk = next(numbered, (0, None))
            if chunk is None:
                return
            for start in range(0, len(chunk), engine.rows):
                part = chunk[start : start + engine.rows]
                out[first + start : first + start + len(part)] = features(part)
                done[index] += len(part)

    with ThreadPoolExecutor(len(engine.workers), thread_name_prefix="features") as pool:
        waiting = {pool.submit(work, index, worker) for index, worker in enumerate(engine.workers)}
        try:
            while waiting:
                finished, waiting = wait(waiting, _PROGRESS_SECONDS, return_when=FIRST_EXCEPTION)
                for future in finished:
                    future.result()
                on_progress(sum(done))
        finally:
            stop.set()


def _numbered(chunks: Iterator[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
    first = 0
    for chunk in chunks:
        yield first, chunk
        first += len(chunk)


def _parts(pictures: np.ndarray, rows: int) -> Iterator[np.ndarray]:
    return (pictures[start : start + rows] for start in range(0, len(pictures), rows))


def _suitable(backbone: keras.Model, on_gpu: bool, num_pictures: int | None) -> tuple[str, ...]:
    if arithmetic_of(backbone, on_gpu) in ("float16", "bfloat16"):
        # Sixteen-bit arithmetic rounds differently in every order of operations: only Keras' own is exact.
        return ("keras",)
    few = num_pictures is not None and num_pictures < LITERT_PAYS_FROM
    return ("frozen_graph", "keras") if on_gpu or few else ("litert", "frozen_graph", "keras")


def _padded(function: Callable[[np.ndarray], np.ndarray], rows: int) -> Features:
    """`function` of exactly `rows` pictures, for up to so many: what is missing is filled up and left out again."""

    def features(pictures: np.ndarray) -> np.ndarray:
        missing = rows - len(pictures)
        if not missing:
            return function(pictures)
        filled = np.concatenate([pictures, np.zeros((missing, *pictures.shape[1:]), pictures.dtype)])
        return function(filled)[: len(pictures)]

    return features


# --- the engines ----------------------------------------------------------------------------------------------------


def _traced(backbone: keras.Model, rows: int):
    """The backbone as a graph for `rows` pictures."""
    pictures = tf.TensorSpec([rows, *backbone.input_shape[1:]], tf.uint8)
    function = tf.function(lambda images: backbone(images, training=False), autograph=False)
    return function.get_concrete_function(pictures)


def _litert(backbone: keras.Model, strategy: tf.distribute.Strategy, most_rows: int) -> Engine:
    """LiteRT with XNNPACK: an interpreter of one thread for each core, which wait for nobody."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise _CannotRun("ai-edge-litert is not installed (uv sync --extra fast)") from error
    height, width = backbone.input_shape[1:3]
    rows = 1 if height * width >= LARGE_PICTURE else _ROWS_OF_SMALL_PICTURES
    absl_log = logging.getLogger("absl")
    level = absl_log.level
    absl_log.setLevel(
        logging.ERROR
    )  # it recommends the other way to convert, which does not fold batch norm: 4x slower
    try:
        with quiet_tensorflow():
            content = tf.lite.TFLiteConverter.from_concrete_functions([_traced(backbone, rows)], None).convert()
            interpreters = [Interpreter(model_content=content, num_threads=1) for _ in range(num_cores())]
            for interpreter in interpreters:
                interpreter.allocate_tensors()
    finally:
        absl_log.setLevel(level)
    return Engine("litert", rows, tuple(_padded(_interpreted(one), rows) for one in interpreters))


def _interpreted(interpreter) -> Callable[[np.ndarray], np.ndarray]:
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()

    def features(pictures: np.ndarray) -> np.ndarray:
        interpreter.set_tensor(given["index"], pictures)
        interpreter.invoke()
        return interpreter.get_tensor(made["index"])

    return features


def _frozen_graph(backbone: keras.Model, strategy: tf.distribute.Strategy, rows: int) -> Engine:
    """On every replica, a graph whose variables are constants, so that batch norm folds into the convolutions."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    graph = convert_variables_to_constants_v2(_traced(backbone, rows // _local_replicas(strategy)))
    return _on_replicas("frozen_graph", lambda pictures: graph(pictures)[0], strategy, rows)


def _keras(backbone: keras.Model, strategy: tf.distribute.Strategy, rows: int) -> Engine:
    """The Keras model on every replica."""
    return _on_replicas("keras", lambda pictures: backbone(pictures, training=False), strategy, rows)


def _on_replicas(name: str, function: Callable, strategy: tf.distribute.Strategy, rows: int) -> Engine:
    replicas, first = _local_replicas(strategy), replicas_of_this_worker(strategy).start
    step = tf.function(lambda pictures: strategy.run(function, args=(pictures,)), autograph=False)

    def features(pictures: np.ndarray) -> np.ndarray:
        parts = np.split(pictures, replicas)
        given = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group - first])
        )
        made = strategy.experimental_local_results(step(given))
        return np.concatenate([part.numpy() for part in made]).astype(np.float32)

    return Engine(name, rows, (_padded(features, rows),))


_ENGINES: dict[str, Callable[[keras.Model, tf.distribute.Strategy, int], Engine]] = {
    "litert": _litert,
    "frozen_graph": _frozen_graph,
    "keras": _keras,
}
