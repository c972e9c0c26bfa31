"""Did more replicas pay: `python src/scale.py 'replicas=[1,2,4]' data=mnist model=small_cnn` (overrides as train.py's).

Trains it on each count, each in a process of its own, and reports speed-up, efficiency, where the rest goes, whether
the result is the same, and what it costs. `mode=strong` keeps the batch of a step, `weak` that of a replica, `both`;
`repeats=3` gives intervals; `wandb=true` makes a view and a report of the group. `hydra.run.dir=PATH` is the study's
folder; given again, what is finished is kept.

`workers=[1,2]` compares numbers of processes, with strategy.replicas=N replicas each: of this machine, or, in a Slurm
job of several nodes (sbatch, salloc), one a node. `gigabits=100 microseconds=20` adds what several machines like this
one would bring over such a network: a prediction.
"""

import argparse
import sys

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from manyfit.command import hydra_command, outputs_folder, requested_run_dir
from manyfit.config import check
from manyfit.console import Console
from manyfit.record import make_run_folder
from manyfit.scaling import run_scaling, take_words
from manyfit.scaling_plan import make_plan
from manyfit.scaling_report import show_in_wandb, write_report


def main() -> None:
    """Take what is the study's own from the command line; the rest is the trainings'."""
    usage = "%(prog)s [replicas=[1,2,4] | workers=[1,2]] [mode=strong|weak|both] [repeats=N] [KEY=VALUE ...]"
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(usage=usage, description=__doc__, formatter_class=plain, allow_abbrev=False)
    sys.argv[1:] = parser.parse_known_args()[1]
    typed = sys.argv[1:]
    words, sys.argv[1:] = take_words(typed)

    @hydra_command
    def scale(composed: DictConfig) -> int:
        sys.argv[1:] = typed  # what the record of the study says
        config, console = check(composed), Console()
        asked = requested_run_dir()
        overrides = HydraConfig.get().overrides
        passed_on = [text for text in overrides.hydra if text.startswith("hydra.searchpath=")]
        plan = make_plan(words, config, [*passed_on, *overrides.task])
        folder = asked or make_run_folder(None, outputs_folder(), "scale")
        plan = plan.of_folder(folder)
        for line in plan.says:
            console.print(line)
        results = run_scaling(plan, folder, show=console.print)
        done = write_report(folder, plan, results, config)
        console.print(*done.tables)
        said = show_in_wandb(folder, plan, done, config, console.print)
        for line in (*said, *map(str, done.files)):
            console.print(line, whole_lines=True)
        return 0 if all(result.succeeded for result in results) else 1

    scale()


if __name__ == "__main__":
    main()
