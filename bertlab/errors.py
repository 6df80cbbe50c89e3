"""The exceptions that decide the exit code of a command, and the signals that become one. Imports no torch."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


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


def user_path(path: str | Path, name: str) -> Path:
    """A path as a user wrote it, with ``~`` expanded.

    Args:
        path: the path.
        name: the override or argument that it comes from, for the message.

    Raises:
        UserError: for the home of a user who does not exist.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{name}={path}: {error}") from error


class RunFailure(RuntimeError):
    """A run cannot go on, though its input is not wrong: printed as one message, without a traceback; exit code 1."""


class Interrupted(BaseException):
    """A signal asked the run to stop.

    Attributes:
        exit_code: 128 plus the number of the signal.
    """

    def __init__(self, signum: int) -> None:
        """Remember the signal."""
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into ``Interrupted``, so that a run ends its files properly and with the right code.

    Workers that are forked meanwhile inherit the handler. A terminal sends Ctrl-C to them too; they leave it to their
    parent, which ends them.
    """
    owner = os.getpid()

    def stop(signum: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:
            if signum == signal.SIGTERM:
                os._exit(128 + signum)
            sys.excepthook = lambda *error: None  # what it says of the connections that break is of no interest
            return
        raise Interrupted(signum)

    before = {signum: signal.signal(signum, stop) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
