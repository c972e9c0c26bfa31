"""Evaluate the models of runs: `python src/evaluate.py RUN [RUN ...] [--data-root PATH] [--data NAME] [--replicas N]`.

Exact, each example once, with 95 % intervals. With several runs, each is tested against the first on the same examples.
"""

import argparse
import sys
from pathlib import Path

from manyfit.console import Console
from manyfit.errors import EXIT_INTERRUPTED, UserError
from manyfit.files import to_json
from manyfit.quiet import quiet_tensorflow
from manyfit.report.evaluation import evaluation_tables, pairs_of, several_tables
from manyfit.trained_run import TrainedRun


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
    arguments = parser.parse_args()
    console = Console()
    try:
        for run in arguments.runs:
            TrainedRun.load(run)  # a folder that holds no run is told before TensorFlow takes its ten seconds
        with quiet_tensorflow():
            from manyfit.evaluation import evaluate_runs
        asked = {name: getattr(arguments, name) for name in ("data_root", "replicas", "device", "engine", "seed")}
        evaluations = evaluate_runs(arguments.runs, data_name=arguments.data, **asked)
    except UserError as error:
        console.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    told = [evaluation.as_dict() for evaluation in evaluations]
    if len(told) == 1:
        print(to_json(told[0])) if arguments.json else console.print(*evaluation_tables(told[0]))
        return 0
    pairs, reasons = pairs_of(evaluations, arguments.seed)
    if arguments.json:
        print(to_json({"runs": told, "pairs": [pair.as_dict() for pair in pairs], "reasons": reasons}))
    else:
        console.print(*several_tables(told, pairs, reasons))
    return 0


if __name__ == "__main__":
    sys.exit(main())
