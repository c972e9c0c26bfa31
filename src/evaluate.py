"""Evaluate the model of a run: `python src/evaluate.py RUN [--data-root PATH] [--data NAME] [--replicas N]`."""

import argparse
import json
import sys
from pathlib import Path

from manyfit.console import Console
from manyfit.errors import UserError
from manyfit.quiet import quiet_tensorflow
from manyfit.record import RunRecord
from manyfit.report.evaluation import evaluation_tables


def main() -> int:
    """Load the run's model, evaluate it exactly, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--data-root", help="other pictures: a data set's root, or a flat folder of class folders")
    parser.add_argument("--data", help="read the root as this data set (mnist, image_folder, ...)")
    parser.add_argument("--replicas", type=int, help="replicas: GPUs where there are any, else logical CPU devices")
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto")
    engine_help = "auto: the fastest way to run the backbone that gives Keras' features to 1e-4"
    parser.add_argument("--engine", choices=("auto", "keras"), default="keras", help=engine_help)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    arguments = parser.parse_args()
    console = Console()
    try:
        RunRecord.load(arguments.run)  # a folder that holds no run is told before TensorFlow takes its ten seconds
        with quiet_tensorflow():
            from manyfit.evaluation import evaluate_run
        evaluation = evaluate_run(
            arguments.run,
            data_root=arguments.data_root,
            data_name=arguments.data,
            replicas=arguments.replicas,
            device=arguments.device,
            engine=arguments.engine,
        )
    except UserError as error:
        console.error(error)
        return error.exit_code
    if arguments.json:
        print(json.dumps(evaluation.as_dict()))
    else:
        console.print(*evaluation_tables(evaluation.as_dict()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
