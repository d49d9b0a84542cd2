"""Effective settings: flags over environment over defaults, and one error that holds every problem."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from kaminari.config.environment import Given, Origin, OriginKind, Reading, read_environment
from kaminari.config.fields import FieldPath, SettingField, setting_fields, setting_groups
from kaminari.config.problems import ConfigError, Problem, closest, shown, sounds_secret
from kaminari.config.settings import Settings


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings, and where each field that is not a default came from."""

    settings: Settings
    given: Mapping[FieldPath, Origin]

    def origin(self, path: FieldPath) -> Origin:
        return self.given.get(path, Origin(OriginKind.DEFAULT, "default"))


def load_settings(
    flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Settings from flags (by dotted name, such as "engine.slots") over the environment over defaults.

    Raises `ConfigError` with every problem of both.
    """
    return load_with_origins(flags or {}, environ).settings


def load_with_origins(
    flags: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    problems: Iterable[Problem] = (),
    root: type[Settings] = Settings,
) -> LoadedSettings:
    """As `load_settings`, with origins. `problems` that are known already join the report."""
    surroundings = read_environment(os.environ if environ is None else environ, root)
    line = _read_flags(flags, root)
    given = {**surroundings.given, **line.given}
    found = [*problems, *line.problems, *surroundings.problems]
    try:
        settings = root.model_validate(_tree(given))
    except ValidationError as error:
        found += _explain(error, given, setting_groups(root))
    if found:
        raise ConfigError(found)
    return LoadedSettings(settings, {path: item.origin for path, item in given.items()})


def _read_flags(flags: Mapping[str, Any], root: type[Settings]) -> Reading:
    fields = {field.name: field for field in setting_fields(root)}
    given: dict[FieldPath, Given] = {}
    problems = []
    for name, value in flags.items():
        if (field := fields.get(name)) is not None:
            given[field.path] = Given(field, value, Origin(OriginKind.FLAG, field.flag))
            continue
        guess = closest(name, fields)
        fix = "remove it" if guess is None else f"did you mean {guess}?"
        problems.append(
            Problem(name, shown(value, secret=sounds_secret(name)), "there is no such setting", fix)
        )
    return Reading(given, tuple(problems))


def _tree(given: Mapping[FieldPath, Given]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, item in given.items():
        branch = tree
        for part in path[:-1]:
            branch = branch.setdefault(part, {})
        branch[path[-1]] = item.value
    return tree


def _explain(
    error: ValidationError, given: Mapping[FieldPath, Given], groups: Iterable[FieldPath]
) -> list[Problem]:
    """One problem for each field or group that pydantic complains about; a union complains per member."""
    known = {*given, *groups}
    first: dict[FieldPath, ErrorDetails] = {}
    for details in error.errors(include_url=False):
        location = tuple(str(part) for part in details["loc"])
        depths = range(len(location), -1, -1)
        path = next(location[:depth] for depth in depths if location[:depth] in known or not depth)
        first.setdefault(path, details)
    return [
        _bad_value(given[path], details) if path in given else _bad_combination(path, details, given)
        for path, details in first.items()
    ]


def _bad_value(item: Given, details: ErrorDetails) -> Problem:
    field = item.field
    stated = _stated_reason(details)
    expected = f"expected {field.expects.text}"
    whole = item.origin.label in (field.variable, field.flag) or item.origin.label.upper() == field.variable
    name = item.origin.label if whole else f"{item.origin.label}, {field.name}"
    return Problem(name, shown(item.value, secret=field.secret), stated or expected, _example(item, whole))


def _example(item: Given, whole: bool) -> str:
    field = item.field
    meant = closest(str(item.value), field.choices) or field.expects.example
    if not whole:
        spelled = meant if meant.startswith("[") else f'"{meant}"'
        return f'for example "{field.path[-1]}": {spelled}'
    typed = shlex.quote(meant)
    if item.origin.kind is OriginKind.ENVIRONMENT:
        return f"for example {item.origin.label}={typed}"
    return f"for example {field.flag} {typed}" if field.flag.startswith("-") else f"for example {typed}"


def _bad_combination(path: FieldPath, details: ErrorDetails, given: Mapping[FieldPath, Given]) -> Problem:
    inside = [item for item in given.values() if item.field.path[: len(path)] == path]
    involved = [item for item in inside if _mentions(details, item.field)] or inside
    name = ", ".join(dict.fromkeys(item.origin.label for item in involved))
    values = ", ".join(shown(item.value, secret=item.field.secret) for item in involved)
    fix = f"change or leave out {'it' if len(involved) == 1 else 'one of them'}"
    return Problem(name, values, _stated_reason(details) or details["msg"], fix)


def _mentions(details: ErrorDetails, field: SettingField) -> bool:
    return re.search(rf"\b{re.escape(field.path[-1])}\b", details["msg"]) is not None


def _stated_reason(details: ErrorDetails) -> str | None:
    """The words of a `ValueError` that one of our own validators raised about a whole value."""
    cause = details.get("ctx", {}).get("error")
    return str(cause) if isinstance(cause, ValueError) else None
