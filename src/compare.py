"""Did it pay: `python src/compare.py RUN RUN ...` compares any runs, from their folders, without a server.

Prints what differs, speed-up, efficiency, cost and a verdict; `--html FILE` makes a page of it that opens anywhere.
"""

import argparse
import sys
from pathlib import Path

from manyfit.report.compare_command import run_command
from manyfit.script import exit_code_of


def main() -> int:
    """Read the runs, show what may be said of them, and write what was asked for."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain, allow_abbrev=False)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the folder of a run")
    parser.add_argument("--baseline", type=Path, metavar="RUN", help="what the others are compared with")
    parser.add_argument("--target", type=float, metavar="SHARE", help="validation accuracy to count time and cost to")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page: tables and charts, no network")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every claim as JSON")
    parser.add_argument("--png", type=Path, metavar="FOLDER", help="write each chart as a picture")
    parser.add_argument("--price", type=float, metavar="NUMBER", help="price an hour, over what the runs say")
    parser.add_argument("--per", choices=("machine", "device"), help="what that is the price of")
    parser.add_argument("--currency", metavar="CODE", help="USD, EUR, GBP, ...")
    parser.add_argument("--wandb", action="store_true", help="save a view and a report of these runs in W&B")
    arguments = parser.parse_args()
    return exit_code_of(lambda console: run_command(arguments, console))


if __name__ == "__main__":
    sys.exit(main())
