"""Judges a client's JSON Schema before the grammar library sees it: its size, its depth, and whether any
finite value can satisfy it. Walks without recursion, so that no nesting overflows a stack.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kaminari.engine.errors import RequestError
from kaminari.engine.grammar_bounds import check_schema
from kaminari.model.json_pointer import resolve

MAX_BYTES = 128 * 1024
MAX_DEPTH = 100
# What the grammar library enforces. By the standard any other format is an annotation, and left out.
ENFORCED_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
)

Schema = Mapping[str, Any] | bool


def check_size(value: Any, field: str, depth: int = MAX_DEPTH) -> None:
    """Raise `RequestError` for a JSON value that is too deep or too large to be handled at all."""
    size, level = 0, [value]
    for _ in range(depth):
        below: list[Any] = []
        for item in level:
            if isinstance(item, Mapping):
                size += sum(map(len, item))
                below += item.values()
            elif isinstance(item, list | tuple):
                below += item
            elif isinstance(item, str):
                size += len(item)
        size += len(level)
        if size > MAX_BYTES:
            raise _too_large(field)
        if not below:
            return
        level = below
    raise RequestError(f"{field} is nested too deep: at most {depth} levels", field=field)


def _too_large(field: str) -> RequestError:
    return RequestError(f"{field} is too large: at most {MAX_BYTES} bytes of JSON", field=field)


def prepare_schema(schema: Schema, field: str) -> dict[str, Any]:
    """Return a copy of a schema that is ready to compile. Raises `RequestError`."""
    if schema is False:
        raise RequestError(f"{field} is `false`, which no value satisfies", field=field)
    if schema is True:
        return {}
    check_size(schema, field)
    try:
        text = json.dumps(schema, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        copy: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError) as error:
        raise RequestError(f"{field} is not a JSON value", field=field) from error
    if len(text) > MAX_BYTES:
        raise _too_large(field)
    check_schema(copy, field)
    copy.pop("x-guidance", None)
    for node in _schemas(copy):
        if isinstance(node.get("format"), str) and node["format"] not in ENFORCED_FORMATS:
            del node["format"]
    if not _has_finite_value(copy):
        raise RequestError(
            f"{field} describes no finite value: it refers to itself and has no way out", field=field
        )
    return copy


def _children(node: Mapping[str, Any]) -> Iterator[Any]:
    """The schemas directly inside a schema."""
    for key in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
        if isinstance(inner := node.get(key), Mapping):
            yield from inner.values()
    for key in ("anyOf", "oneOf", "allOf", "prefixItems", "items"):
        if isinstance(inner := node.get(key), list):
            yield from inner
    for key in ("items", "additionalProperties", "additionalItems", "contains", "not", "if", "then", "else"):
        if isinstance(inner := node.get(key), Mapping):
            yield inner


def _schemas(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every schema in a document, the root first."""
    waiting: list[Any] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += _children(node)


def _has_finite_value(root: dict[str, Any]) -> bool:
    """Whether some finite value may satisfy the root; False only where plainly none does.

    The least fixed point of "satisfiable if what it needs is", in time linear in the schema: each group of
    alternatives is met once, and a schema that waits for no more groups is satisfiable.
    """
    nodes = {id(node): node for node in _schemas(root)}
    unmet = dict.fromkeys(nodes, 0)
    waiting: dict[int, list[_Group]] = {}
    for key, node in nodes.items():
        for alternatives in _needs(node, root):
            if not all(id(alternative) in nodes for alternative in alternatives):
                continue  # a reference into a place that holds no schema: the grammar library judges it
            group = _Group(key)
            unmet[key] += 1
            for alternative in alternatives:
                waiting.setdefault(id(alternative), []).append(group)
    finite = [key for key, count in unmet.items() if not count]
    while finite:
        key = finite.pop()
        if key == id(root):
            return True
        for group in waiting.get(key, ()):
            if not group.met:
                group.met = True
                unmet[group.owner] -= 1
                if not unmet[group.owner]:
                    finite.append(group.owner)
    return False


@dataclass(slots=True)
class _Group:
    """Alternatives of which the schema `owner` needs one."""

    owner: int
    met: bool = False


def _needs(node: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Groups of schemas; a value of `node` needs a value of at least one of each group."""
    if isinstance(ref := node.get("$ref"), str):
        target = resolve(ref, root)
        if isinstance(target, dict):
            yield [target]
    for key in ("anyOf", "oneOf"):
        branches = _list(node, key)
        if branches and all(isinstance(branch, dict) for branch in branches):
            yield branches
    yield from ([part] for part in _list(node, "allOf") if isinstance(part, dict))
    if _is_only(node, "object") and isinstance(properties := node.get("properties"), Mapping):
        for name in _list(node, "required"):
            if isinstance(name, str) and isinstance(properties.get(name), dict):
                yield [properties[name]]
    least = node.get("minItems")
    if _is_only(node, "array") and isinstance(least, int) and least > 0:
        places = _list(node, "prefixItems")
        yield from ([item] for item in places[:least] if isinstance(item, dict))
        if least > len(places) and isinstance(node.get("items"), dict):
            yield [node["items"]]


def _list(node: Mapping[str, Any], key: str) -> list[Any]:
    value = node.get(key)
    return value if isinstance(value, list) else []


def _is_only(node: Mapping[str, Any], kind: str) -> bool:
    return node.get("type") in (kind, [kind])
