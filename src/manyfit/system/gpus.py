"""The GPUs of a run, read through NVML: which they are, and what they do."""

import contextlib
import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from manyfit.config import AUTO, TrackerConfig
from manyfit.errors import ConfigError

NO_SAMPLES = "no GPU samples"
METRICS = (
    "utilization_percent",
    "memory_utilization_percent",
    "memory_used_bytes",
    "power_watts",
    "temperature_celsius",
    "sm_clock_megahertz",
    "memory_clock_megahertz",
)
"""Of one GPU. `memory_utilization_percent` is the share of time in which its memory was read or written."""

_ABSENT = {getattr(pynvml, f"NVML_ERROR_{name}") for name in ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "NO_PERMISSION")}
"""What a GPU answers for a value that it never has."""


def _utilization(gpu: Any) -> tuple[float, float]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(gpu)
    return rates.gpu, rates.memory


_READINGS: dict[tuple[str, ...], Callable[[Any], tuple[float, ...]]] = {
    METRICS[:2]: _utilization,
    METRICS[2:3]: lambda gpu: (pynvml.nvmlDeviceGetMemoryInfo(gpu).used,),
    METRICS[3:4]: lambda gpu: (pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,),
    METRICS[4:5]: lambda gpu: (pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),),
    METRICS[5:6]: lambda gpu: (pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),),
    METRICS[6:7]: lambda gpu: (pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),),
}
"""One call each, so that what a GPU does not tell costs nothing else."""


class Gpus:
    """The GPUs that are sampled.

    Args:
        names: The name of each, by its index as NVML (and `nvidia-smi`) counts.
        why_none: Why there are none, in words that follow `no GPU samples: `.
        is_fault: The user should hear of it.

    Attributes:
        problem: What the last reading that failed said; None before any has.
    """

    def __init__(self, names: dict[int, str] | None = None, why_none: str = "", *, is_fault: bool = False):
        self.names = names or {}
        self.note = None if self.names else f"{NO_SAMPLES}: {why_none}"
        self.is_fault = is_fault
        self.problem: str | None = None

    @property
    def indices(self) -> tuple[int, ...]:
        """Of each GPU, as NVML counts."""
        return tuple(self.names)

    def in_words(self) -> str | None:
        """`4 x NVIDIA H200`; None for no GPU."""
        counts = {name: list(self.names.values()).count(name) for name in self.names.values()}
        return ", ".join(f"{count} x {name}" for name, count in counts.items()) or None

    def read(self) -> list[dict[str, Any]]:
        """The values of each GPU now; None for one that it does not tell. Never raises."""
        return [{"index": index, "name": name, **self._read(index)} for index, name in self.names.items()]

    def _read(self, index: int) -> dict[str, float | None]:
        values: dict[str, float | None] = dict.fromkeys(METRICS)
        try:
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        except Exception as error:
            self._failed(index, error)
            return values
        for names, reading in _READINGS.items():
            try:
                values.update(zip(names, reading(gpu), strict=True))
            except Exception as error:
                self._failed(index, error)
        return values

    def _failed(self, index: int, error: Exception) -> None:
        if not (isinstance(error, pynvml.NVMLError) and getattr(error, "value", None) in _ABSENT):
            self.problem = f"GPU {index}: {error}"

    def close(self) -> None:
        """Let go of NVML. Never raises."""
        if self.names:
            with contextlib.suppress(Exception):
                pynvml.nvmlShutdown()


def choose(config: TrackerConfig, cuda_numbers: Sequence[int]) -> Gpus:
    """The GPUs that the samples are to be of.

    Args:
        config: Says whether GPUs are sampled, and which.
        cuda_numbers: Those that the run uses, as CUDA and TensorFlow count in this process.

    Raises:
        ConfigError: GPUs are asked for that NVML does not find.
    """
    asked = config.system_metrics_gpus
    if config.system_metrics_seconds is None:
        return Gpus(why_none="tracker.system_metrics_seconds=null")
    if asked == AUTO and not cuda_numbers:
        return Gpus(why_none="the run uses no GPU")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _none(asked, f"NVML, which NVIDIA's driver brings, cannot be used ({error})")
    try:
        found = pynvml.nvmlDeviceGetCount()
        indices = _of_cuda(cuda_numbers) if asked == AUTO else range(found) if asked == "all" else asked
        missing = [index for index in indices if index >= found]  # pyright: ignore[reportOperatorIssue]
        if missing or not found:
            count = f"NVML finds {found} GPUs" if found else "NVML finds no GPU"
            return _none(asked, count)
        names = {int(index): str(_name(int(index))) for index in indices}
    except (pynvml.NVMLError, OSError) as error:
        return _none(asked, f"the GPUs cannot be told apart ({error})")
    return Gpus(names)


def _none(asked: str | Sequence[int], why: str) -> Gpus:
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()
    if asked == AUTO:
        return Gpus(why_none=why, is_fault=True)
    value = asked if isinstance(asked, str) else f"[{','.join(map(str, asked))}]"
    raise ConfigError(
        f"tracker.system_metrics_gpus={value} cannot be sampled: {why}.",
        "Give indices as nvidia-smi shows them, or leave it at auto.",
    )


def _name(index: int) -> str:
    return pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index))


def _of_cuda(numbers: Sequence[int]) -> list[int]:
    """The NVML indices of GPUs that CUDA counts in its own way.

    CUDA leaves out what CUDA_VISIBLE_DEVICES hides and orders by speed or as CUDA_DEVICE_ORDER says; NVML counts all,
    in the order of the bus. So the driver itself is asked where on the bus each of its devices is.

    Raises:
        OSError: CUDA's driver is missing or fails.
        pynvml.NVMLError: NVML knows no GPU there.
    """
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        code = getattr(driver, name)(*arguments)
        if code:
            raise OSError(f"{name} of CUDA's driver answers {code}")

    call("cuInit", 0)
    indices = []
    for number in numbers:
        device, address = ctypes.c_int(), ctypes.create_string_buffer(32)
        call("cuDeviceGet", ctypes.byref(device), int(number))
        call("cuDeviceGetPCIBusId", address, len(address), device)
        indices.append(pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId(address.value)))
    return indices
