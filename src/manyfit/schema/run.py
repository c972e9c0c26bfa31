"""Everything asked of one run: a dataclass of every group and section, the run's own keys, and what goes together."""

from dataclasses import dataclass, field
from typing import Any

from manyfit.errors import ConfigError
from manyfit.schema import metrics as metric_words
from manyfit.schema.augment import AUGMENTS, AugmentConfig
from manyfit.schema.checks import AUTO, at_least, auto_or_count, between, check_class_weight, one_of
from manyfit.schema.cost import CostConfig
from manyfit.schema.data import DataConfig, EmnistConfig, SyntheticConfig
from manyfit.schema.lasting import CheckpointConfig, ResumeConfig, WatchdogConfig
from manyfit.schema.learning import (
    SCHEDULES,
    AdamConfig,
    AdamWConfig,
    EarlyStoppingConfig,
    EMAConfig,
    LossConfig,
    OptimizerConfig,
    PlateauConfig,
    PrecisionConfig,
    ScheduleConfig,
    SGDConfig,
    SWAConfig,
)
from manyfit.schema.model import (
    ApplicationConfig,
    MobileNetV2Config,
    ModelConfig,
    ModuleConfig,
    SmallCNNConfig,
)
from manyfit.schema.phases import check_averages, epochs_of, settled
from manyfit.schema.place import (
    AutoBatchConfig,
    BatchConfig,
    MultiWorkerConfig,
    StrategyConfig,
    TPUConfig,
)
from manyfit.schema.profile import ProfileConfig
from manyfit.schema.tracking import TrackerConfig, WandbConfig

DEFAULT_EPOCHS = 5


@dataclass
class RunConfig:
    """Everything asked of one run.

    Args:
        epochs: Of the whole run; with `phases` the sum of theirs.
        phases: The parts of the training, one after the other, each a `PhaseConfig`; none for a training of one piece.
        steps_per_execution: Steps a call of the compiled training function; `auto` keeps a call near 0.5 s.
        gradient_accumulation: Micro-batches a step; the step's batch is this many times `batch`'s size.
        jit_compile: Compile the step with XLA (one replica only).
        on_non_finite: `stop` at a loss or gradient that is not finite, or `skip` that step and count it.
        class_weight: Factor of each class in the training loss: None, `balanced` (inverse to how often it occurs), or
            a list in the order of the classes.
        metrics: What is counted beside loss and accuracy, in training and validation: `top_3` (any K), `auc`, `f1`,
            `calibration_error`.
        best_metric: The metric of the validation by which the best model is chosen.
        max_minutes: Minutes after which the run stops in good order, to go on later; None for no limit.
        probe: Measure after the training what bounds a step: true, false, or `auto`, where that costs at most a
            twentieth of the training's time.
        verbose: Show TensorFlow's own log lines as well.
    """

    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    model: ModelConfig = field(default_factory=MobileNetV2Config)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=AdamConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    tracker: TrackerConfig = field(default_factory=WandbConfig)
    ema: EMAConfig = field(default_factory=EMAConfig)
    swa: SWAConfig = field(default_factory=SWAConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    cost: CostConfig = field(default_factory=CostConfig)
    early_stopping: EarlyStoppingConfig = field(default_factory=EarlyStoppingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    resume: ResumeConfig = field(default_factory=ResumeConfig)
    watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    epochs: int = DEFAULT_EPOCHS
    phases: list[Any] = field(default_factory=list)
    seed: int = 0
    steps_per_execution: Any = AUTO
    gradient_accumulation: int = 1
    jit_compile: bool = False
    on_non_finite: str = "stop"
    class_weight: Any = None
    metrics: list[str] = field(default_factory=list)
    best_metric: str = "val_accuracy"
    max_minutes: float | None = None
    probe: Any = AUTO
    verbose: bool = False

    def __post_init__(self) -> None:
        at_least("epochs", self.epochs, 1)
        self._settle_phases()
        between("seed", self.seed, 0, 2**31 - 1)
        auto_or_count("steps_per_execution", self.steps_per_execution)
        at_least("gradient_accumulation", self.gradient_accumulation, 1)
        one_of("on_non_finite", self.on_non_finite, ("stop", "skip"))
        check_class_weight(self.class_weight)
        metric_words.check_words(self.metrics)
        if self.model.builder != "module":  # a model of the user's own may count what it likes
            metric_words.check_name("best_metric", self.best_metric, self.metrics, validation=True)
            if self.early_stopping.metric is not None:
                metric_words.check_name("early_stopping.metric", self.early_stopping.metric, self.metrics)
            for schedule in (self.schedule, *(phase.schedule for phase in self.phases)):
                if isinstance(schedule, PlateauConfig):
                    metric_words.check_name("schedule.metric", schedule.metric, self.metrics)
        at_least("max_minutes", self.max_minutes, 0, exclusive=True)
        if self.probe != AUTO and not isinstance(self.probe, bool):
            raise ConfigError(f"probe={self.probe} is not one of its choices.", "Choices: auto, true, false.")
        if self.jit_compile and self.strategy.replicas != AUTO and self.strategy.replicas > 1:
            raise ConfigError(
                f"jit_compile=true does not work with strategy.replicas={self.strategy.replicas}: "
                "TensorFlow cannot compile a step whose variables live on several devices.",
                "Set jit_compile=false, or strategy.replicas=1.",
            )
        if isinstance(self.strategy, MultiWorkerConfig) and not self.model.sync_batch_norm:
            raise ConfigError(
                "model.sync_batch_norm=false gives each worker of strategy=multi_worker batch-norm statistics of its "
                "own, of which a model can keep one.",
                "Leave it out: statistics over all workers cost one small sum a layer.",
            )

    def _settle_phases(self) -> None:
        """Check the phases, and let their epochs be the run's."""
        self.phases = [settled(phase, index) for index, phase in enumerate(self.phases)]
        self.epochs = epochs_of(self.phases, self.epochs, DEFAULT_EPOCHS)
        check_averages(self.swa, self.ema, self.phases, self.epochs)


SCHEMAS: dict[str, dict[str, type]] = {
    "data": {
        **dict.fromkeys(("cats_dogs", "mnist", "fashion_mnist", "flowers", "image_folder"), DataConfig),
        "emnist": EmnistConfig,
        "synthetic": SyntheticConfig,
    },
    "augment": {**AUGMENTS},
    "model": {
        "mobilenet_v2": MobileNetV2Config,
        "small_cnn": SmallCNNConfig,
        "application": ApplicationConfig,
        "module": ModuleConfig,
    },
    "strategy": {
        **dict.fromkeys(("default", "one_device", "mirrored"), StrategyConfig),
        "multi_worker": MultiWorkerConfig,
        "tpu": TPUConfig,
    },
    "batch": {"default": BatchConfig, "auto": AutoBatchConfig},
    "optimizer": {"sgd": SGDConfig, "adam": AdamConfig, "adamw": AdamWConfig},
    "schedule": {**SCHEDULES},
    "precision": dict.fromkeys(("float32", "mixed_float16", "mixed_bfloat16"), PrecisionConfig),
    "tracker": {"wandb": WandbConfig, "none": TrackerConfig},
}
"""The dataclass of every choice of every group; `conf/GROUP/CHOICE.yaml` holds the same keys (a test compares)."""

SECTIONS: dict[str, type] = {
    "ema": EMAConfig,
    "swa": SWAConfig,
    "loss": LossConfig,
    "cost": CostConfig,
    "early_stopping": EarlyStoppingConfig,
    "checkpoint": CheckpointConfig,
    "resume": ResumeConfig,
    "watchdog": WatchdogConfig,
    "profile": ProfileConfig,
}
"""The dataclass of every section that has no choices."""

CHOICE_KEY = {group: "builder" if group == "model" else "name" for group in SCHEMAS}
