"""Self-check: `python src/check.py strategy=mirrored model=small_cnn data=synthetic` (the same overrides as train.py).

Trains a few steps on one replica and on all of them and compares losses and weights; exit code 1 on a mismatch.
"""

from omegaconf import DictConfig

from manyfit.command import hydra_command
from manyfit.config import check
from manyfit.console import Console
from manyfit.record import environment
from manyfit.report.self_check import self_check_tables
from manyfit.self_check import self_check


@hydra_command
def main(composed: DictConfig) -> int:
    """Compare one replica with many on this machine's devices."""
    config = check(composed)
    console = Console()
    console.print("training a few steps on all replicas, then on one ...")
    comparison = self_check(config)
    console.print(*self_check_tables(comparison, environment()["versions"]))
    if not comparison.passed and not config.model.sync_batch_norm:
        console.print(
            "model.sync_batch_norm=false: each replica has batch-norm statistics of its own, which differ by design."
        )
    return 0 if comparison.passed else 1


if __name__ == "__main__":
    main()
