"""What is in the folder of a run, in words, and the commands for what comes next: `python src/show.py RUN`."""

import argparse
import sys
from pathlib import Path

from manyfit.console import Console
from manyfit.errors import UserError
from manyfit.show import run_command


def main() -> int:
    """Read the run and tell of it."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    console = Console()
    try:
        run_command(arguments.run, console, as_json=arguments.json)
    except UserError as error:
        console.error(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
