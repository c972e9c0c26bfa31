"""Evaluate the models of runs: `python src/evaluate.py RUN [RUN ...] [--data-root PATH] [--data NAME] [--html FILE]`.

Exact, each example once, with 95 % intervals. With several runs, each is tested against the first on the same examples.
"""

import argparse
import sys
from pathlib import Path

from manyfit.evaluation_command import run_command
from manyfit.script_workers import add_workers_flag, exit_code_of_workers


def main() -> int:
    """Load each run's model, evaluate it exactly, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the folder of a run")
    parser.add_argument("--data-root", help="other pictures: a data set's root, or a flat folder of class folders")
    parser.add_argument("--data", help="read the root as this data set (mnist, image_folder, ...)")
    parser.add_argument("--replicas", type=int, help="replicas: GPUs where there are any, else logical CPU devices")
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto")
    engine_help = "auto: the fastest way to run the backbone that gives Keras' features to 1e-4"
    parser.add_argument("--engine", choices=("auto", "keras"), default="keras", help=engine_help)
    parser.add_argument("--seed", type=int, default=0, help="of the resamples that the intervals are made from")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    page_help = "write a page: metrics, calibration, classes and confusions, the runs side by side"
    parser.add_argument("--html", type=Path, metavar="FILE", help=page_help)
    add_workers_flag(parser)
    arguments = parser.parse_args()
    return exit_code_of_workers(arguments, lambda console, peers: run_command(arguments, console, peers))


if __name__ == "__main__":
    sys.exit(main())
