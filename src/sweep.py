"""W&B sweep files without a server: look for mistakes in one, or run the whole search on this machine.

  python src/sweep.py check FILE [KEY=VALUE ...]   every mistake, with its line; exit code 2
  python src/sweep.py local FILE [KEY=VALUE ...]   the search itself, a process a run; given again, it goes on

Overrides such as data.root=PATH hold for every run, and win over the file. Sweep files are in sweeps/.
"""

import argparse
import sys
from pathlib import Path

from manyfit.command import outputs_folder, repository_root
from manyfit.console import Console
from manyfit.errors import ConfigError, UserError
from manyfit.sweep_command import checked, run_local


def main() -> int:
    """Read the command line; what is wrong with it or with the file ends in one message and code 2."""
    plain = argparse.RawDescriptionHelpFormatter
    usage = "%(prog)s check|local FILE [KEY=VALUE ...] [--workers N] [--count N] [--folder PATH]"
    parser = argparse.ArgumentParser(usage=usage, description=__doc__, formatter_class=plain, allow_abbrev=False)
    parser.add_argument("command", choices=("check", "local"))
    parser.add_argument("file", type=Path, help="such as sweeps/head.yaml")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="runs at a time")
    parser.add_argument("--count", type=int, metavar="N", help="runs in all, those of an earlier start included")
    parser.add_argument("--folder", type=Path, metavar="PATH", help="for the runs; else outputs/sweeps/NAME-HASH")
    arguments, arguments.overrides = parser.parse_known_args()
    console = Console()
    try:
        if flags := [word for word in arguments.overrides if word.startswith("-")]:
            raise ConfigError(f"{flags[0]} is no flag.", "--help lists them; overrides are KEY=VALUE.")
        file = checked(arguments.file, repository_root(), arguments.overrides)
        if arguments.command == "local":
            return run_local(file, arguments, outputs_folder(), console)
        console.print(f"{file.path}: nothing wrong, {len(file.parameters)} parameters.", whole_lines=True)
    except UserError as error:
        console.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
