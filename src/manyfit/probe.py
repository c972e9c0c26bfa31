"""What a step spends its time on: short probes of a trained model, which is afterwards as it was.

What a step waits for cannot be seen while it runs, since the input is taken inside the compiled loop. So the same step
is run on data that is there already, on its smallest batch, and with the reductions over replicas left out.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from manyfit.callbacks.throughput import EpochRows, Record
from manyfit.replicated import ReplicatedModel
from manyfit.report.verdict import INPUT, Verdict, flatten, judge

AUTO_SHARE = 0.05
"""Of the training's time: what probes that were not asked for may take at most."""

MOST_AUTO_SECONDS = 60.0
_LONG_CALL_SECONDS = 0.12
_INPUT_SECONDS = 0.4
_LONG_STEP_SECONDS = 0.15
_MOST_STEPS = 4096
_PROBE_SECONDS = 1.0
"""About what a probe of a short step takes, its trace left out."""


class _Unmeasurable(Exception):
    """A probe whose steps did not run as the training's do."""


@dataclass(frozen=True)
class Cost:
    """A call of k steps takes `call_seconds + k * step_seconds`."""

    call_seconds: float
    step_seconds: float

    def a_step(self, steps_per_call: float) -> float:
        """Seconds of a step in calls of this many."""
        return self.call_seconds / steps_per_call + self.step_seconds


def budget(asked: str | bool, train_seconds: float) -> float:
    """Seconds that probes may take: any where they are asked for, a twentieth of the training where `auto`.

    >>> budget("auto", 200.0), budget(False, 200.0)
    (10.0, 0.0)
    """
    if asked == "auto":
        return min(AUTO_SHARE * train_seconds, MOST_AUTO_SECONDS)
    return float("inf") if asked else 0.0


def judge_run(
    model: ReplicatedModel,
    dataset: Any,
    rows: EpochRows,
    record: Record,
    *,
    asked: str | bool,
    settings: Mapping[str, Any],
    first_step_seconds: float | None,
    on_gpu: bool,
    notify: Callable[[str], Any],
) -> Verdict | None:
    """Probe a model that has just been trained, and record the verdict: `throughput`, `verdict`, `timing`.

    It never ends a run: where it cannot be measured, `notify` is told if it was asked for.

    Args:
        dataset: What the model was trained on, distributed.
        asked: `probe` in the configuration: `auto`, true or false.
        settings: The run's configuration, for the advice: keys and values, nested or dotted.
        first_step_seconds: What the first call took, with its trace; None if not known.
    """
    own = [rows.step_seconds(), rows.steps_per_call(), budget(asked, sum(row["train_seconds"] for row in rows.rows))]
    step, steps_per_call, seconds = model.peers.broadcast("probe", own)  # workers measure the same together
    if not seconds:
        return None
    if step is None or steps_per_call is None:
        if asked is True:
            notify("The run was too short to say what bounds it: it has no step after the first call.")
        return None
    started = time.perf_counter()
    try:
        numbers = measure(
            model,
            dataset,
            step_seconds=step,
            steps_per_call=steps_per_call,
            budget_seconds=seconds,
            trace_seconds=first_step_seconds or 0.0,
        )
        if numbers is None:
            return None
        num_replicas = model.distribute_strategy.num_replicas_in_sync
        verdict = judge(numbers, settings=flatten(settings), num_replicas=num_replicas, on_gpu=on_gpu)
    except Exception as error:  # whatever a probe meets, the run is worth more
        if asked is True:
            notify(f"What bounds the run could not be measured ({type(error).__name__}: {str(error)[:200]}).")
        return None
    finally:
        record.update("timing", probe_seconds=time.perf_counter() - started)
    record.update("throughput", **numbers, input_wait_share=verdict.shares[INPUT])
    record.update("verdict", **verdict.as_dict())
    return verdict


def measure(
    model: ReplicatedModel,
    dataset: Any,
    *,
    step_seconds: float,
    steps_per_call: float,
    budget_seconds: float = float("inf"),
    trace_seconds: float = 0.0,
) -> dict[str, float | None] | None:
    """The numbers that `report.verdict.judge` takes, in seconds a step; None where the budget allows none.

    The step on cached data and the input alone need no new trace. The other two do, and are left out (None) where
    they would not fit into the budget.

    Args:
        dataset: What the model was trained on, distributed.
        step_seconds: A step as the training took it.
        steps_per_call: Steps a call of the training.
        trace_seconds: What tracing the step takes.
    """
    trace_seconds, step_seconds = model.peers.broadcast("probe of", [trace_seconds, step_seconds])
    ends = time.perf_counter() + budget_seconds
    probe_seconds = max(_PROBE_SECONDS, 4 * step_seconds)
    if budget_seconds < 2 * probe_seconds:
        return None

    def fits() -> bool:
        in_time = time.perf_counter() + trace_seconds + probe_seconds < ends
        return model.peers.broadcast("probe fits", in_time)

    numbers: dict[str, float | None] = {"step_seconds": step_seconds, "steps_per_call": steps_per_call}
    strategy = model.distribute_strategy
    parts = _first_element(dataset, strategy)
    with _kept_state(model):
        cached = _cost_of(model, model._train_steps, _repeated(parts, strategy))
        numbers["step_seconds_cached"] = cached.a_step(steps_per_call)
        numbers["call_seconds"] = cached.call_seconds
        numbers["input_seconds"] = input_seconds(dataset)
        numbers["step_seconds_without_all_reduce"] = numbers["launch_seconds"] = None
        unsynchronised = cached
        if strategy.num_replicas_in_sync > 1:
            if not fits():
                return numbers
            with _without_all_reduce():  # it is left out of what is traced inside
                unsynchronised = _cost_of(model, model._make_train_steps(), _repeated(parts, strategy))
            numbers["step_seconds_without_all_reduce"] = unsynchronised.a_step(steps_per_call)
            if fits():
                with _without_all_reduce(meeting=True):
                    met = _cost_of(model, model._make_train_steps(), _repeated(parts, strategy))
                numbers["step_seconds_with_barrier"] = met.a_step(steps_per_call)
        if fits():
            with contextlib.suppress(tf.errors.OpError, _Unmeasurable, ValueError):
                fixed = _fixed_seconds(model, parts, cached)
                waiting = max(0.0, cached.step_seconds - unsynchronised.step_seconds)
                numbers["launch_seconds"] = cached.call_seconds / steps_per_call + max(0.0, fixed - waiting)
    return numbers


def input_seconds(dataset: Any) -> float:
    """Seconds that the input takes for a step when nobody makes it wait."""

    def pull(iterator, count):
        def body(index):
            next(iterator)
            return (index + 1,)

        return tf.while_loop(lambda index: index < count, body, (tf.constant(0),))

    compiled = tf.function(pull, autograph=False)
    iterator, count = iter(dataset), 1

    def eat(steps: int) -> None:
        compiled(iterator, tf.constant(steps))[0].numpy()

    eat(1)
    while True:
        # Each round eats more than all before it, so that what was fetched in advance does not count.
        elapsed = _seconds(eat, count)
        if elapsed >= _INPUT_SECONDS or count >= _MOST_STEPS:
            return elapsed / count
        count *= 2


def _fixed_seconds(model: ReplicatedModel, parts: Sequence[tuple], cached: Cost) -> float:
    """What is left of a step when its rows become none: the straight line through a small and a whole batch."""
    micro_batches = model._gradient_accumulation
    axis = 1 if len(parts) < model.distribute_strategy.num_replicas_in_sync else 0  # the replicas may come first
    rows = int(parts[0][0].shape[axis]) // micro_batches
    few = 2 - rows % 2  # mixing of examples needs an even number
    if rows <= few:
        return cached.step_seconds
    wanted = tf.range(few * micro_batches)
    fewer = [tuple(tf.gather(component, wanted, axis=axis) for component in part) for part in parts]
    small = _cost_of(model, model._make_train_steps(), _repeated(fewer, model.distribute_strategy))
    a_row = max(0.0, cached.step_seconds - small.step_seconds) / (rows - few)
    return max(0.0, small.step_seconds - few * a_row)


# --- the step ---------------------------------------------------------------------------------------------------------


def _cost_of(model: ReplicatedModel, train_steps: Callable, dataset: Any) -> Cost:
    """What calls of `train_steps` cost, with what `fit` does after each; medians, as those of the run."""
    iterator = iter(dataset)

    def call(steps: int) -> None:
        done, *_ = train_steps(iterator, tf.constant(steps), *model._scale_state)
        if int(done) != steps:
            raise _Unmeasurable("a loss or gradient is not finite")
        model._results()

    def seconds(steps: int) -> float:
        return model.peers.broadcast("probe seconds", _seconds(call, steps))

    call(1)  # traces
    first = seconds(1)
    if first > _LONG_STEP_SECONDS:  # what a call costs is lost in such a step
        return Cost(0.0, statistics.median([first, *(seconds(1) for _ in range(2))]))
    one = statistics.median(seconds(1) for _ in range(9))
    steps = 4
    while seconds(steps) < _LONG_CALL_SECONDS and steps < _MOST_STEPS:
        steps *= 4
    many = statistics.median(seconds(steps) for _ in range(3))
    step = max(0.0, many - one) / (steps - 1)
    return Cost(max(0.0, one - step), step)


def _seconds(function: Callable[[int], Any], steps: int) -> float:
    started = time.perf_counter()
    function(steps)
    return time.perf_counter() - started


def _first_element(dataset: Any, strategy: tf.distribute.Strategy) -> list[tuple]:
    """The first element: a tuple of tensors for each replica, or one with the replicas as first axis."""
    if isinstance(dataset, tf.data.Dataset):
        return [next(iter(dataset))]
    components = [strategy.experimental_local_results(component) for component in next(iter(dataset))]
    return list(zip(*components, strict=True))


def _repeated(parts: Sequence[tuple], strategy: tf.distribute.Strategy) -> Any:
    """The same element again and again, without end and without work, distributed as the training's."""

    def repeat(_: Any = None) -> tf.data.Dataset:
        first, *others = (tf.data.Dataset.from_tensors(part) for part in parts)
        for other in others:
            first = first.concatenate(other)
        return first.repeat().prefetch(2 * len(parts))

    return repeat() if len(parts) == 1 else strategy.distribute_datasets_from_function(repeat)


@contextlib.contextmanager
def _without_all_reduce(*, meeting: bool = False) -> Iterator[None]:
    """Inside, a sum over the replicas is each replica's own part: for a step traced inside, which then never waits.

    With `meeting` each waits there until all have come, which takes a sum of one number: its cost is waiting for the
    slowest replica.
    """
    context = tf.distribute.ReplicaContext
    before = context.all_reduce

    def own_part(self, reduce_op, value, options=None):
        if not meeting:
            return tf.nest.map_structure(tf.identity, value)
        first = [tf.cast(tf.reshape(tensor, [-1])[:1], tf.float32) for tensor in tf.nest.flatten(value)]
        come = before(self, tf.distribute.ReduceOp.SUM, tf.stop_gradient(tf.reduce_sum(tf.concat(first, 0))))
        with tf.control_dependencies([come]):
            return tf.nest.map_structure(tf.identity, value)

    context.all_reduce = own_part
    try:
        yield
    finally:
        context.all_reduce = before


@contextlib.contextmanager
def _kept_state(model: ReplicatedModel) -> Iterator[None]:
    """Afterwards, network and optimizer are as before; they are held in the host's memory meanwhile."""
    variables = {id(variable): variable for variable in (*model.network.variables, *model.optimizer.variables)}
    values = {key: variable.numpy() for key, variable in variables.items()}
    try:
        yield
    finally:
        for key, variable in variables.items():
            variable.assign(values[key])
        model.reset_metrics()
