"""What a scaling study holds: its trainings, its points, and all that it says, as plain data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from manyfit.report.claims import Estimate
from manyfit.report.cost import cost_of
from manyfit.report.ring import Outlook
from manyfit.report.runs import Run
from manyfit.report.scaling_equality import Equality
from manyfit.report.scaling_losses import Model, Prediction
from manyfit.report.scaling_units import REPLICAS, WORKER, Unit
from manyfit.schema.cost import CostConfig


@dataclass(frozen=True)
class Training:
    """One finished training of a study; one that serves both modes is given once for each.

    Args:
        mode: `strong` or `weak`.
        repeat: Which time, counted from 1; the same repeat has the same seed at every count.
        run: What is on disk of it.
    """

    mode: str
    num_replicas: int
    repeat: int
    run: Run

    @property
    def unit(self) -> Unit:
        """What is counted: its record names the workers where there are any."""
        workers = self.record["strategy"].get("num_workers")
        return Unit(WORKER, self.num_replicas // workers) if workers else REPLICAS

    @property
    def record(self) -> Mapping[str, Any]:
        """The run's record."""
        return self.run.record

    @property
    def images_per_second(self) -> float | None:
        """Without warm-up and validation; None where the run was too short to measure."""
        return self.run.images_per_second

    @property
    def shared_seconds(self) -> float:
        """What the first run of a study does for the others as well: the features of a frozen backbone."""
        timing = self.record["timing"]
        return timing.get("prepare_seconds") or 0.0 if timing.get("feature_seconds") is not None else 0.0

    @property
    def seconds(self) -> float | None:
        """Start to end of the process, without the probe and what it shares with the others."""
        total = self.run.total_seconds
        return None if total is None else total - self.shared_seconds

    @property
    def best_val_accuracy(self) -> float | None:
        """The best epoch's."""
        return self.run.best_accuracy

    def cost(self, price: CostConfig | None, seconds: float | None) -> float | None:
        """What that many seconds of this run's devices cost; None without a price."""
        cost = cost_of(self.run, price)
        return None if cost is None or seconds is None else cost.per_hour * seconds / 3600

    def seconds_to(self, accuracy: float) -> float | None:
        """Seconds, start-up included, until an epoch ends with this validation accuracy; None where none does."""
        took = self.run.seconds_to(accuracy)
        return None if took is None else took - self.shared_seconds


@dataclass(frozen=True)
class ScalingPoint:
    """A number of replicas, or of workers with some each, measured.

    Args:
        num_replicas: Of all workers.
        repeats: Finished runs.
        speed_up: Images/s over those of the smallest count: the geometric mean over the rounds, whose two runs met the
            same machine.
        efficiency: Speed-up over the ratio of the replicas.
        seconds: Of a run from start to end.
        time_ratio: Seconds of the smallest count over these: what somebody who waits gains. Strong scaling only.
        seconds_to_accuracy: Until the study's target accuracy.
        added_efficiency: What the replicas added since the next smaller count do, relative to as many of them at that
            count; None for the smallest.
        lost: Where the rest went, as shares of the time; they sum to 1 - efficiency. None where not probed.
        cost: Of a run; None without a price.
        cost_to_accuracy: Until the study's target accuracy.
        run: The folder of its first run.
        runs: Those of all.
        num_workers: Processes that have the replicas; None where one has them all.
    """

    num_replicas: int
    mode: str
    repeats: int
    global_batch_size: int
    per_replica_batch_size: int
    images_per_second: Estimate
    speed_up: Estimate
    efficiency: Estimate
    best_val_accuracy: Estimate | None
    seconds: Estimate | None
    time_ratio: float | None
    seconds_to_accuracy: Estimate | None
    added_efficiency: float | None
    lost: Mapping[str, float] | None
    bound: str | None
    cost: float | None
    cost_to_accuracy: float | None
    run: str
    runs: tuple[str, ...]
    num_workers: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The point as JSON: means as plain numbers, and the intervals apart."""
        estimates = {name: value for name, value in vars(self).items() if isinstance(value, Estimate)}
        plain = {name: value for name, value in vars(self).items() if name not in estimates}
        return {
            **plain,
            **{name: value.value for name, value in estimates.items()},
            "intervals": {name: [value.low, value.high] for name, value in estimates.items()},
        }


@dataclass(frozen=True)
class ModeResult:
    """One kind of scaling.

    Args:
        points: Ascending by replicas.
        predictions: For counts that were not measured; empty where there is no model.
        model: What predicts; None where nothing does.
        no_prediction: Why not.
        equality: Of every point but the smallest.
        unit: What is counted.
    """

    mode: str
    points: tuple[ScalingPoint, ...]
    predictions: tuple[Prediction, ...] = ()
    model: Model | None = None
    no_prediction: str = ""
    equality: tuple[Equality, ...] = ()
    unit: Unit = REPLICAS


@dataclass(frozen=True)
class Scaling:
    """All that a study says.

    Args:
        on_gpu: Whether the replicas were GPUs. Numbers of logical devices of one CPU measure no GPU.
        rehearsal: The pictures were drawn by code.
        target_accuracy: Which every run reached; None where there is no validation.
        unmeasured: Runs that finished without a speed, too short for it.
        failures: What did not finish, or cannot be compared with the smallest count: name and why.
        unit: What is counted.
        across_machines: The workers of some run were on different machines.
        outlook: What several machines would bring over a link that the user described; None where none was.
    """

    modes: tuple[ModeResult, ...]
    on_gpu: bool
    devices: tuple[str, ...]
    rehearsal: bool
    target_accuracy: float | None
    unmeasured: tuple[str, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    unit: Unit = REPLICAS
    across_machines: bool = False
    outlook: Outlook | None = None

    @property
    def shares_a_cpu(self) -> bool:
        """Whether all replicas had the same cores: such a study rehearses, and measures no scaling of anything."""
        return not self.on_gpu and not self.across_machines

    @property
    def points(self) -> list[ScalingPoint]:
        """Those of every mode."""
        return [point for result in self.modes for point in result.points]

    def mode(self, name: str) -> ModeResult | None:
        """One kind of scaling; None where it was not asked for or nothing of it finished."""
        return next((result for result in self.modes if result.mode == name), None)

    def as_dict(self) -> dict[str, Any]:
        """The study as JSON."""
        return {
            "counts": self.unit.plural,
            "measures_gpus": self.on_gpu,
            "across_machines": self.across_machines,
            "devices": self.devices,
            "rehearsal": self.rehearsal,
            "target_accuracy": self.target_accuracy,
            "points": [point.as_dict() for point in self.points],
            "predictions": [{"mode": one.mode, **asdict(found)} for one in self.modes for found in one.predictions],
            "models": {one.mode: asdict(one.model) if one.model else one.no_prediction for one in self.modes},
            "equality": [{"mode": one.mode, **found.as_dict()} for one in self.modes for found in one.equality],
            "outlook": self.outlook.as_dict() if self.outlook is not None else None,
            "unmeasured": self.unmeasured,
            "failures": dict(self.failures),
        }
