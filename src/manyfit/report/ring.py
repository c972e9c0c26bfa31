"""What summing gradients over machines costs: a model of the ring, its fit to measured sums, and predictions from it.

Every number that comes out of here for machines that nobody measured is a PREDICTION, and is called so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from manyfit.errors import ConfigError
from manyfit.schema.checks import at_least

GRADIENT_BYTES = 4
"""Of a parameter: gradients are summed in float32, in mixed precision as well."""

SUMS_A_STEP = 2
"""Of the project's step: the number of real examples, then all gradients with the loss, whose pieces go together."""

PREDICTED = (8, 32, 256)
"""Numbers of machines that a prediction is made for."""


@dataclass(frozen=True)
class Link:
    """The network between two machines.

    Args:
        gigabits: A second, each way.
        microseconds: From one machine to the next.
    """

    gigabits: float
    microseconds: float = 20.0

    def __post_init__(self) -> None:
        at_least("gigabits", self.gigabits, 0, exclusive=True)
        at_least("microseconds", self.microseconds, 0)
        if not max(self.gigabits, self.microseconds) < 1e9:
            raise ConfigError(f"gigabits={self.gigabits} microseconds={self.microseconds} is no network.")

    def ring(self) -> "Ring":
        """A ring that this link alone slows: software that costs nothing."""
        return Ring(self.microseconds * 1e-6, 8e-9 / self.gigabits)

    def __str__(self) -> str:
        return f"{self.gigabits:g} Gbit/s, {self.microseconds:g} µs"


@dataclass(frozen=True)
class Ring:
    """The seconds of a step's sums over N workers round a ring, S bytes of gradients:

        t(N, S) = c(N) (2 k (N-1) latency + 2 (N-1)/N S seconds_per_byte)

    Each of the N workers sends S/N bytes 2 (N-1) times, N-1 to sum and N-1 to share: Patarasuk and Yuan 2009
    ("Bandwidth optimal all-reduce algorithms for clusters of workstations"), whose terms are those of Thakur,
    Rabenseifner and Gropp 2005 ("Optimization of collective communication operations in MPICH", section 4.5), the cost
    of adding being part of `seconds_per_byte`. k is `SUMS_A_STEP`. c(N) is 1 between machines; on one machine with C
    cores, where every message costs the cores that all workers share, it is max(1, N/C).

    Args:
        latency: Seconds of a message without content.
        seconds_per_byte: Of sending, receiving and adding.
        cores: C; None between machines.
    """

    latency: float
    seconds_per_byte: float
    cores: int | None = None

    def seconds(self, num_workers: int, num_bytes: float) -> float:
        """Seconds a step that the sums take."""
        latency, size = ring_terms(num_workers, num_bytes, self.cores)
        return latency * self.latency + size * self.seconds_per_byte

    def over(self, link: Link) -> "Ring":
        """The same software between machines: what it costs, and then what the link costs."""
        alone = link.ring()
        return Ring(self.latency + alone.latency, self.seconds_per_byte + alone.seconds_per_byte)


def bytes_of(num_parameters: float) -> float:
    """The bytes of gradients that a step sums."""
    return GRADIENT_BYTES * num_parameters


def bytes_sent(num_workers: int, num_bytes: float) -> float:
    """Bytes that each worker sends in a step.

    >>> bytes_sent(4, 100.0), bytes_sent(1, 100.0)
    (150.0, 0.0)
    """
    return 2 * (num_workers - 1) / num_workers * num_bytes


def size_words(num_bytes: float) -> str:
    """Bytes for people, in powers of ten as networks count.

    >>> size_words(0.0), size_words(1336.0), size_words(99.9e6)
    ('0 kB', '1.34 kB', '99.9 MB')
    """
    return f"{num_bytes / 1e6:,.3g} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:.3g} kB"


def ring_terms(num_workers: int, num_bytes: float, cores: int | None = None) -> tuple[float, float]:
    """What latency and seconds a byte are multiplied with.

    >>> ring_terms(2, 100.0), ring_terms(4, 100.0, cores=2)
    ((4.0, 100.0), (24.0, 300.0))
    """
    crowd = 1.0 if cores is None else max(1.0, num_workers / cores)
    return crowd * 2 * SUMS_A_STEP * (num_workers - 1), crowd * bytes_sent(num_workers, num_bytes)


# --- the fit ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sum:
    """A measured point.

    Args:
        num_workers: Workers.
        num_bytes: Of gradients.
        seconds: A step that its sums take.
    """

    num_workers: int
    num_bytes: float
    seconds: float


def fit(points: Sequence[Sum], cores: int | None = None) -> Ring:
    """The ring that misses the points least: least squares of the relative miss, neither term below 0.

    Raises:
        ValueError: fewer than two points of several workers that took time.
    """
    used = [point for point in points if point.num_workers > 1 and point.seconds > 0]
    if len(used) < 2:
        raise ValueError(f"A ring has two unknown terms; {len(used)} points were measured.")
    # Each row divided by what was measured, so that a step of a millisecond counts as much as one of a second.
    rows = [
        (latency / point.seconds, size / point.seconds)
        for point in used
        for latency, size in [ring_terms(point.num_workers, point.num_bytes, cores)]
    ]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a1, b1 = (sum(row[i] for row in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    if determinant > 1e-12 * aa * bb:
        latency, per_byte = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
        if latency >= 0 and per_byte >= 0:
            return Ring(latency, per_byte, cores)
    one_term = [Ring(a1 / aa, 0.0, cores), Ring(0.0, b1 / bb, cores)]
    return min(one_term, key=lambda ring: sum(miss(ring, point) ** 2 for point in used))


def miss(ring: Ring, point: Sum) -> float:
    """By how much the model is off at a point, relative to what was measured; positive where it says more."""
    return ring.seconds(point.num_workers, point.num_bytes) / point.seconds - 1


# --- predictions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MachinePrediction:
    """What a number of machines would do, if the model holds; nobody measured it.

    Args:
        num_machines: How many, each with the batch of the step that was measured on one.
        sum_seconds: A step that summing gradients between them takes.
        efficiency: Step on one over step on all: nothing of the sum is hidden behind the arithmetic.
        speed_up: Examples a second over those of one.
    """

    num_machines: int
    sum_seconds: float
    efficiency: float
    speed_up: float


def predict_machines(
    step_seconds: float, num_parameters: float, ring: Ring, counts: Sequence[int] = PREDICTED
) -> list[MachinePrediction]:
    """What each number of machines would do, each keeping the batch that one has (weak scaling).

    The sums are taken to come after the arithmetic, hidden behind nothing, and the machines to be equally fast.

    Args:
        step_seconds: Of a step on one machine.
        num_parameters: Trainable ones.
        ring: Between machines.
    """
    found = []
    for count in counts:
        seconds = ring.seconds(count, bytes_of(num_parameters))
        efficiency = step_seconds / (step_seconds + seconds)
        found.append(MachinePrediction(count, seconds, efficiency, count * efficiency))
    return found


@dataclass(frozen=True)
class Outlook:
    """What several machines like the one measured would bring, over a link that the user describes.

    Args:
        link: Between the machines.
        step_seconds: A step on one machine, as measured.
        num_parameters: Trainable ones.
        num_replicas: Of one machine.
        rows: Examples of a step on one machine.
        predictions: One for each number of machines.
    """

    link: Link
    step_seconds: float
    num_parameters: int
    num_replicas: int
    rows: int
    predictions: tuple[MachinePrediction, ...]

    def as_dict(self) -> dict:
        """The outlook as JSON, under a name that cannot be taken for a measurement."""
        return {
            "PREDICTION": "not measured",
            "assumes": self.assumes,
            "link": vars(self.link),
            "step_seconds": self.step_seconds,
            "num_parameters": self.num_parameters,
            "machines": [vars(one) for one in self.predictions],
        }

    @property
    def assumes(self) -> str:
        """What must hold for it to come true."""
        return (
            f"PREDICTION, not measured: machines like this one, each with {self.rows} examples a step "
            f"({1e3 * self.step_seconds:.3g} ms, measured), over {self.link}; {self.num_parameters:,} gradients of "
            f"{GRADIENT_BYTES} bytes go round a ring, t = {SUMS_A_STEP} x 2 (N-1) latency + 2 (N-1)/N bytes / "
            "bandwidth, after the arithmetic of the step, hidden behind nothing. Left out, and for the worse: what the "
            "software costs, input that does not keep up, machines that wait for a slower one."
        )

    def rows_of_table(self) -> tuple[list[str], list[list[str]]]:
        """Names of the columns and cells, a row a number of machines."""
        names = ["machines", "replicas", "bytes sent a step", "sum", "efficiency", "speed-up"]
        cells = [
            [
                str(one.num_machines),
                str(one.num_machines * self.num_replicas),
                size_words(bytes_sent(one.num_machines, bytes_of(self.num_parameters))),
                f"{1e3 * one.sum_seconds:,.3g} ms",
                f"{one.efficiency:.0%}",
                f"{one.speed_up:,.1f}",
            ]
            for one in self.predictions
        ]
        return names, cells


def outlook(records: Sequence[Mapping], images_per_second: float, link: Link) -> Outlook | None:
    """What several machines would bring, from runs on one; None where the records do not say what it takes.

    Args:
        records: Runs of one machine with the same replicas and batch.
        images_per_second: Their speed.
    """
    first = records[0]
    batch, parameters = first["batch"], first["model"].get("num_trainable_parameters")
    rows = (batch.get("global_batch_size") or 0) * (batch.get("gradient_accumulation") or 1)
    if not rows or not parameters or images_per_second <= 0:
        return None
    step = rows / images_per_second
    predictions = predict_machines(step, parameters, link.ring())
    return Outlook(link, step, parameters, first["strategy"]["num_replicas"], rows, tuple(predictions))
