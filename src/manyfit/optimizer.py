"""Which optimizer, with which numbers: a Keras optimizer from its configuration."""

import keras

from manyfit.config import AdamConfig, EMAConfig, OptimizerConfig, SGDConfig


def build(config: OptimizerConfig, *, learning_rate: float, ema: EMAConfig | None = None) -> keras.optimizers.Optimizer:
    """The optimizer that `config` asks for; call it inside the scope of the strategy.

    Args:
        learning_rate: The rate of the first epoch, scale and schedule included.
        ema: Keep a moving average of the weights.
    """
    common = {
        "learning_rate": learning_rate,
        "weight_decay": config.weight_decay or None,
        "global_clipnorm": config.global_clipnorm,
    }
    if ema is not None and ema.decay is not None:
        # The average never overwrites the weights: evaluation borrows it (ReplicatedModel.averaged_weights).
        common |= {"use_ema": True, "ema_momentum": ema.decay, "ema_overwrite_frequency": None}
    if isinstance(config, SGDConfig):
        return keras.optimizers.SGD(momentum=config.momentum, nesterov=config.nesterov, **common)
    if isinstance(config, AdamConfig):
        kind = keras.optimizers.AdamW if config.name == "adamw" else keras.optimizers.Adam
        return kind(beta_1=config.beta_1, beta_2=config.beta_2, epsilon=config.epsilon, **common)
    raise ValueError(f"No builder for optimizer={config.name}.")
