"""Train one model: `python src/train.py strategy=mirrored data=cats_dogs`; `--help` shows what can be set."""

from omegaconf import DictConfig

from manyfit.command import hydra_command, repository_root, requested_run_dir
from manyfit.config import check
from manyfit.console import Console
from manyfit.quiet import quiet_tensorflow
from manyfit.record import check_unused


@hydra_command
def main(composed: DictConfig) -> int:
    """Check what was asked, train it, and print where its record is."""
    config = check(composed)
    folder = requested_run_dir()
    if folder is not None:
        check_unused(folder)
    console = Console(live=False if config.verbose else None)
    with quiet_tensorflow(config.verbose):
        from manyfit import fit
    record = fit.run(config, outputs=repository_root() / "outputs", folder=folder, console=console)
    print(record.folder)
    return record.data["exit_code"]


if __name__ == "__main__":
    main()
