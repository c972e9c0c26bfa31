"""GPUs for machines without any: a libnvidia-ml.so.1 that tells steps of time, and what it tells.

By hand: `eval "$(python tests/nvml_stub.py FOLDER)"` compiles it into FOLDER and sets the variables; then, with
`tracker.system_metrics_gpus=all`, a run on CPUs gets samples of four 'GPUs'. What a process started with them reads
from NVML:

    NVML_STUB_GPUS      how many GPUs there are (4)
    NVML_STUB_SECONDS   how long each value lasts (2)
    NVML_STUB_FAILURES  a file with lines `FUNCTION CODE`, read at each call: that call returns that NVML error
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAME = "Stub GPU"
SOURCE = Path(__file__).with_suffix(".c")


def has_compiler() -> bool:
    """Whether the stub can be made here."""
    return shutil.which("cc") is not None and sys.platform == "linux"


def build(folder: Path) -> Path:
    """Compile the stub; returns the library in `folder`, which belongs on LD_LIBRARY_PATH."""
    library = Path(folder) / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    return library


def environment(folder: Path, **variables: object) -> dict[str, str]:
    """Variables for a process that is to find the stub: `environment(folder, gpus=2, seconds=0.5)`."""
    paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    named = {f"NVML_STUB_{key.upper()}": str(value) for key, value in variables.items()}
    return {"LD_LIBRARY_PATH": ":".join(paths), **named}


def expected(index: int, time: float, seconds: float = 2.0) -> dict[str, float]:
    """What the stub tells of a GPU at a Unix time, by the names of `system.jsonl`."""
    step = int(time / seconds) % 6
    utilization = 40 + 10 * index + 5 * step
    return {
        "utilization_percent": utilization,
        "memory_utilization_percent": utilization // 2,
        "memory_used_bytes": (index + 1 << 30) + (step << 28),
        "power_watts": 100 + 20 * index + 25 * step,
        "temperature_celsius": 40 + index + step,
        "sm_clock_megahertz": 1200 + 15 * step,
        "memory_clock_megahertz": 2600,
    }


if __name__ == "__main__":
    target = Path(sys.argv[1]).absolute()
    target.mkdir(parents=True, exist_ok=True)
    build(target)
    for name, value in environment(target, gpus=4).items():
        print(f"export {name}={value}")
