"""JSON Schemas of the shapes that clients send: records, lists, enums, options, unions, references."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]

WORDS = ["name", "total", "date", "items", "price", "unit", "city", "id", "note", "größe", "tags", "kind"]


def random_schema(rng: random.Random) -> Schema:
    """An object at the root, as OpenAI asks for, with definitions in a third of the schemas."""
    definitions: dict[str, Schema] = {}
    if rng.random() < 0.33:
        definitions["Part"] = _record(rng, 1, {})
    schema = _record(rng, 3, definitions)
    if definitions:
        schema["$defs"] = definitions
    schema["title"] = "Answer"
    return schema


def _record(rng: random.Random, depth: int, definitions: dict[str, Schema]) -> Schema:
    names = rng.sample(WORDS, rng.randint(1, 4))
    required = names if rng.random() < 0.6 else rng.sample(names, rng.randint(0, len(names)))
    return {
        "type": "object",
        "properties": {name: _value(rng, depth - 1, definitions) for name in names},
        "required": required,
        "additionalProperties": False,
    }


def _value(rng: random.Random, depth: int, definitions: dict[str, Schema]) -> Schema:
    makers = [_text, _text, _number, _number, _enum, _flag]
    if definitions:
        makers.append(lambda rng: {"$ref": "#/$defs/Part"})
    if depth > 0:
        makers += [
            lambda rng: _record(rng, depth, definitions),
            lambda rng: _list(rng, depth, definitions),
            lambda rng: _optional(rng, depth, definitions),
            lambda rng: _union(rng, depth, definitions),
        ]
    return rng.choice(makers)(rng)


def _text(rng: random.Random) -> Schema:
    return rng.choice(
        [
            {"type": "string", "maxLength": rng.randint(1, 12)},
            {"type": "string", "minLength": 1, "maxLength": 4, "description": "a word"},
            {"type": "string", "format": rng.choice(["date", "time", "ipv4", "uuid"])},
            {"type": "string", "pattern": rng.choice(["^[A-Z]{2}[0-9]{3}$", "^(a|b|c){1,5}$", "^\\d{1,4}$"])},
            {"type": "string", "format": "password", "maxLength": 5},
        ]
    )


def _number(rng: random.Random) -> Schema:
    low = rng.randint(-50, 50)
    return rng.choice(
        [
            {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 500)},
            {"type": "integer", "exclusiveMinimum": low, "maximum": low + 40},
            {"type": "number", "minimum": low, "maximum": low + 10},
            {"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": 5},
        ]
    )


def _enum(rng: random.Random) -> Schema:
    return rng.choice(
        [
            {"enum": rng.sample(["red", "green", "ros\u00e9", "a b", "line\n", 'q"'], 3)},
            {"enum": [1, 2.5, None, True, "x"]},
            {"const": rng.choice(["fixed", 7, None, [1, 2], {"a": 1}])},
        ]
    )


def _flag(rng: random.Random) -> Schema:
    return {"type": rng.choice(["boolean", "null", ["boolean", "null"]])}


def _list(rng: random.Random, depth: int, definitions: dict[str, Schema]) -> Schema:
    least = rng.randint(0, 2)
    schema: Schema = {"type": "array", "items": _value(rng, depth - 1, definitions)}
    return {**schema, "minItems": least, "maxItems": least + rng.randint(0, 2)}


def _optional(rng: random.Random, depth: int, definitions: dict[str, Schema]) -> Schema:
    return {"anyOf": [_value(rng, depth - 1, definitions), {"type": "null"}]}


def _union(rng: random.Random, depth: int, definitions: dict[str, Schema]) -> Schema:
    """A discriminated union, as pydantic writes it."""
    options = []
    for kind in rng.sample(["cat", "dog", "bird"], 2):
        record = _record(rng, depth, definitions)
        record["properties"] = {"type": {"const": kind}, **record["properties"]}
        record["required"] = ["type", *record["required"]]
        options.append(record)
    return {"oneOf": options}
