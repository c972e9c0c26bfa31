"""How the jobs of a multirun are started by submitit: what `hydra.launcher` says, checked, and handed over."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyfit.errors import ConfigError, UserError

SLURM, LOCAL = "slurm", "local"


@dataclass(frozen=True)
class Launcher:
    """How jobs are started.

    Args:
        kind: `slurm` or `local`.
        parameters: The values below `hydra.launcher`.
    """

    kind: str
    parameters: dict[str, Any]

    @property
    def name(self) -> str:
        """Who runs the jobs, in words."""
        return "Slurm" if self.kind == SLURM else "submitit, all at a time"

    @property
    def tasks(self) -> int:
        """The tasks of one job."""
        return int(self.parameters.get("nodes") or 1) * int(self.parameters.get("tasks_per_node") or 1)

    def check(self, strategies: Sequence[str]) -> None:
        """Refuse what the jobs cannot be started with.

        Args:
            strategies: The strategy of each job.

        Raises:
            ConfigError: several tasks for a training that is one process; no Slurm on this machine.
        """
        wrong = sorted(set(strategies) - {"multi_worker"})
        if self.tasks > 1 and wrong:
            raise ConfigError(
                f"hydra.launcher gives each job {self.tasks} tasks (nodes x tasks_per_node), but strategy={wrong[0]} "
                "trains in one process: each task would make a run of its own.",
                "Use strategy=multi_worker, or one node and one task.",
            )
        if self.kind == LOCAL and self.tasks > 1:
            raise ConfigError(
                f"hydra/launcher=submitit_local with {self.tasks} tasks a job tells them nothing of each other.",
                "Use strategy=multi_worker strategy.local_workers=N and one task.",
            )
        if self.kind == SLURM and shutil.which("srun") is None:
            raise ConfigError(
                "hydra/launcher=submitit_slurm needs Slurm, but there is no srun on the PATH.",
                "Start it where sbatch works, or leave hydra/launcher out: one job after the other, on this machine.",
            )


def submit(work: Sequence[Callable[[], Any]], launcher: Launcher) -> list[Any]:
    """Submitit's jobs, one for each piece of work, in order; of Slurm one array.

    Args:
        work: What is pickled, and called in each task of its job.

    Raises:
        UserError: they are not accepted.
    """
    # At its import it sets up logging anew for the whole process, which closes the handlers of everybody else.
    os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")
    import submitit
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
    from omegaconf import OmegaConf
    from submitit.core.utils import FailedJobError

    common = set(OmegaConf.structured(BaseQueueConf).keys())
    given = {name: value for name, value in launcher.parameters.items() if name != "_target_"}
    folder = given.pop("submitit_folder")
    first = {f"{launcher.kind}_{name}": given.pop(name) for name in ("max_num_timeout",) if name in given}
    try:
        with _of_the_job(), _errors_in(launcher):
            executor = submitit.AutoExecutor(folder=folder, cluster=launcher.kind, **first)
            executor.update_parameters(
                **{name if name in common else f"{launcher.kind}_{name}": value for name, value in given.items()}
            )
            with executor.batch():
                return [executor.submit(one) for one in work]
    except (RuntimeError, ValueError, TypeError, FailedJobError, OSError) as error:
        said = [line.strip() for line in str(error).splitlines() if line.strip()]
        told = next((line for line in said if "error:" in line), said[-1] if said else type(error).__name__)
        raise UserError(
            f"The jobs were not accepted: {told}.", "See hydra.launcher.*; sbatch --test-only tells the same."
        ) from error


@contextlib.contextmanager
def _errors_in(launcher: Launcher) -> Iterator[None]:
    """Inside, processes that submitit starts on this machine write to a file beside the jobs, not to the screen."""
    if launcher.kind != LOCAL:
        yield
        return
    log = Path(launcher.parameters["submitit_folder"]).parent / "submitit.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    screen = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(screen, 2)
            os.close(screen)


@contextlib.contextmanager
def _of_the_job() -> Iterator[None]:
    """Inside, what is submitted will find this package, and takes nothing from a job that this process is part of."""
    own = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(("SLURM_", "SLURMD_", "SRUN_"))}
    if "SLURM_CONF" in own:
        os.environ["SLURM_CONF"] = own["SLURM_CONF"]
    before = os.environ.get("PYTHONPATH")
    source = str(Path(__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([source, *([before] if before else [])])
    try:
        yield
    finally:
        os.environ.update(own)
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
