"""One model, raw pixels to probabilities: `python src/export.py RUN --format keras|saved_model|tflite|onnx`.

Resizing and preprocessing are inside. The model is loaded again and must agree with the run's own; a model card goes
with it. It lands in RUN/export/FORMAT, or in --out.
"""

import argparse
import sys
from pathlib import Path

from manyfit.export_command import run_command
from manyfit.export_names import DYNAMIC, FILE_NAMES, QUANTIZATIONS
from manyfit.script import exit_code_of


def main() -> int:
    """Export the run's model, check it, and say where it is."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain, allow_abbrev=False)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
    parser.add_argument("--format", choices=tuple(FILE_NAMES), required=True)
    quantize_help = "tflite only: dynamic (8-bit weights, the default of the flag) or float16 (16-bit weights)"
    parser.add_argument("--quantize", nargs="?", const=DYNAMIC, choices=QUANTIZATIONS, help=quantize_help)
    parser.add_argument("--out", type=Path, metavar="PATH", help="the new folder")
    parser.add_argument("--tolerance", type=float, metavar="X", help="largest difference of a probability accepted")
    data_help = "pictures to compare on: a data set's root, or a flat folder of class folders"
    parser.add_argument("--data-root", metavar="PATH", help=data_help)
    parser.add_argument("--rehearsal-ok", action="store_true", help="export a model that learned from drawn pictures")
    arguments = parser.parse_args()
    return exit_code_of(lambda console: run_command(arguments, console))


if __name__ == "__main__":
    sys.exit(main())
