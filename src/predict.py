"""Labels with probabilities: `python src/predict.py RUN FILES|FOLDER|GLOB [--csv FILE] [--html FILE [--explain]]`.

Any number of pictures. Without --csv and --html, a line for each. Files that are no pictures are reported and left out.
"""

import argparse
import sys
from pathlib import Path

from manyfit.prediction_command import run_command
from manyfit.report.prediction import MOST_THUMBNAILS
from manyfit.script_workers import add_workers_flag, exit_code_of_workers


def main() -> int:
    """Find the pictures, ask the run's model, show and write what it says."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain, allow_abbrev=False)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
    parser.add_argument("pictures", nargs="+", metavar="PICTURES", help="files, folders, patterns like 'a/**/*.jpg'")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write path, label, probability, and a column a class")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page of thumbnails, the surest first")
    explain_help = "lay over each picture of the page what speaks for its label (Grad-CAM)"
    parser.add_argument("--explain", action="store_true", help=explain_help)
    parser.add_argument("--thumbnails", type=int, default=MOST_THUMBNAILS, metavar="N", help="pictures on it, at most")
    parser.add_argument("--replicas", type=int, metavar="N", help="GPUs where there are any, else logical CPU devices")
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto")
    add_workers_flag(parser)
    arguments = parser.parse_args()
    return exit_code_of_workers(arguments, lambda console, peers: run_command(arguments, console, peers))


if __name__ == "__main__":
    sys.exit(main())
