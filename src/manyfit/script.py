"""How a script that takes plain arguments ends: with an exit code, and a message for a user's mistake."""

from collections.abc import Callable

from manyfit.console import Console
from manyfit.errors import EXIT_FINISHED, EXIT_INTERRUPTED, UserError


def exit_code_of(action: Callable[[Console], object], console: Console | None = None) -> int:
    """Do what a script is for, and say how it ended; `action` gets the console that errors go to as well."""
    console = console or Console()
    try:
        action(console)
    except UserError as error:
        console.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_FINISHED
