"""Settings out of environment variables: one variable at a time, so that every problem is found.

pydantic-settings decodes each value; what it would pass over in silence is caught here, at every level:
unknown names, names below a setting, unknown keys inside JSON, a name that stands twice in different case.
Validates no values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

from kaminari.config.fields import FieldPath, SettingField, setting_fields, setting_groups, variable_name
from kaminari.config.problems import Problem, closest, shown, sounds_secret
from kaminari.config.settings import ENV_DELIMITER, ENV_PREFIX

LIST_THEM = "`kaminari config` lists every name"


class OriginKind(StrEnum):
    DEFAULT = "default"
    ENVIRONMENT = "environment"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: the variable's or the flag's name, or "default"."""

    kind: OriginKind
    label: str


@dataclass(frozen=True, slots=True)
class Given:
    """A raw value for one field, and who gave it."""

    field: SettingField
    value: Any
    origin: Origin


@dataclass(frozen=True, slots=True)
class Reading:
    """What a source gives: raw values by path, and the problems found on the way."""

    given: Mapping[FieldPath, Given]
    problems: tuple[Problem, ...]


def read_environment(environ: Mapping[str, str], root: type[BaseSettings]) -> Reading:
    """Read every `KAMINARI_*` variable. A nested variable wins over the JSON of a group above it."""
    reader = _Reader(root)
    ours = sorted(name for name in environ if name.upper().startswith(ENV_PREFIX))
    for name in sorted(ours, key=lambda name: name.count(ENV_DELIMITER)):
        twin = next((other for other in ours if other != name and other.upper() == name.upper()), None)
        if twin is None:
            reader.read(name, environ[name])
        elif name < twin:
            reader.twice(name, twin)
    return Reading(reader.given, tuple(reader.problems))


class _Reader:
    """Collects values and problems of one environment."""

    def __init__(self, root: type[BaseSettings]) -> None:
        self.given: dict[FieldPath, Given] = {}
        self.problems: list[Problem] = []
        self._root = root
        self._fields = {field.path: field for field in setting_fields(root)}
        self._groups = frozenset(setting_groups(root))

    def read(self, name: str, value: str) -> None:
        path = tuple(name[len(ENV_PREFIX) :].lower().split(ENV_DELIMITER))
        if path in self._fields:
            self._read_field(name, value, self._fields[path])
        elif path in self._groups:
            self._read_group(name, value, path)
        else:
            self._unknown_variable(name, value, path)

    def twice(self, first: str, second: str) -> None:
        self.problems.append(
            Problem(
                f"{first}, {second}",
                None,
                "the same setting twice, in different case",
                f"keep {first.upper()}",
            )
        )

    def _read_field(self, name: str, value: str, field: SettingField) -> None:
        source = EnvSettingsSource(self._root)
        source.env_vars = {name.lower(): value}
        try:
            decoded: Any = source()
        except SettingsError:
            reason = f"not valid JSON; expected {field.expects.text}"
            fix = f"for example {name}='{field.expects.example}'"
            self.problems.append(Problem(name, shown(value, secret=field.secret), reason, fix))
            return
        for part in field.path:
            decoded = decoded[part]
        self._give(name, field, decoded)

    def _read_group(self, name: str, value: str, path: FieldPath) -> None:
        try:
            decoded = json.loads(value, object_pairs_hook=_distinct)
        except (ValueError, RecursionError) as error:
            self._not_an_object(name, value, path, f"not valid JSON ({error})")
            return
        if not isinstance(decoded, dict):
            self._not_an_object(name, value, path, "not a JSON object")
            return
        for inner, leaf in self._leaves(decoded, path):
            if inner in self._fields:
                self._give(name, self._fields[inner], leaf)
            elif inner in self._groups:
                self._not_an_object(f"{name}, {'.'.join(inner)}", str(leaf), inner, "not a JSON object")
            else:
                self._unknown_key(name, inner, leaf)

    def _leaves(self, tree: Mapping[str, Any], path: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
        for key, value in tree.items():
            inner = (*path, key)
            if inner in self._groups and isinstance(value, dict):
                yield from self._leaves(value, inner)
            else:
                yield inner, value

    def _give(self, name: str, field: SettingField, value: Any) -> None:
        self.given[field.path] = Given(field, value, Origin(OriginKind.ENVIRONMENT, name))

    def _not_an_object(self, name: str, value: str, path: FieldPath, reason: str) -> None:
        inside = [field for field in self._fields.values() if field.path[: len(path)] == path]
        secret = any(field.secret for field in inside) or sounds_secret(value)
        field = inside[0]
        example = int(text) if (text := field.expects.example).isdigit() else text
        nested = json.dumps({field.path[len(path)]: example})
        fix = f"give an object such as {nested}, or set {field.variable} and the like one by one"
        self.problems.append(Problem(name, shown(value, secret=secret), reason, fix))

    def _unknown_variable(self, name: str, value: str, path: FieldPath) -> None:
        above = next((path[:depth] for depth in range(1, len(path)) if path[:depth] in self._fields), None)
        if above is not None:
            reason = f"there is nothing below {variable_name(above)}, which takes one value"
            guess: str | None = variable_name(above)
        else:
            reason = "there is no such setting"
            guess = self._closest_variable(name)
        fix = f"unset it; {LIST_THEM}" if guess is None else f"did you mean {guess}? If not, unset it"
        secret = sounds_secret(name, value) or (guess is not None and self._holds_secret(guess))
        self.problems.append(Problem(name, shown(value, secret=secret), reason, fix))

    def _unknown_key(self, name: str, path: FieldPath, value: Any) -> None:
        siblings = {known[len(path) - 1] for known in self._fields if known[: len(path) - 1] == path[:-1]}
        guess = closest(path[-1], siblings)
        names = ", ".join(sorted(siblings))
        fix = (
            f"did you mean {guess}?" if guess is not None else f"remove it; {'.'.join(path[:-1])} has {names}"
        )
        guessed = self._fields.get((*path[:-1], guess or ""))
        secret = sounds_secret(path[-1], str(value)) or (guessed is not None and guessed.secret)
        reason = f"there is no such setting in {'.'.join(path[:-1])}"
        self.problems.append(Problem(f"{name}, {'.'.join(path)}", shown(value, secret=secret), reason, fix))

    def _closest_variable(self, name: str) -> str | None:
        known = [variable_name(path) for path in (*self._fields, *self._groups)]
        guess = closest(name[len(ENV_PREFIX) :], [variable[len(ENV_PREFIX) :] for variable in known])
        return None if guess is None else ENV_PREFIX + guess

    def _holds_secret(self, variable: str) -> bool:
        """Whether a variable is that of a secret, or of a group with one inside."""
        return any(
            field.secret and f"{field.variable}{ENV_DELIMITER}".startswith(f"{variable}{ENV_DELIMITER}")
            for field in self._fields.values()
        )


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object that names a key twice, of which JSON would keep the last."""
    tree = dict(pairs)
    if len(tree) < len(pairs):
        raise ValueError("a key stands twice")
    return tree
