"""What the samples of a run come to: means, percentiles and energy of each phase."""

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from manyfit.report.system_samples import PHASES

WORK = ("features", "train", "validation")
"""The phases in which the devices work."""
POWER = "power_watts"
NOT_MEASURED = {"elapsed_seconds", "time", "index"}


class Statistics:
    """Means, 95th percentiles and energy of samples that are added one after the other.

    A sample describes the time since the one before it: its values weigh as much in its phase's mean and percentile as
    that took. At a change of phase a sample stands twice, as the last of one phase and the first of the next, and the
    second weighs nothing. A value that is missing (None) is left out.
    """

    def __init__(self) -> None:
        self.num_samples = 0
        self._values: dict[str, dict[str, tuple[array, array]]] = {}
        self._seconds: dict[str, float] = {}
        self._elapsed: float | None = None
        self._power: dict[Any, tuple[float, float]] = {}
        self._gpus: set[Any] = set()
        self._tell_power: set[Any] = set()
        self._joules: dict[str, float] = {}
        self._joules_before: dict[str, float] = {}

    def add(self, sample: Mapping[str, Any]) -> None:
        """Add the next sample, in the form of a line of `system.jsonl`."""
        phase, elapsed = sample["phase"], float(sample["elapsed_seconds"])
        seconds = 0.0 if self._elapsed is None else max(0.0, elapsed - self._elapsed)
        self._elapsed = elapsed
        self.num_samples += 1
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds
        metrics = self._values.setdefault(phase, {})
        for name, value in flat(sample).items():
            values, weights = metrics.setdefault(name, (array("d"), array("d")))
            values.append(value)
            weights.append(seconds)
        for gpu in sample.get("gpus") or ():
            self._add_energy(phase, elapsed, gpu)

    def _add_energy(self, phase: str, elapsed: float, gpu: Mapping[str, Any]) -> None:
        index, watts = gpu.get("index"), gpu.get(POWER)
        self._gpus.add(index)
        if watts is None:
            return  # the trapezoid to the next power that is known spans the gap
        self._tell_power.add(index)
        before, watts_before = self._power.get(index, (elapsed, watts))
        self._joules[phase] = self._joules.get(phase, 0.0) + (watts_before + watts) / 2 * (elapsed - before)
        self._power[index] = (elapsed, watts)

    def begin_attempt(self) -> None:
        """What follows is sampled by another process: nothing is known of the time between, nor how many images an
        earlier one trained on."""
        self._elapsed = None
        self._power = {}
        self._joules_before = dict(self._joules)

    def phases(self) -> dict[str, dict[str, dict[str, float]]]:
        """Mean and 95th percentile of each metric in each phase: `["train"]["gpu.0.power_watts"]["mean"]`."""
        return {
            phase: {name: _mean_and_p95(values, weights) for name, (values, weights) in sorted(metrics.items())}
            for phase, metrics in self._values.items()
        }

    def means(self) -> dict[str, float]:
        """The means alone, of the phases in which the devices work, by `PHASE/METRIC`."""
        worked = {phase: metrics for phase, metrics in self.phases().items() if phase in WORK}
        return {f"{phase}/{name}": both["mean"] for phase, metrics in worked.items() for name, both in metrics.items()}

    def energy_watt_hours(self, phase: str | None = None) -> float | None:
        """Energy of the sampled GPUs in a phase, or in all; None where the power of any of them is not known.

        For each GPU, with its power P at the times t, by the trapezoidal rule, then summed over the GPUs:

            E = sum over i of (P[i] + P[i+1]) / 2 * (t[i+1] - t[i])

        A trapezoid counts for the phase of its end. What the host's CPUs take is not in it.
        """
        if not self._gpus or self._gpus != self._tell_power:
            return None
        joules = self._joules.get(phase, 0.0) if phase is not None else sum(self._joules.values())
        return joules / 3600

    def section(self, num_images: int | None = None) -> dict[str, Any]:
        """What the record's section `system` holds of the samples.

        Args:
            num_images: Images that this attempt trained on, each epoch's counted; None for no joules an image.
        """
        train = self.energy_watt_hours("train")
        joules = self._joules.get("train", 0.0) - self._joules_before.get("train", 0.0)
        phases = [phase for phase in PHASES if phase in self._seconds]
        energies = {phase: self.energy_watt_hours(phase) for phase in phases} if train is not None else None
        return {
            "num_samples": self.num_samples,
            "seconds": {phase: self._seconds[phase] for phase in phases},
            "phases": self.phases(),
            "energy_watt_hours": self.energy_watt_hours(),
            "energy_watt_hours_of_phases": energies,
            "joules_per_image": joules / num_images if train and joules and num_images else None,
        }


ENERGIES = ("energy_watt_hours", "joules_per_image")


def energy_of_all(sections: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the GPUs of all workers took, from the section of each; None where that of any is not known.

    The joules an image add up, since every worker divides by the images of the whole run.
    """
    sections = _of_own_gpus(sections)
    found: dict[str, Any] = {name: _sum([section.get(name) for section in sections]) for name in ENERGIES}
    of_phases = [one for section in sections if (one := section.get("energy_watt_hours_of_phases")) is not None]
    if len(of_phases) < len(sections):
        return found | {"energy_watt_hours_of_phases": None}
    names = dict.fromkeys(name for one in of_phases for name in one)
    sums = {name: _sum([one.get(name, 0.0) for one in of_phases]) for name in names}
    return found | {"energy_watt_hours_of_phases": sums}


def _of_own_gpus(sections: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of workers whose GPUs no worker before them has sampled, as `tracker.system_metrics_gpus=all` lets those
    of one machine do; of a worker that shares some and not others nothing can be told."""
    found: list[Mapping[str, Any]] = []
    seen: set[tuple[Any, Any]] = set()
    for section in sections:
        own = {(section.get("node"), index) for index in section.get("gpu_indices") or ()}
        if not own or not own <= seen:
            found.append({} if own & seen else section)
        seen |= own
    return found


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None


def flat(sample: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a sample by the names of their metrics; those of a GPU as `gpu.INDEX.METRIC`.

    >>> flat({"phase": "train", "time": 1.0, "cpu_percent": 50, "gpus": [{"index": 2, "power_watts": 90, "x": None}]})
    {'cpu_percent': 50.0, 'gpu.2.power_watts': 90.0}
    """
    parts = {"": sample} | {f"gpu.{gpu.get('index')}.": gpu for gpu in sample.get("gpus") or ()}
    return {
        prefix + name: float(value)
        for prefix, part in parts.items()
        for name, value in part.items()
        if name not in NOT_MEASURED and isinstance(value, int | float) and math.isfinite(value)
    }


def gpus_in_words(system: Mapping[str, Any]) -> str | None:
    """What the GPUs did during the training, by the record's section `system`; None where none was sampled.

    The section is that of rank 0, with those of the other workers in `workers` and the energy of all.

    >>> one, other = ({"mean": percent, "p95": 99} for percent in (80.0, 70.0))
    >>> train = {"gpu.0.utilization_percent": one, "gpu.1.utilization_percent": other}
    >>> gpus_in_words({"gpu": "2 x A100", "phases": {"train": train}, "energy_watt_hours": 12.5})
    '2 x A100, 75 % busy in training, 12.5 Wh'
    """
    if not system.get("gpu"):
        return None
    sections = _of_own_gpus([system, *(system.get("workers") or ())])
    busy = [
        both["mean"]
        for one in sections
        for name, both in ((one.get("phases") or {}).get("train") or {}).items()
        if name.endswith(".utilization_percent")
    ]
    kinds = Counter(str(one["gpu"]) for one in sections if one.get("gpu"))
    names = [name if len(sections) == 1 else f"{count} x ({name})" for name, count in kinds.items()]
    parts = [" + ".join(names), f"{sum(busy) / len(busy):.0f} % busy in training" if busy else ""]
    for key, unit in (("energy_watt_hours", "Wh"), ("joules_per_image", "J an image")):
        parts.append(f"{system[key]:.3g} {unit}" if isinstance(system.get(key), int | float) else "")
    return ", ".join(part for part in parts if part)


def _mean_and_p95(values: array, weights: array) -> dict[str, float]:
    if not any(weights):  # one sample, or all at one moment
        weights = array("d", [1.0] * len(values))
    total = math.fsum(weights)
    mean = math.fsum(value * weight for value, weight in zip(values, weights, strict=True)) / total
    left = 0.95 * total
    ordered = sorted(zip(values, weights, strict=True))
    for value, weight in ordered:
        left -= weight
        if left <= 1e-9 * total:
            return {"mean": mean, "p95": value}
    return {"mean": mean, "p95": ordered[-1][0]}
