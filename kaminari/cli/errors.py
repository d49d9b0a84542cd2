"""How a command says that it cannot go on: one line for the person at the terminal, and an exit code."""

from __future__ import annotations

FAILURE = 1
USAGE = 2
INTERRUPTED = 130


class CommandError(Exception):
    """A command gives up. `main` prints the message, which is one line, without a traceback."""

    def __init__(self, message: str, *, exit_code: int = FAILURE) -> None:
        super().__init__(message)
        self.exit_code = exit_code
