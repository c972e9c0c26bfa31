"""TensorFlow's strategy over the cores of a TPU, made as its guide "Use TPUs" says. NOT RUN: there was no TPU."""

import tensorflow as tf

from manyfit.config import TPUConfig
from manyfit.errors import ConfigError
from manyfit.tpu_address import find

NOT_RUN = (
    "strategy=tpu is built as TensorFlow documents it and has never been run on a TPU: compare its first epoch with a "
    "run on one device before you trust it."
)
BFLOAT16 = "TPUs multiply in bfloat16: precision=mixed_bfloat16 halves memory and traffic."


def join(config: TPUConfig) -> tuple[tf.distribute.Strategy, tuple[str, ...]]:
    """The strategy, and the name of each core.

    Raises:
        ConfigError: there is no TPU, or this TensorFlow cannot use it.
    """
    find(config)
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=config.tpu)
        if config.tpu != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        strategy = tf.distribute.TPUStrategy(resolver)
    except (tf.errors.OpError, RuntimeError, ValueError, ImportError, OSError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
        raise ConfigError(
            f"TensorFlow cannot use the TPU strategy.tpu={config.tpu} ({said}).",
            "On a TPU VM it takes the package tensorflow-tpu of the same version, and no other process at the TPU.",
        ) from error
    return strategy, tuple(f"TPU:{index}" for index in range(strategy.num_replicas_in_sync))
