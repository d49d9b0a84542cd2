"""Command-line flags made from the fields of the settings, so that both are always the same set.

Values stay text here: the settings check them, and a bad flag stands in the same report as a bad variable.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kaminari.config.fields import POSITIONAL, SettingField, setting_fields
from kaminari.config.loading import LoadedSettings, load_with_origins
from kaminari.config.problems import Problem, closest, shown, sounds_secret
from kaminari.config.settings import Settings
from kaminari.config.units import spell

_NEGATIVE_NUMBER = re.compile(r"-\d*\.?\d+")


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    """The command's own arguments, and the settings with their origins."""

    args: argparse.Namespace
    loaded: LoadedSettings

    @property
    def settings(self) -> Settings:
        return self.loaded.settings


class CommandParser(argparse.ArgumentParser):
    """A parser that remembers which settings it has flags for (`fields`)."""

    fields: tuple[SettingField, ...] = ()

    @property
    def flags(self) -> list[str]:
        """Every flag that it knows, the command's own included."""
        return list(self._option_string_actions)


def command_parser(command: str, description: str) -> CommandParser:
    """A parser for `kaminari <command>`; it guesses no flag from its beginning."""
    return CommandParser(
        prog=f"kaminari {command}",
        description=description,
        usage=f"kaminari {command} [MODEL] [FLAGS]",
        epilog="Every setting is also an environment variable, named in brackets; a flag wins over it.",
        allow_abbrev=False,
    )


def add_settings_flags(
    parser: CommandParser, groups: Collection[str] | None = None, *, but: Collection[str] = ()
) -> None:
    """Add MODEL and a flag for every field of the named groups of settings (None: of all).

    but:  names of fields that the command has no use for
    """
    sections: dict[str, argparse._ArgumentGroup] = {}
    for field in setting_fields():
        group = field.path[0]
        if (groups is not None and group not in groups) or field.name in but:
            continue
        parser.fields += (field,)
        if field.path == POSITIONAL:
            parser.add_argument(
                field.name, nargs="?", default=argparse.SUPPRESS, metavar=field.flag, help=_help(field)
            )
            continue
        if group not in sections:
            about = Settings.model_fields[group].description
            sections[group] = parser.add_argument_group(group, about)
        sections[group].add_argument(
            field.flag,
            dest=field.name,
            default=argparse.SUPPRESS,
            metavar="|".join(field.choices) or field.path[-1].upper(),
            help=_help(field),
        )


def parse_command(
    parser: CommandParser, argv: Sequence[str], environ: Mapping[str, str] | None = None
) -> ParsedCommand:
    """Parse a command line and load the settings, with one report for flags and environment together.

    Raises `ConfigError`; the command's own arguments fail as argparse does (usage, exit code 2).
    """
    line, problems = _take_out_valueless(argv, parser.fields)
    args, extras = parser.parse_known_args(line)
    unknown = [token for token in extras if token.startswith("-")]
    if unknown:
        # the value of an unknown flag must not be taken for MODEL
        line, unknown_flags = _take_out_unknown(line, unknown, parser)
        problems += unknown_flags
        args, extras = parser.parse_known_args(line)
    problems += [
        Problem(token, None, "an argument too many", "leave it out")
        for token in extras
        if not token.startswith("-")
    ]
    values = vars(args)
    flags = {field.name: values[field.name] for field in parser.fields if field.name in values}
    return ParsedCommand(args, load_with_origins(flags, environ, problems))


def _take_out_valueless(
    argv: Sequence[str], fields: Iterable[SettingField]
) -> tuple[list[str], list[Problem]]:
    """The command line without the settings' flags that lack a value, and a problem for each."""
    known = {field.flag: field for field in fields if field.path != POSITIONAL}
    rest: list[str] = []
    problems = []
    for token, following in itertools.zip_longest(argv, argv[1:]):
        valueless = following is None or (
            following.startswith("-") and not _NEGATIVE_NUMBER.fullmatch(following)
        )
        field = known.get(token)
        if field is not None and valueless:
            fix = f"for example {field.flag} {field.expects.example}"
            problems.append(Problem(field.flag, None, f"no value; expected {field.expects.text}", fix))
        else:
            rest.append(token)
    return rest, problems


def _take_out_unknown(
    argv: Sequence[str], unknown: Iterable[str], parser: CommandParser
) -> tuple[list[str], list[Problem]]:
    """The command line without its unknown flags and what looks like their values, and a problem for each."""
    pending = list(unknown)
    rest: list[str] = []
    problems = []
    tokens = list(argv)
    while tokens:
        token = tokens.pop(0)
        if token not in pending:
            rest.append(token)
            continue
        pending.remove(token)
        flag, equals, value = token.partition("=")
        if not equals and tokens and not tokens[0].startswith("-"):
            value = tokens.pop(0)
        problems.append(_unknown_flag(flag, value, parser))
    return rest, problems


def _unknown_flag(flag: str, value: str, parser: CommandParser) -> Problem:
    guess = closest(flag, parser.flags)
    fix = "leave it out; --help lists every flag" if guess is None else f"did you mean {guess}?"
    meant = next((field for field in parser.fields if field.flag == guess), None)
    secret = sounds_secret(flag) or (meant is not None and meant.secret)
    return Problem(flag, shown(value, secret=secret) if value else None, "there is no such flag", fix)


def _help(field: SettingField) -> str:
    default = "unset" if field.default is None else spell(field.default)
    return f"{field.description} (default: {default}) [{field.variable}]".replace("%", "%%")
