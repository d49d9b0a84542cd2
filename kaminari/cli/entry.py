"""Where the `kaminari` command starts: whoever interrupts it while it is imported sees no traceback."""

from __future__ import annotations

from kaminari.cli.errors import INTERRUPTED


def main() -> int:
    """Run the command line of this process and return its exit code."""
    try:
        # imported here, where an interruption is caught: it takes the better part of a second
        from kaminari.cli.main import main as command

        return command()
    except KeyboardInterrupt:
        return INTERRUPTED
