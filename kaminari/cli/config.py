"""`kaminari config`: the effective settings, a line each, and where each came from. Loads no model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kaminari.cli.flags import add_settings_flags, command_parser, parse_command
from kaminari.config.environment import Origin, OriginKind
from kaminari.config.fields import SettingField, setting_fields
from kaminari.config.loading import LoadedSettings
from kaminari.config.problems import HIDDEN
from kaminari.config.units import spell


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """One field, its value as text, and its origin. A secret that is set shows as asterisks."""

    field: SettingField
    value: str | None
    origin: Origin


def run(argv: Sequence[str]) -> int:
    parser = command_parser("config", "Print the effective settings and where each came from.")
    parser.add_argument("--json", action="store_true", help="print a JSON array instead of lines")
    add_settings_flags(parser)
    command = parse_command(parser, argv)
    settings = list(effective_settings(command.loaded))
    print(as_json(settings) if command.args.json else as_lines(settings))
    return 0


def effective_settings(loaded: LoadedSettings) -> Iterator[EffectiveSetting]:
    """Every field of the settings, in the order of the tree."""
    for field in setting_fields(type(loaded.settings)):
        value: object = loaded.settings
        for part in field.path:
            value = getattr(value, part)
        text = None if value is None else HIDDEN if field.secret and value else spell(value)
        yield EffectiveSetting(field, text, loaded.origin(field.path))


def as_lines(settings: Sequence[EffectiveSetting]) -> str:
    """Name, value and origin, in columns."""
    names = max(len(setting.field.name) for setting in settings)
    values = max(len(setting.value or "unset") for setting in settings)
    values = min(values, max(20, shutil.get_terminal_size().columns // 3))
    return "\n".join(
        f"{setting.field.name:{names}}  {setting.value or 'unset':{values}}  {_source(setting.origin)}"
        for setting in settings
    )


def as_json(settings: Sequence[EffectiveSetting]) -> str:
    """A JSON array of objects: name, value (text or null), origin, and the names that set it."""
    rows = [
        {
            "name": setting.field.name,
            "value": setting.value,
            "origin": setting.origin.kind.value,
            "set_by": None if setting.origin.kind is OriginKind.DEFAULT else setting.origin.label,
            "variable": setting.field.variable,
            "flag": setting.field.flag,
            "description": setting.field.description,
        }
        for setting in settings
    ]
    return json.dumps(rows, indent=2, ensure_ascii=False)


def _source(origin: Origin) -> str:
    return "default" if origin.kind is OriginKind.DEFAULT else f"{origin.kind.value} {origin.label}"
