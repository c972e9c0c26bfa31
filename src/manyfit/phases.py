"""The parts of a training that follow each other: what each asks for, where it stands, and what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from manyfit.config import RunConfig
from manyfit.schema.checks import AUTO, last_layers
from manyfit.schema.metrics import falls


@dataclass(frozen=True)
class Phase:
    """One part of a training.

    Args:
        index: Its place, counted from 0.
        config: The run's configuration as it is in this phase: its epochs, rate, schedule and augmentation.
        trainable: Which layers of the backbone train; None where nobody said, and the model is as it was built.
        batch_norm: `auto`, `inference` or `train`, of the backbone.
    """

    index: int
    config: RunConfig
    trainable: Any = None
    batch_norm: str = AUTO

    @property
    def epochs(self) -> int:
        """How many it has at most."""
        return self.config.epochs

    @property
    def number(self) -> int:
        """Its place as people count."""
        return self.index + 1


def plan(config: RunConfig) -> tuple[Phase, ...]:
    """The phases of a run; one, the run itself, where none are asked for.

    >>> [(phase.number, phase.epochs) for phase in plan(RunConfig(phases=[{"epochs": 3}, {"epochs": 2}]))]
    [(1, 3), (2, 2)]
    """
    if not config.phases:
        return (Phase(0, config),)
    built = getattr(config.model, "trainable", None)
    return tuple(
        Phase(index, _config_of(config, asked), built if asked.trainable is None else asked.trainable, asked.batch_norm)
        for index, asked in enumerate(config.phases)
    )


def heaviest(config: RunConfig) -> Phase:
    """The phase that trains the most, as far as words tell: one batch size has to serve them all.

    >>> heaviest(RunConfig(phases=[{"epochs": 1, "trainable": "last:9"}, {"epochs": 1, "trainable": "none"}])).number
    1
    """

    def weight(phase: Phase) -> tuple[int, int]:
        count = last_layers(phase.trainable) or 0
        rank = {"none": 0, "all": 2, None: 2}.get(phase.trainable if isinstance(phase.trainable, str | None) else "", 1)
        return rank, count

    return max(plan(config), key=weight)


def _config_of(config: RunConfig, asked: Any) -> RunConfig:
    rate = config.optimizer.learning_rate if asked.learning_rate is None else asked.learning_rate
    model = config.model
    if asked.trainable is not None and "trainable" in {field.name for field in fields(model)}:
        model = replace(model, **{"trainable": asked.trainable})
    return replace(
        config,
        phases=[],
        epochs=asked.epochs,
        model=model,
        optimizer=replace(config.optimizer, learning_rate=rate),
        schedule=asked.schedule or config.schedule,
        augment=asked.augment or config.augment,
        swa=config.swa if asked is config.phases[-1] else type(config.swa)(),
    )


@dataclass(frozen=True)
class Standing:
    """Which phase a training is in.

    Args:
        index: The phase, counted from 0.
        first_epoch: The run's epoch that was its first, counted from 0: a phase before it may have stopped early.
        ended: It has stopped early.
    """

    index: int = 0
    first_epoch: int = 0
    ended: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """From a checkpoint's state; one of an older version has no phases."""
        return cls(**state.get("phase", {}))

    def is_over(self, phase: Phase, epoch: int) -> bool:
        """Whether nothing of the phase is left at the start of `epoch`."""
        return self.ended or epoch >= self.first_epoch + phase.epochs


# --- what is said of them -------------------------------------------------------------------------------------------


def in_words(trainable: Any, *, has_head: bool = True) -> str:
    """What trains, for people.

    >>> in_words("none"), in_words("last:20"), in_words(["block_16*", "Conv_1*"])
    ('the head', 'the head and the last 20 layers', 'the head and block_16*, Conv_1*')
    """
    head = "the head and " if has_head else ""
    if trainable is None:
        return "the model as it was built"
    if trainable in ("none", "all"):
        return "the head" if trainable == "none" else "all layers"
    count = last_layers(trainable)
    if count is not None:
        return f"{head}the last {f'{count} layers' if count > 1 else 'layer'}"
    return head + (trainable if isinstance(trainable, str) else ", ".join(trainable))


def outcome(rows: Sequence[Mapping[str, Any]], number: int, metric: str) -> dict[str, Any]:
    """What came of a phase so far, from the rows of all epochs.

    Args:
        number: The phase, counted from 1.
        metric: By which the best epoch is chosen.

    Returns:
        `epochs_trained`, `seconds` of training and validation, `images_per_second` (the harmonic mean of its epochs, as
        each has the same number of examples; None if unknown) and `best`, its epoch and metrics (empty without any).
    """
    own = [row for row in rows if row.get("phase") == number]
    rates = [rate for row in own if (rate := row.get("images_per_second"))]
    sign = -1 if falls(metric) else 1
    ranked = [row for row in own if row.get(metric) is not None and row.get("val_loss") is not None]
    best = max(ranked, key=lambda row: (sign * row[metric], -row["val_loss"]), default={})
    kept = ("epoch", "val_accuracy", "val_loss", metric)
    return {
        "epochs_trained": len(own),
        "seconds": sum((row.get("train_seconds") or 0) + (row.get("validation_seconds") or 0) for row in own),
        "images_per_second": len(rates) / sum(1 / rate for rate in rates) if rates else None,
        "best": {name: best[name] for name in dict.fromkeys(kept) if name in best},
    }


def summary_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and value of a row for each phase that a record has.

    >>> best = {"epoch": 4, "val_accuracy": 0.98}
    >>> entry = {"phase": 2, "first_epoch": 4, "epochs_trained": 2, "trainable": "last:20", "seconds": 61.0}
    >>> summary_rows({"phases": [entry | {"num_trainable_parameters": 1206080, "features": False, "best": best}]})
    [('phase 2', 'epochs 4-5, the head and the last 20 layers (1,206,080 parameters), 61.0 s, best accuracy 0.9800')]
    """
    return [(f"phase {entry.get('phase')}", _in_a_line(entry)) for entry in record.get("phases") or []]


def _in_a_line(entry: Mapping[str, Any]) -> str:
    first, count = entry.get("first_epoch") or 1, entry.get("epochs_trained") or 0
    parts = ["no epoch" if not count else f"epoch {first}" if count == 1 else f"epochs {first}-{first + count - 1}"]
    parameters = entry.get("num_trainable_parameters")
    what = in_words(entry.get("trainable"), has_head=entry.get("has_head", True))
    parts.append(f"{what} ({parameters:,} parameters)" if isinstance(parameters, int) else what)
    parts += ["on features"] if entry.get("features") else []
    parts += [f"{seconds:,.1f} s"] if (seconds := entry.get("seconds")) else []
    best = entry.get("best") or {}
    parts += [f"best accuracy {best['val_accuracy']:.4f}"] if best.get("val_accuracy") is not None else []
    return ", ".join(parts)
