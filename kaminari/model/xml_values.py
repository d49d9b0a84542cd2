"""Values of parameters in XML calls: text without quotes, whose type only the tool's schema knows.

A string is written as it is, anything else as JSON, and so the text of a value is read by the types that its
schema allows. Some models quote strings all the same: what is a JSON string as a whole is read as one. Text
that is no value of these types is a string: nothing is lost, and the client decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kaminari.model.json_pointer import resolve

Types = frozenset[str] | None
"""Names of JSON Schema's types, as far as a schema tells; None where it leaves them open."""

STRING = frozenset({"string"})
BLANKS = " \t\r\n"
# Chat templates write these values of earlier calls as Python does, and models follow them.
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def argument_json(text: str, types: Types) -> str:
    """The JSON text of a value that a model wrote."""
    word = text.strip(BLANKS)
    word = _PYTHON_WORDS.get(word, word)
    kinds = json_types(word)
    if kinds == STRING or (kinds and (types is None or "string" not in types or kinds & (types - STRING))):
        return word
    return json.dumps(text, ensure_ascii=False)


def json_types(text: str) -> frozenset[str]:
    """The types of which a JSON text is a value; none where the text is not JSON."""
    try:
        # An integer of any length is one; Python would refuse to convert a very long one.
        return types_of(json.loads(text, parse_constant=_refuse, parse_int=len))
    except (ValueError, RecursionError):
        return frozenset()


def types_of(value: Any) -> frozenset[str]:
    """The types of which a value is: an integer is a number too."""
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case str():
            return STRING
        case int() | float():
            return frozenset({"number", "integer"} if value == value // 1 else {"number"})
        case list():
            return frozenset({"array"})
        case _:
            return frozenset({"object"})


class SchemaTypes:
    """Which types the schemas of one document allow, as their own words tell. Looks at each schema once."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        """`root` is where references lead."""
        self._root = root
        self._known: dict[int, Types] = {}

    def of(self, schema: Any) -> Types:
        if not isinstance(schema, Mapping):
            return None
        if id(schema) not in self._known:
            self._known[id(schema)] = None  # what a schema says of itself through itself
            self._known[id(schema)] = self._read(schema)
        return self._known[id(schema)]

    def _read(self, schema: Mapping[str, Any]) -> Types:
        said: list[Types] = []
        if isinstance(ref := schema.get("$ref"), str):
            said.append(self.of(resolve(ref, self._root)))
        if isinstance(kind := schema.get("type"), str | list):
            names = frozenset([kind] if isinstance(kind, str) else filter(_is_text, kind))
            said.append(names | {"integer"} if "number" in names else names)
        if "const" in schema:
            said.append(types_of(schema["const"]))
        if isinstance(members := schema.get("enum"), list):
            said.append(frozenset().union(*map(types_of, members)))
        for key in ("anyOf", "oneOf"):
            if isinstance(branches := schema.get(key), list):
                said.append(_any_of([self.of(branch) for branch in branches]))
        if isinstance(parts := schema.get("allOf"), list):
            said += map(self.of, parts)
        known = [types for types in said if types is not None]
        return frozenset.intersection(*known) if known else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _any_of(branches: list[Types]) -> Types:
    known = [types for types in branches if types is not None]
    return frozenset().union(*known) if len(known) == len(branches) else None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
