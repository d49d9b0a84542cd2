"""Schemas are judged before they are compiled: size, depth and whether any finite value satisfies them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kaminari.engine.errors import RequestError
from kaminari.engine.json_schema import MAX_BYTES, MAX_DEPTH, check_size, prepare_schema

CASES = json.loads((Path(__file__).parents[1] / "cases" / "files" / "schemas.json").read_text())


def nested(levels: int) -> Any:
    value: Any = "leaf"
    for level in range(levels):
        value = {"items": value} if level % 2 else [value]
    return value


REFUSED: list[tuple[Any, str]] = [
    (False, "no value satisfies"),
    (CASES["cycle_no_base"], "no finite value"),
    (CASES["cycle_required"], "no finite value"),
    (CASES["deep_300"], "too deep"),
    ({"items": nested(5000)}, "too deep"),
    ({"enum": ["x" * (MAX_BYTES + 1)]}, "too large"),
    ({"enum": [0] * (MAX_BYTES + 1)}, "too large"),
    ({"enum": list(range(100_000))}, "too large"),
    ({"const": float("nan")}, "not a JSON value"),
    ({"$ref": "#"}, "no finite value"),
    ({"allOf": [{"$ref": "#"}]}, "no finite value"),
    ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "no finite value"),
    ({"type": "array", "minItems": 2, "prefixItems": [{}], "items": {"$ref": "#"}}, "no finite value"),
    ({"type": "array", "minItems": 1, "prefixItems": [{"$ref": "#"}]}, "no finite value"),
    ({"oneOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#"}}}, "no finite value"),
    (
        {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/properties/a"}}},
        "no finite value",
    ),
]

ACCEPTED: list[Any] = [
    True,
    {},
    CASES["tree_ok"],
    CASES["receipt"],
    CASES["laughs"],
    {"type": "array", "items": {"$ref": "#"}},
    {"type": "object", "properties": {"next": {"$ref": "#"}}},
    {"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
    {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
    },
    {"type": "array", "minItems": 1, "prefixItems": [{"type": "null"}], "items": {"$ref": "#"}},
    # malformed in ways that the grammar library reports
    {"type": "object", "required": 5, "properties": []},
    {"anyOf": 3, "allOf": {}, "prefixItems": 1, "minItems": "x", "$ref": 7},
    {"$ref": "#/nowhere"},
    {"$ref": "#/x-notes/a", "x-notes": {"a": {"type": "null"}}},
]


@contextmanager
def few_calls() -> Iterator[None]:
    """Fails where the work inside is not bounded, as the number of Python calls tells."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)
        assert calls < 500_000, calls


@pytest.mark.parametrize(("schema", "piece"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_enforced_is_refused_and_names_its_field(schema: Any, piece: str) -> None:
    with pytest.raises(RequestError, match=piece) as refusal, few_calls():
        prepare_schema(schema, "a.b")
    assert refusal.value.field == "a.b"
    assert len(refusal.value.message) < 200


@pytest.mark.parametrize("schema", ACCEPTED, ids=range(len(ACCEPTED)))
def test_what_has_a_way_out_passes(schema: Any) -> None:
    assert prepare_schema(schema, "f") == ({} if schema is True else schema)


def test_depth_is_bounded_exactly() -> None:
    check_size(nested(MAX_DEPTH - 1), "f")
    with pytest.raises(RequestError, match="too deep"):
        check_size(nested(MAX_DEPTH), "f")


def test_formats_that_are_annotations_are_left_out_and_the_clients_schema_is_not_changed() -> None:
    schema = {
        "properties": {
            "a": {"type": "string", "format": "password"},
            "b": {"type": "string", "format": "date"},
            "format": {"type": "string"},
        },
        "x-guidance": {"lenient": True},
    }
    before = json.dumps(schema)
    prepared = prepare_schema(schema, "f")
    assert prepared["properties"]["a"] == {"type": "string"}
    assert prepared["properties"]["b"] == {"type": "string", "format": "date"}
    assert prepared["properties"]["format"] == {"type": "string"}
    assert "x-guidance" not in prepared
    assert json.dumps(schema) == before


def test_the_walk_is_linear_in_wide_schemas() -> None:
    names = [f"p{index}" for index in range(3000)]
    wide = {
        "type": "object",
        "required": names,
        "properties": {name: {"$ref": "#/$defs/s"} for name in names},
        "$defs": {"s": {"type": "null"}},
    }
    with few_calls():
        prepare_schema(wide, "f")


def chain(links: int, wrap: Any = lambda link: link) -> dict[str, Any]:
    """A definition that refers to one that refers to one ..."""
    definitions = {str(i): wrap({"$ref": f"#/$defs/{i + 1}"}) for i in range(links)}
    return {"$ref": "#/$defs/0", "$defs": {**definitions, str(links): {"type": "string"}}}


def in_property(link: Any) -> Any:
    return {"type": "object", "properties": {"a": link}, "required": ["a"]}


def all_of(*schemas: Any) -> dict[str, Any]:
    return {"allOf": list(schemas)}


COSTLY: list[tuple[Any, str]] = [
    (chain(2000), "refers too deep"),
    (chain(4000), "refers too deep"),
    (chain(200, in_property), "refers too deep"),
    (chain(200, lambda link: {"anyOf": [link, {"type": "null"}]}), "refers too deep"),
    (chain(200, lambda link: {"type": "array", "items": link, "minItems": 1}), "refers too deep"),
    ({"x": {str(i): {"$ref": f"#/x/{i + 1}"} for i in range(500)}, "$ref": "#/x/0"}, "refers too deep"),
    ({"$defs": {str(i): {"$ref": f"#/%24defs/{i + 1}"} for i in range(500)}}, "refers too deep"),
    ({"type": "string", "pattern": "a?" * 10_000}, "too many patterns"),
    ({"patternProperties": {f"^(a|b)*{i}$": {} for i in range(100)}}, "too many patterns"),
    ({"patternProperties": {"a?" * 10_000: {}}}, "too many patterns"),
    (all_of(*({"type": "string", "pattern": f"(.|x)*{i}"} for i in range(20))), "combines schemas"),
    (all_of(*(in_property({"pattern": f"(.|x)*{i}"}) for i in range(20))), "combines schemas"),
    (chain(20, lambda link: {**link, "pattern": "(.|x)*a"}), "combines schemas"),
    (chain(20, lambda link: {"anyOf": [link], "format": "date"}), "combines schemas"),
    ({"type": "integer", "multipleOf": 7436429}, "multipleOf"),
    ({"type": "number", "multipleOf": 0.7436429}, "multipleOf"),
    ({"type": "integer", "multipleOf": 10**400 + 1}, "multipleOf"),
    ({"properties": {f"p{i}": {"multipleOf": 9_001 + i} for i in range(9)}}, "multipleOf"),
    (all_of(*({"type": "integer", "multipleOf": n} for n in (7, 11, 13, 17, 19, 23))), "multipleOf"),
]


@pytest.mark.parametrize(("schema", "piece"), COSTLY, ids=range(len(COSTLY)))
def test_what_would_cost_the_grammar_library_too_much_is_refused_before(schema: Any, piece: str) -> None:
    with pytest.raises(RequestError, match=piece) as refusal, few_calls():
        prepare_schema(schema, "a.b")
    assert refusal.value.field == "a.b"
    assert len(refusal.value.message) < 250


@pytest.mark.parametrize(
    "schema",
    [
        chain(90, in_property),
        {"properties": {f"p{i}": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{3}$"} for i in range(100)}},
        {"properties": {f"p{i}": {"type": "string", "format": "date"} for i in range(100)}},
        {"properties": {f"p{i}": {"allOf": [{"$ref": "#/$defs/a"}], "title": "A"} for i in range(100)},
         "$defs": {"a": {"type": "string", "pattern": "a+"}}},
        {"properties": {f"p{i}": {"type": "number", "multipleOf": 0.01} for i in range(100)}},
        {"properties": {"pattern": {"type": "string"}, "$ref": {}, "multipleOf": {}, "format": {}}},
        all_of({"multipleOf": 1_000_000}, {"multipleOf": 0.25}),
        {"enum": [{"pattern": "x" * 100, "multipleOf": 7}]},
    ],
    ids=range(8),
)  # fmt: skip
def test_what_is_large_and_cheap_passes(schema: Any) -> None:
    prepare_schema(schema, "f")
