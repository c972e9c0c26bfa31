"""A stand-in for Slurm's `srun`: starts the tasks here, with the variables of a step of as many nodes.

The nodes are addresses of loopback, 127.0.0.1, 127.0.0.2, ...: hosts of their own, as far as anybody can tell.
"""

import os
import subprocess
import sys
from pathlib import Path


def put(folder: Path, log: Path) -> Path:
    """Make an executable `srun` in `folder`, which appends the options it is given to `log`; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "srun"
    program.write_text(f"#!/bin/sh\nSRUN_LOG='{log}' exec '{sys.executable}' '{__file__}' \"$@\"\n")
    program.chmod(0o755)
    return folder


def main() -> int:
    """Start the tasks, wait for them; the highest exit code, as srun's."""
    options = [word for word in sys.argv[1:] if word.startswith("--")]
    options = options[: next((n for n, word in enumerate(sys.argv[1:]) if not word.startswith("--")), len(options))]
    command = sys.argv[1 + len(options) :]
    given = dict(option[2:].split("=", 1) for option in options)
    with Path(os.environ.pop("SRUN_LOG")).open("a") as log:
        log.write(" ".join(options) + "\n")
    tasks = int(given["ntasks"])
    step = {
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_STEP_NODELIST": f"127.0.0.[1-{tasks}]" if tasks > 1 else "127.0.0.1",
        "SLURM_STEP_TASKS_PER_NODE": f"1(x{tasks})" if tasks > 1 else "1",
    }
    processes = [
        subprocess.Popen(command, env={**os.environ, **step, "SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank)})
        for rank in range(tasks)
    ]
    return max(process.wait() for process in processes)


if __name__ == "__main__":
    sys.exit(main())
