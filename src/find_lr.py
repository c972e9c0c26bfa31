"""Which learning rate to train with: `python src/find_lr.py data=mnist model=small_cnn` (the overrides of train.py).

The learning-rate range test: under the configured strategy, batch, augmentation and precision the rate grows from
--lowest to --highest, a step at a time, until the loss is four times the best. Prints the curve and the
`optimizer.learning_rate=...` that it suggests, and leaves find_lr.json and find_lr.html. No weights are kept.
`hydra.run.dir=PATH` is its folder.
"""

import argparse
import sys

from omegaconf import DictConfig

from manyfit.command import hydra_command, outputs_folder, requested_run_dir
from manyfit.config import check
from manyfit.console import Console
from manyfit.errors import UserError
from manyfit.quiet import quiet_tensorflow
from manyfit.record import check_unused
from manyfit.report.learning_rate_page import range_words, write_range
from manyfit.report.learning_rate_range import RangeSettings, check_asked


def main() -> None:
    """Take what is the test's own from the command line; the rest is the training's."""
    usage = "%(prog)s [--lowest RATE] [--highest RATE] [--steps N] [KEY=VALUE ...]"
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(usage=usage, description=__doc__, formatter_class=plain, allow_abbrev=False)
    default = RangeSettings()
    parser.add_argument("--lowest", type=float, default=default.lowest, help="rate of the first step (%(default)g)")
    parser.add_argument("--highest", type=float, default=default.highest, help="rate of the last step (%(default)g)")
    parser.add_argument("--steps", type=int, default=default.steps, metavar="N", help="how many (%(default)s)")
    typed = sys.argv[1:]
    arguments, sys.argv[1:] = parser.parse_known_args()

    @hydra_command
    def find_lr(composed: DictConfig) -> int:
        sys.argv[1:] = typed  # what the test's own facts say
        settings = RangeSettings(arguments.lowest, arguments.highest, arguments.steps)
        config, folder = check(composed), requested_run_dir()
        check_asked(config)
        if folder is not None:
            check_unused(folder)
        console = Console(live=False if config.verbose else None)
        with quiet_tensorflow(config.verbose):
            from manyfit.learning_rate_range import find_learning_rate
        found = find_learning_rate(config, settings, outputs=outputs_folder(), folder=folder, console=console)
        files = write_range(found.folder, found.test, found.facts)
        console.print(*range_words(found.test))
        for file in files:
            console.print(str(file), whole_lines=True)
        if found.test.problem:
            console.log(f"error: {found.test.problem}")
            raise UserError(found.test.problem)  # after what was measured is there to be looked at
        return 0

    find_lr()


if __name__ == "__main__":
    main()
