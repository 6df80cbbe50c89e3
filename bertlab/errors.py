"""The exceptions that decide the exit code of a command."""

import signal


class UserError(ValueError):
    """Bad input from the user: one message that names the file, line or override and says what to do.

    The commands print it without a traceback and exit with code 2. Everything else that escapes is a failure of the run
    (exit code 1).
    """


def check(problems: list[str]) -> None:
    """Raise all the ``problems`` in one message; do nothing when there are none.

    Args:
        problems: one line for each thing that is wrong.

    Raises:
        UserError: when there is at least one problem.
    """
    if problems:
        raise UserError("\n".join(problems))


class Interrupted(BaseException):
    """A signal asked the run to stop.

    Attributes:
        exit_code: 128 plus the number of the signal.
    """

    def __init__(self, signum: int) -> None:
        """Remember the signal."""
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum
