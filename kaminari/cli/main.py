"""The `kaminari` command: finds the subcommand, runs it, and turns what it raises into words and exit codes.

Exit codes: 0 done, 1 the command failed, 2 wrong usage or settings, 130 interrupted. A subcommand's module is
imported only when it is called, so that a wrong start never waits for torch.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kaminari import __version__
from kaminari.cli.errors import FAILURE, INTERRUPTED, USAGE, CommandError
from kaminari.config.problems import ConfigError, closest


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand: a module with `run(argv) -> exit code`, and a line for the help."""

    module: str
    summary: str


COMMANDS: Mapping[str, Command] = {
    "serve": Command("kaminari.cli.serve", "serve a model behind the OpenAI API"),
    "chat": Command("kaminari.cli.chat", "talk to a model in the terminal, with pictures"),
    "smoke": Command("kaminari.cli.smoke", "ask a running server simple questions about pictures"),
    "verify": Command("kaminari.cli.verify", "hold a model to the reference, stage by stage"),
    "bench": Command("kaminari.cli.bench", "measure a model beside the machine's limits and its peers"),
    "quantize": Command("kaminari.cli.quantize", "make an int8 or int4 pack of a model"),
    "config": Command("kaminari.cli.config", "print the effective settings and where each came from"),
    "doctor": Command(
        "kaminari.cli.doctor", "say whether this machine can serve a model, and what is missing"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    line = sys.argv[1:] if argv is None else list(argv)
    # argparse ends --help and --version itself, and sees no more than the first word
    parser = _parser()
    if not line:
        parser.print_help(sys.stderr)
        return USAGE
    name, extras = parser.parse_known_args(line[:1])
    command = COMMANDS.get(name.command or "")
    if command is None:
        return _complain(_unknown(*(extras or [name.command])), USAGE)
    return _run(command, line[1:])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kaminari",
        description="A local, OpenAI-compatible server for vision-language models.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands:\n"
        + "\n".join(f"  {name:8} {command.summary}" for name, command in COMMANDS.items())
        + "\n\n`kaminari COMMAND --help` says more.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kaminari {__version__}")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help="what to do, see below")
    return parser


def _unknown(word: str) -> str:
    guess = closest(word, [*COMMANDS, "--version", "--help"])
    hint = f"did you mean {guess}?" if guess is not None else f"there are {', '.join(COMMANDS)}"
    return f"kaminari: unknown command {word!r}; {hint}"


def _run(command: Command, argv: Sequence[str]) -> int:
    try:
        exit_code: int = importlib.import_module(command.module).run(argv)
        sys.stdout.flush()
    except ConfigError as error:
        return _complain(str(error), USAGE)
    except CommandError as error:
        return _complain(f"kaminari: {error}", error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # whoever read our output is gone; keep the interpreter from failing on it again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    return exit_code


def _complain(message: str, exit_code: int) -> int:
    print(message, file=sys.stderr)
    return exit_code
