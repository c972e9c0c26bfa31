"""What is in the folder of a run, in words, and the commands for what comes next: `python src/show.py RUN`."""

import argparse
import sys
from pathlib import Path

from manyfit.script import exit_code_of
from manyfit.show import run_command


def main() -> int:
    """Read the run and tell of it."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    return exit_code_of(lambda console: run_command(arguments.run, console, as_json=arguments.json))


if __name__ == "__main__":
    sys.exit(main())
