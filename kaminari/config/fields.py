"""The tree of settings as a flat list: each field's name, environment variable and command-line flag.

Environment, flags, `kaminari config` and the start-up report all walk this list, so that none can forget a
field. Works on any settings class; holds no values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic.fields import FieldInfo

from kaminari.config.settings import ENV_DELIMITER, ENV_PREFIX, Settings
from kaminari.config.units import Expects

FieldPath = tuple[str, ...]

POSITIONAL: FieldPath = ("model", "source")
# groups whose fields have names that stand for themselves: --slots, not --engine-slots
PLAIN_GROUPS = frozenset({"model", "engine", "server"})


@dataclass(frozen=True, slots=True)
class SettingField:
    """One setting.

    path:     where it stands in the tree, such as ("engine", "slots")
    choices:  what an enumeration allows; empty for other types
    secret:   the value is never shown
    """

    path: FieldPath
    description: str
    default: Any
    expects: Expects
    choices: tuple[str, ...] = ()
    secret: bool = False

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        return variable_name(self.path)

    @property
    def flag(self) -> str:
        """The command-line flag; `MODEL` for the one setting that is given without a flag."""
        return flag_name(self.path)


def variable_name(path: FieldPath) -> str:
    """The environment variable of a field or a group."""
    return ENV_PREFIX + ENV_DELIMITER.join(path).upper()


def flag_name(path: FieldPath) -> str:
    """The flag of a field: its own name, after the group's where that would be unclear."""
    if path == POSITIONAL:
        return "MODEL"
    words = path[1:] if path[0] in PLAIN_GROUPS else path
    return "--" + "-".join(words).replace("_", "-")


@cache
def setting_fields(root: type[BaseModel] = Settings) -> tuple[SettingField, ...]:
    """Every field below `root`, in the order of its declaration."""
    return tuple(_walk(root, ()))


@cache
def setting_groups(root: type[BaseModel] = Settings) -> tuple[FieldPath, ...]:
    """The path of every group below `root`; a group's variable takes a JSON object."""
    groups = {
        field.path[:depth]: None for field in setting_fields(root) for depth in range(1, len(field.path))
    }
    return tuple(groups)


def _walk(model: type[BaseModel], path: FieldPath) -> Iterator[SettingField]:
    for name, info in model.model_fields.items():
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _walk(annotation, (*path, name))
        else:
            yield _describe((*path, name), info)


def _describe(path: FieldPath, info: FieldInfo) -> SettingField:
    members = list(_members(info.annotation))
    choices = tuple(
        str(choice.value)
        for member in members
        if isinstance(member, type) and issubclass(member, Enum)
        for choice in member
    )
    default = info.get_default(call_default_factory=True, validated_data={})
    expects = _expects([*info.metadata, *members], choices)
    if type(default) is int:
        expects = replace(expects, example=str(default))
    return SettingField(
        path=path,
        description=info.description or "",
        default=default,
        expects=expects,
        choices=choices,
        secret=SecretStr in members or SecretBytes in members,
    )


def _expects(stated: list[Any], choices: tuple[str, ...]) -> Expects:
    if choices:
        return Expects(f"one of {', '.join(choices)}", choices[0])
    return next((item for item in stated if isinstance(item, Expects)), Expects("a valid value", "…"))


def _members(annotation: Any) -> Iterator[Any]:
    """What a union, a container or an `Annotated` is made of, down to single types and their metadata."""
    arguments = get_args(annotation)
    if not arguments or get_origin(annotation) is Literal:
        yield annotation
        return
    for argument in arguments:
        yield from _members(argument)
