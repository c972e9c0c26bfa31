"""Where the replicas run: devices, logical CPUs and the tf.distribute strategy over them."""

from dataclasses import dataclass, field

import tensorflow as tf

from manyfit import tpu_strategy, worker_strategy
from manyfit.cluster import Cluster
from manyfit.config import AUTO, MultiWorkerConfig, StrategyConfig, TPUConfig
from manyfit.errors import ConfigError

CROSS_DEVICE_OPS = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
    "one_device": tf.distribute.ReductionToOneDevice,
}


@dataclass(frozen=True)
class Place:
    """The devices of a run and the strategy over them.

    Args:
        name: The strategy's choice in the config.
        strategy: The tf.distribute strategy.
        devices: A description of the device of each replica in this process: `GPU:0 NVIDIA A100-SXM4-80GB`.
        notices: What was chosen by default, for the user to know.
        cluster: The processes that the strategy reduces over; None for this one alone.
    """

    name: str
    strategy: tf.distribute.Strategy
    devices: tuple[str, ...]
    notices: tuple[str, ...] = field(default=())
    cluster: Cluster | None = None

    @property
    def num_replicas(self) -> int:
        """Replicas whose gradients are summed, over all workers."""
        return self.strategy.num_replicas_in_sync

    @property
    def num_workers(self) -> int:
        """Processes that they live in."""
        return 1 if self.cluster is None else self.cluster.num_workers

    def facts(self) -> dict[str, object]:
        """What the record says of it."""
        facts: dict[str, object] = {"name": self.name, "num_replicas": self.num_replicas, "devices": list(self.devices)}
        if self.cluster is not None:
            facts |= {"num_workers": self.num_workers, "workers": list(self.cluster.workers)}
        return facts

    @property
    def on_gpu(self) -> bool:
        """Whether the replicas are GPUs."""
        return self.devices[0].startswith("GPU")

    @property
    def on_tpu(self) -> bool:
        """Whether the replicas are the cores of a TPU."""
        return self.devices[0].startswith("TPU")

    @property
    def gpu_numbers(self) -> tuple[int, ...]:
        """The GPUs of the replicas as CUDA counts in this process; empty on CPUs."""
        return tuple(int(device.split()[0].partition(":")[2]) for device in self.devices) if self.on_gpu else ()


def make(config: StrategyConfig, *, jit_compile: bool = False, cluster: Cluster | None = None) -> Place:
    """The strategy that `config` asks for, on devices that are there.

    Must run before TensorFlow starts its devices: memory growth and logical devices are set here.

    Args:
        jit_compile: The step will be compiled with XLA, which no update of mirrored variables can enter: one device
            then gets OneDeviceStrategy, whose numbers are the same.
        cluster: The workers of `strategy=multi_worker`, all of which call this at the same time.

    Raises:
        ConfigError: more devices, or another kind, than this machine has.
        UserError: the workers cannot be joined.
    """
    if isinstance(config, TPUConfig):
        strategy, cores = tpu_strategy.join(config)
        return Place(config.name, strategy, cores, (tpu_strategy.NOT_RUN,))
    gpus = tf.config.list_physical_devices("GPU")
    use_gpu, notices = _kind(config, len(gpus))
    names = _claim_gpus(config, gpus) if use_gpu else _claim_cpus(config)
    if isinstance(config, MultiWorkerConfig):
        if cluster is None:
            raise ConfigError(
                "strategy=multi_worker without any workers.",
                "Start it with src/train.py, which finds them (TF_CONFIG, Slurm, strategy.local_workers=N).",
            )
        strategy = worker_strategy.join(config, cluster, names)
    else:
        cluster, strategy = None, _strategy(config, names, jit_compile)
    return Place(config.name, strategy, _describe(names), notices, cluster)


def _kind(config: StrategyConfig, num_gpus: int) -> tuple[bool, tuple[str, ...]]:
    if config.device == "cpu":
        if config.devices is not None:
            raise ConfigError(
                f"strategy.devices={list(config.devices)} names GPUs, but strategy.device=cpu.",
                "Leave one of the two out; strategy.replicas=N makes N logical CPU devices.",
            )
        return False, ()
    wants_gpu = config.device == "gpu" or config.devices is not None
    asked = len(config.devices) if config.devices is not None else config.replicas
    if num_gpus == 0 and (wants_gpu or asked not in (AUTO, 1)):
        raise ConfigError(
            f"Asked for {'GPUs' if asked == AUTO else f'{asked} GPU replicas'}, found no GPU that TensorFlow can use.",
            "To run on this machine's CPU give strategy.device=cpu (with strategy.replicas=N for N logical devices). "
            "On a GPU machine install the extra: uv sync --extra gpu.",
        )
    if num_gpus == 0:
        return False, ("No GPU found: one CPU replica.",)
    return True, ()


def _claim_gpus(config: StrategyConfig, gpus: list) -> list[str]:
    if config.devices is not None:
        missing = [index for index in config.devices if index >= len(gpus)]
        if missing:
            raise ConfigError(
                f"strategy.devices={list(config.devices)} asks for GPU {missing[0]}; found {len(gpus)} GPUs.",
                f"Give indices from 0 to {len(gpus) - 1}.",
            )
        chosen = [gpus[index] for index in config.devices]
    else:
        default = len(gpus) if config.name in ("mirrored", "multi_worker") else 1
        count = default if config.replicas == AUTO else config.replicas
        if count > len(gpus):
            raise ConfigError(
                f"strategy.replicas={count} asks for {count} GPUs; found {len(gpus)}.",
                f"Give strategy.replicas={len(gpus)} or fewer, or strategy.device=cpu for logical CPU devices.",
            )
        chosen = gpus[:count]
    _show_gpus(chosen)
    return [f"GPU:{index}" for index in range(len(chosen))]


def _show_gpus(gpus: list) -> None:
    """Let TensorFlow use these GPUs and no others, and take their memory as it is needed."""
    try:
        tf.config.set_visible_devices(gpus, "GPU")
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        raise ConfigError(
            f"TensorFlow has already started its devices in this process ({error}).",
            "Start a new process for each run.",
        ) from error


def _claim_cpus(config: StrategyConfig) -> list[str]:
    count = 1 if config.replicas == AUTO else config.replicas
    if tf.config.list_physical_devices("GPU"):
        _show_gpus([])
    names = [f"CPU:{index}" for index in range(count)]
    cpu = tf.config.list_physical_devices("CPU")[0]
    if count > 1:
        try:
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        except RuntimeError:
            # Devices have started: they serve if there are enough of them.
            if len(tf.config.list_logical_devices("CPU")) < count:
                raise ConfigError(
                    f"strategy.replicas={count} needs {count} logical CPU devices, but TensorFlow has already started "
                    f"{len(tf.config.list_logical_devices('CPU'))} in this process.",
                    "Start a new process for each run.",
                ) from None
    return names


def _strategy(config: StrategyConfig, names: list[str], jit_compile: bool) -> tf.distribute.Strategy:
    if config.cross_device_ops == "nccl" and names[0].startswith("CPU"):
        raise ConfigError(
            "strategy.cross_device_ops=nccl needs GPUs, but the replicas are CPUs.",
            "Use strategy.cross_device_ops=auto, hierarchical or one_device.",
        )
    if config.cross_device_ops == "hierarchical" and len(names) % 2 and len(names) > 1:
        # It sums two groups of len(names) // 2 devices: with an odd number the last one's gradients are lost.
        raise ConfigError(
            f"strategy.cross_device_ops=hierarchical sums wrongly over an odd number of replicas ({len(names)}).",
            "Use strategy.cross_device_ops=auto or one_device, or an even number of replicas.",
        )
    if config.name == "default":
        return tf.distribute.get_strategy()
    if config.name == "one_device" or (jit_compile and len(names) == 1):
        return tf.distribute.OneDeviceStrategy(names[0])
    if config.cross_device_ops == AUTO:
        return tf.distribute.MirroredStrategy(names)
    return tf.distribute.MirroredStrategy(names, cross_device_ops=CROSS_DEVICE_OPS[config.cross_device_ops]())


def _describe(names: list[str]) -> tuple[str, ...]:
    visible = tf.config.get_visible_devices("GPU")

    def describe(name: str) -> str:
        kind, index = name.split(":")
        if kind == "CPU":
            return name if len(names) == 1 else f"{name} (logical)"
        gpu = visible[int(index)]  # TensorFlow counts the visible ones anew; people count those of the machine
        number = gpu.name.rpartition(":")[2]
        return f"GPU:{number} {tf.config.experimental.get_device_details(gpu).get('device_name', '')}".strip()

    return tuple(describe(name) for name in names)
