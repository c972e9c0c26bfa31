"""What pays: `python src/ablate.py data=mnist model=small_cnn` (the overrides of train.py make the baseline).

Trains it as it is, first and last, and with each switch changed, each in a process of its own; prints which switch
paid and by how much. `hydra.run.dir=PATH` is the study's folder; given again, what is finished is kept.
"""

import argparse
import dataclasses
import sys

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from manyfit.ablation import run_ablation
from manyfit.command import hydra_command, outputs_folder, requested_run_dir
from manyfit.config import check
from manyfit.console import Console
from manyfit.files import to_json, write_atomically
from manyfit.record import environment, make_run_folder
from manyfit.report.ablation import BASELINE, ablation, ablation_tables
from manyfit.report.verdict import flatten


def main() -> None:
    """Take what is the ablation's own from the command line; the rest is the baseline's."""
    usage, plain = "%(prog)s [--repeats N] [--only KEY,KEY] [KEY=VALUE ...]", argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(usage=usage, description=__doc__, formatter_class=plain, allow_abbrev=False)
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="train everything N times, interleaved")
    parser.add_argument("--only", default="", metavar="KEY,KEY", help="the switches to look at (batch: its size)")
    arguments, sys.argv[1:] = parser.parse_known_args()

    @hydra_command
    def ablate(composed: DictConfig) -> int:
        settings = flatten(dataclasses.asdict(check(composed)))
        overrides = list(HydraConfig.get().overrides.task)
        console = Console()
        folder = requested_run_dir() or make_run_folder(None, outputs_folder(), "ablate")
        changes, results = run_ablation(
            settings,
            overrides,
            folder,
            repeats=max(1, arguments.repeats),
            only=list(filter(None, arguments.only.split(","))),
            show=console.print,
        )
        records: dict[str, list] = {}
        for result in results:
            if result.succeeded and result.record:
                records.setdefault(result.point.name, []).append(result.record)
        errors = {result.point.name: result.error for result in results if result.error}
        found = ablation(changes, records.pop(BASELINE), records, errors)
        facts = {**found.as_dict(), "overrides": overrides, **environment()}
        write_atomically(folder / "ablation.json", to_json(facts, indent=2) + "\n")
        console.print(*ablation_tables(found))
        print(folder / "ablation.json")
        return 0

    ablate()


if __name__ == "__main__":
    main()
