"""What bounds the speed of a run: measured numbers of a step in, the bound with its number and its remedy out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

INPUT, SYNCHRONISATION, LAUNCH, COMPUTE = "input", "synchronisation", "launch", "compute"
ENOUGH = 0.2
"""The share of a step from which on something other than the arithmetic is called its bound."""

_SAYS = {
    INPUT: "of a step waits for pictures",
    SYNCHRONISATION: "of a step sums gradients over the replicas",
    LAUNCH: "of a step is its fixed cost (calls, launches, the update), whatever the batch",
    COMPUTE: "of a step is the network's arithmetic",
}


@dataclass(frozen=True)
class Verdict:
    """What a step of a run spends its time on.

    Args:
        bound: `input`, `synchronisation`, `launch` or `compute`.
        share: The part of a step that it takes, 0 to 1.
        shares: The part of a step that each takes, as far as measured; they sum to 1.
        advice: What to try, in words that hold overrides.
        numbers: The seconds that it was made from.
    """

    bound: str
    share: float
    shares: dict[str, float]
    advice: str
    numbers: dict[str, float | None]

    @property
    def sentence(self) -> str:
        """The verdict for people."""
        return f"{self.bound}-bound: {self.share:.0%} {_SAYS[self.bound]}; {self.advice}"

    def as_dict(self) -> dict[str, Any]:
        """The verdict for the record."""
        return {
            "bound": self.bound,
            "share": self.share,
            "shares": self.shares,
            "advice": self.advice,
            "sentence": self.sentence,
            "numbers": self.numbers,
        }


def judge(
    numbers: Mapping[str, float | None], *, settings: Mapping[str, Any], num_replicas: int = 1, on_gpu: bool = False
) -> Verdict:
    """The verdict on a run.

    Args:
        numbers: Seconds a step, None where not measured:
            `step_seconds` as the run took it (required);
            `step_seconds_cached`: the same, on data that is there already (required);
            `input_seconds`: the input alone, as fast as it comes;
            `step_seconds_without_all_reduce`: as cached, no replica waiting for another;
            `step_seconds_with_barrier`: as cached, waiting for each other and summing nothing (kept, not judged);
            `launch_seconds`: the fixed cost of a step, reductions left out.
        settings: The run's dotted keys and their values, so that nothing is advised that does not exist or is set.

    Raises:
        ValueError: a required number is missing or not positive.
    """
    step, cached = numbers.get("step_seconds"), numbers.get("step_seconds_cached")
    if not step or not cached or step <= 0 or cached <= 0:
        raise ValueError(f"A verdict needs step_seconds and step_seconds_cached > 0; got {step} and {cached}.")
    shares = _shares(numbers, step, cached)
    bound = _bound(shares)
    advice = _ADVICE[bound](settings, num_replicas, on_gpu)
    return Verdict(bound, shares[bound], shares, advice, dict(numbers))


def _shares(numbers: Mapping[str, float | None], step: float, cached: float) -> dict[str, float]:
    # Nobody waits longer for the input than it takes by itself; what else the run took longer than its probe was the
    # machine's other work. A run faster than its probe waited for nothing.
    alone = numbers.get("input_seconds")
    waiting = max(0.0, step - cached)
    waiting = waiting if alone is None else min(waiting, alone)
    whole = cached + waiting
    parts = {INPUT: waiting, SYNCHRONISATION: 0.0, LAUNCH: 0.0}
    left = cached
    unsynchronised, launch = numbers.get("step_seconds_without_all_reduce"), numbers.get("launch_seconds")
    if unsynchronised is not None:
        parts[SYNCHRONISATION] = min(max(0.0, cached - unsynchronised), left)
        left -= parts[SYNCHRONISATION]
    if launch is not None:
        parts[LAUNCH] = min(max(0.0, launch), left)
        left -= parts[LAUNCH]
    parts[COMPUTE] = left
    return {name: seconds / whole for name, seconds in parts.items()}


def _bound(shares: Mapping[str, float]) -> str:
    """The largest thing that should not be there, else the arithmetic.

    Waiting for input is the bound from a fifth of a step on: a pipeline that keeps up makes nobody wait. Fixed cost
    is one only where it outweighs the arithmetic.
    """
    found = {name: shares[name] for name in (INPUT, SYNCHRONISATION) if shares[name] >= ENOUGH}
    if shares[LAUNCH] >= max(ENOUGH, shares[COMPUTE]):
        found[LAUNCH] = shares[LAUNCH]
    return max(found, key=lambda name: found[name]) if found else COMPUTE


# --- what to try ------------------------------------------------------------------------------------------------------

Settings = Mapping[str, Any]


def _frozen(settings: Settings) -> bool:
    return settings.get("model.trainable") == "none"


def _could(settings: Settings, key: str, *values: Any) -> bool:
    """Whether the key exists and has one of the values that leave room for more."""
    return key in settings and settings[key] in values


def _for_input(settings: Settings, num_replicas: int, on_gpu: bool) -> str:
    tries = []
    if _frozen(settings) and _could(settings, "model.feature_cache", "off"):
        tries.append("model.feature_cache=auto")
    if _could(settings, "data.cache", "off", "auto"):
        tries.append("data.cache=memory")
    if tries:
        return f"try {' or '.join(tries)}"
    if settings.get("data.cache") == "memory":
        return "the pictures are in memory already: try a smaller model.image_size or more CPU cores"
    return "decode less: a smaller model.image_size, smaller files, or more CPU cores"


def _for_synchronisation(settings: Settings, num_replicas: int, on_gpu: bool) -> str:
    tries = [
        "a larger batch (batch=auto)",
        f"gradient_accumulation={2 * int(settings.get('gradient_accumulation', 1))}",
    ]
    if settings.get("strategy.name") == "multi_worker":
        if on_gpu and settings.get("strategy.communication") == "ring":
            tries.append("strategy.communication=nccl")
        return f"try {', '.join(tries)} or fewer workers"
    if on_gpu and _could(settings, "strategy.cross_device_ops", "hierarchical", "one_device"):
        tries.append("strategy.cross_device_ops=nccl")
    if not on_gpu:
        return f"logical devices share one CPU: try {tries[0]} or strategy.replicas=1"
    if num_replicas > 2:
        tries.append(f"strategy.replicas={num_replicas // 2}")
    return f"try {', '.join(tries[:-1])} or {tries[-1]}"


def _for_launch(settings: Settings, num_replicas: int, on_gpu: bool) -> str:
    tries = []
    if settings.get("steps_per_execution", "auto") != "auto":
        tries.append("steps_per_execution=auto")
    tries.append("a larger batch (batch=auto)")
    if on_gpu and num_replicas == 1 and settings.get("jit_compile") is False:
        tries.append("jit_compile=true")
    return f"try {' or '.join(tries)}"


def _for_compute(settings: Settings, num_replicas: int, on_gpu: bool) -> str:
    if _frozen(settings) and _could(settings, "model.feature_cache", "off"):
        return "the frozen backbone does the same work in every epoch: try model.feature_cache=auto"
    if not on_gpu:
        return "the devices are busy with the network: try a GPU, a smaller network or a smaller model.image_size"
    tries = []
    if settings.get("precision.name") == "float32":
        tries.append("precision=mixed_float16")
    if num_replicas == 1 and settings.get("jit_compile") is False:
        tries.append("jit_compile=true")
    tries.append("more GPUs (strategy=mirrored)" if num_replicas == 1 else "more GPUs")
    return f"the devices are busy, as they should be: try {' or '.join(tries)}"


_ADVICE: dict[str, Callable[[Settings, int, bool], str]] = {
    INPUT: _for_input,
    SYNCHRONISATION: _for_synchronisation,
    LAUNCH: _for_launch,
    COMPUTE: _for_compute,
}


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones, also those of mappings in a list, by their place.

    >>> flatten({"data": {"cache": "off"}, "phases": [{"epochs": 5}]})
    {'data.cache': 'off', 'phases.0.epochs': 5}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            flat |= flatten({str(place): one for place, one in enumerate(value)}, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
