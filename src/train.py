"""Train one model: `python src/train.py strategy=mirrored data=cats_dogs`; `--help` shows what can be set.

With `-m` (--multirun) every combination of values that commas part is trained, each in a process of its own:
`python src/train.py -m optimizer.learning_rate=0.01,0.001 seed=0,1`. W&B's sweep agents start this script as well.
"""

from dataclasses import asdict

from omegaconf import DictConfig

from manyfit.command import asked_overrides, hydra_command, outputs_folder, requested_run_dir
from manyfit.config import WandbConfig, check
from manyfit.multirun import run_many
from manyfit.quiet import imported_beside, quiet_tensorflow
from manyfit.record import check_unused
from manyfit.resume import Finished, resolve
from manyfit.sweep_run import arrived, is_agents_child, run_supervised
from manyfit.workers import assembled, console_of, run_workers


@hydra_command(many=lambda arguments: run_many(arguments, outputs_folder()))
def main(composed: DictConfig) -> int:
    """Check what was asked, train it, and print where its record is."""
    config = check(composed)
    arrived(config)
    try:
        config, folder = resolve(config, composed, requested_run_dir(), asked_overrides())
    except Finished as finished:
        print(finished)
        return finished.exit_code
    if folder is not None and config.resume.folder is None:
        check_unused(folder)
    if is_agents_child():
        return run_supervised(outputs_folder(), folder)
    if (code := run_workers(config.strategy)) is not None:
        return code
    console = console_of(config.strategy, verbose=config.verbose)
    wandb = "wandb" if isinstance(config.tracker, WandbConfig) else None
    with assembled(config.strategy, asdict(config), console) as peers:
        with quiet_tensorflow(config.verbose), imported_beside(wandb):
            from manyfit import fit
        record = fit.run(config, outputs=outputs_folder(), folder=folder, console=console, peers=peers)
    if peers.is_chief:
        print(record.folder)
    return record.data["exit_code"]


if __name__ == "__main__":
    main()
