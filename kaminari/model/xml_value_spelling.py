"""Which texts the value of one parameter in an XML call may be, from its schema.

Strings are raw text that holds none of the tags, anything else is JSON. Where a value may be a string or
something else, a string that the parser would read as something else is left out, so that whatever the
grammar lets pass is read as a value of the schema. What cannot be held to is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from kaminari.model.calls import (
    Either,
    JsonValue,
    RawText,
    Spelling,
    TextForm,
    UnspeakableArguments,
    Written,
)
from kaminari.model.json_pointer import resolve
from kaminari.model.xml_tags import FUNCTION_END, PARAMETER_END, PARAMETER_START
from kaminari.model.xml_values import SchemaTypes, Types, argument_json, types_of

MAX_STEPS = 4096
"""How many schemas are looked at for one value, with all that they combine."""
MAX_DEPTH = 64

TAGS = (PARAMETER_START, PARAMETER_END, FUNCTION_END)
VALUE_END = f"\n{PARAMETER_END}\n"

_OF_STRINGS = {"pattern", "minLength", "maxLength", "format"}
_OF_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_OF_ARRAYS = {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"}
_OF_ARRAYS |= {"contains", "minContains", "maxContains"}
_OF_OBJECTS = {"properties", "required", "additionalProperties", "patternProperties", "propertyNames"}
_OF_OBJECTS |= {"minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies"}
_KEYWORDS = {"string": _OF_STRINGS, "number": _OF_NUMBERS, "array": _OF_ARRAYS, "object": _OF_OBJECTS}
_ASSERTIONS = {"type", "const", "enum"}.union(*_KEYWORDS.values())
_REFUSED = {"not", "if", "then", "else", "$dynamicRef", "$recursiveRef"}
# How a text begins, or reads, that may be taken for a value of these types.
_LOOKS = {
    "null": r"\s*(null|None)\s*",
    "boolean": r"\s*(true|false|True|False)\s*",
    "integer": r"(?s:\s*-?[0-9].*)",
    "number": r"(?s:\s*-?[0-9].*)",
    "array": r"(?s:\s*\[.*)",
    "object": r"(?s:\s*\{.*)",
    "string": r"(?s:\s*\"([^\"\\]|\\.)*\"\s*)",
}
# All values of a type; those of an array or an object are no regular language.
_ALL_VALUES = {
    "null": "^null$",
    "boolean": "^(true|false)$",
    "integer": "^-?(0|[1-9][0-9]*)$",
    "number": r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$",
}


class ValueSpeller:
    """Spells values of the schemas of one document, `root`, in which references lead somewhere."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._types = SchemaTypes(root)
        self._moved: dict[str, Any] | None = None
        self._steps = 0

    def spell(self, schema: Any) -> Spelling:
        """A value and its closing tag. Raises `UnspeakableArguments`."""
        types = self._types.of(schema)
        if types is not None and "string" not in types:
            return self._json(schema)
        self._steps = 0
        leaves = list(self._leaves(schema))
        if any(not leaf.keys() & _ASSERTIONS for leaf in leaves):
            return (RawText((TextForm({}),), TAGS, VALUE_END),)
        options: list[Spelling] = []
        texts: list[TextForm] = []
        strings: list[Mapping[str, Any]] = []
        free = set()  # types of which every value will do
        for leaf in leaves:
            kind = _kind(leaf)
            if "const" in leaf or "enum" in leaf:
                texts += _members(leaf, types)
            elif kind == "string":
                strings.append(leaf)
                free |= {"string"} if leaf.keys() & _ASSERTIONS == {"type"} else set()
            elif kind in _ALL_VALUES and leaf.keys() & _ASSERTIONS == {"type"}:
                free |= {kind, "integer"} if kind == "number" else {kind}
                texts.append(TextForm({"pattern": _ALL_VALUES[kind]}))
            else:
                options.append(self._json({**leaf, "type": kind}))
        mistaken = frozenset(_LOOKS) if types is None else types
        unlike = tuple(_LOOKS[kind] for kind in sorted(mistaken - free))
        texts += [TextForm(string, unlike) for string in strings]
        if texts:
            options.append((RawText(tuple(texts), TAGS, VALUE_END),))
        if not options:
            raise UnspeakableArguments("a parameter can have no value")
        return options[0] if len(options) == 1 else (Either(tuple(options)),)

    def _leaves(self, schema: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
        """Schemas without references and combinations; a value has to satisfy one of them."""
        self._steps += 1
        if self._steps > MAX_STEPS or depth > MAX_DEPTH:
            raise UnspeakableArguments("a parameter combines too many schemas")
        if schema is False:
            return
        if not isinstance(schema, Mapping):
            yield {}
            return
        for keyword in sorted(_REFUSED & schema.keys()):
            raise UnspeakableArguments(f"`{keyword}` of a string is not supported in calls of this model")
        for keyword in ("$ref", "allOf", "anyOf", "oneOf"):
            if keyword in schema:
                rest = {key: value for key, value in schema.items() if key != keyword}
                for branch in self._branches(keyword, schema[keyword]):
                    yield from self._leaves(_join(rest, branch), depth + 1)
                return
        if isinstance(kinds := schema.get("type"), list):
            for kind in kinds:
                yield from self._leaves({**schema, "type": kind}, depth + 1)
        else:
            yield schema

    def _branches(self, keyword: str, value: Any) -> list[Any]:
        """The schemas of which one has to hold, beside the keyword's own schema."""
        if keyword == "$ref":
            target = resolve(str(value), self._root)
            if not isinstance(target, Mapping | bool):
                raise UnspeakableArguments("a reference leads to no schema")
            return [target]
        parts = value if isinstance(value, list) else []
        if keyword == "allOf":
            joined: Any = {}
            for part in parts:
                joined = _join(joined, part)
            return [joined]
        if keyword == "oneOf" and not self._exclusive(parts):
            raise UnspeakableArguments("a `oneOf` has strings in more than one of its branches")
        return parts

    def _exclusive(self, branches: list[Any]) -> bool:
        """Whether no value satisfies two branches, by what they name or by their types."""
        named = [
            json.dumps(each["const"]) for each in branches if isinstance(each, Mapping) and "const" in each
        ]
        if len(named) == len(branches):
            return len(set(named)) == len(named)
        seen: frozenset[str] = frozenset()
        for branch in branches:
            types = self._types.of(branch) or frozenset(_LOOKS)
            if types & seen:
                return False
            seen |= types
        return True

    def _json(self, schema: Mapping[str, Any]) -> Spelling:
        return JsonValue(self._document(schema)), Written(VALUE_END)

    def _document(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """A schema that stands alone: where it has references, all of the root moves into it."""
        moved = _move_references(schema)
        if moved == schema:
            return schema
        if self._moved is None:
            self._moved = _move_references(self._root)
        return {**moved, "$defs": {"root": self._moved}}


def _kind(leaf: Mapping[str, Any]) -> str:
    """The type of which values are made: the one that is named, or one that the keywords are about."""
    kind = leaf.get("type")
    if isinstance(kind, str):
        return kind
    return next((kind for kind, keywords in _KEYWORDS.items() if keywords & leaf.keys()), "string")


def _members(leaf: Mapping[str, Any], types: Types) -> Iterator[TextForm]:
    """The texts that are read as one of the values that a schema lists."""
    listed = leaf["enum"] if isinstance(leaf.get("enum"), list) else [leaf.get("const")]
    if "const" in leaf:
        listed = [
            value for value in listed if types_of(value) == types_of(leaf["const"]) and value == leaf["const"]
        ]
    kind = leaf.get("type")
    strings: list[str] = []
    others: list[str] = []
    for value in listed:
        if kind is not None and kind not in types_of(value):
            continue
        spelled = json.dumps(value, ensure_ascii=False)
        text = value if isinstance(value, str) else spelled
        if argument_json(text, types) == spelled and not any(tag in text for tag in TAGS):
            (strings if isinstance(value, str) else others).append(text)
    if strings:
        yield TextForm({**leaf, "enum": strings})
    if others:
        yield TextForm({"enum": others})


def _join(one: Mapping[str, Any], other: Any) -> Any:
    """A schema that says what two say. Raises `UnspeakableArguments` where they differ on a keyword."""
    if not isinstance(other, Mapping):
        return other if other is False else one
    for keyword in one.keys() & other.keys():
        if one[keyword] != other[keyword] and keyword in _ASSERTIONS | {"$ref", "anyOf", "oneOf", "allOf"}:
            raise UnspeakableArguments(f"a parameter combines different values of `{keyword}`")
    return {**one, **other}


def _move_references(value: Any) -> Any:
    """A copy in which local references lead into `#/$defs/root`."""
    if isinstance(value, Mapping):
        return {
            key: f"#/$defs/root{item[1:]}"
            if key == "$ref" and isinstance(item, str) and item.startswith("#")
            else _move_references(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_move_references(item) for item in value]
    return value
