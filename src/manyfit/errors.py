"""The errors that a user can cause: each says what was received, what was expected and how to go on."""

EXIT_FINISHED = 0
EXIT_FAILED = 1
EXIT_BAD_CONFIG = 2
EXIT_MAY_RETRY = 75
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class UserError(Exception):
    """Something asked for cannot be had; shown as a message, never as a traceback.

    Args:
        message: What was received and what was expected.
        remedy: How to go on; shown on its own line.
    """

    exit_code = EXIT_FAILED

    def __init__(self, message: str, remedy: str = ""):
        super().__init__(f"{message}\n{remedy}" if remedy else message)
        self.message = message
        self.remedy = remedy


class ConfigError(UserError):
    """A configuration that cannot be run as asked: found before any long work, exit code 2."""

    exit_code = EXIT_BAD_CONFIG


class DataError(UserError):
    """A data set that cannot be trained on as it is: found before any training, exit code 2."""

    exit_code = EXIT_BAD_CONFIG


class TrainingError(UserError):
    """A run that cannot go on; what it wrote stays readable."""
