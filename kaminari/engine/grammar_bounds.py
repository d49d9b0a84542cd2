"""Bounds on what the grammar library is given, where its work or its stack outgrows the text by far.

The library has fuel for what it can count. It counts neither the stack that references take, nor what
intersecting patterns costs (exponential in their number), nor repeated searches through many rules; and no
thread of it can be stopped. Walks without recursion. Judges no meaning.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kaminari.engine.errors import RequestError
from kaminari.model.json_pointer import resolve

MAX_LEVELS = 400
"""Of a schema, references followed: the depths of the root and of all places that are referred to, in sum."""
MAX_PATTERN_TEXT = 8 * 1024
MAX_NAME_PATTERNS = 64
MAX_INTERSECTED = 8
MAX_REMAINDERS = 20_000
"""Of a division by `multipleOf`: the library counts through all of them."""
MAX_GRAMMAR_TEXT = 16 * 1024
MAX_RULES = 200
MAX_OPERATORS = 8

_INTERSECTING = ("$ref", "allOf", "anyOf", "oneOf")
_CONSTRAINING = (
    *_INTERSECTING,
    "pattern",
    "format",
    "multipleOf",
    "properties",
    "patternProperties",
    "items",
)
_RULE = re.compile(r"^\s*[?!]?[\w.-]+(?:\[.*?\])?\s*(?::|::=)", re.MULTILINE)
_EXTENSION = re.compile(r"%(?:json|regex|llguidance)\b")
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/')


def check_schema(root: Mapping[str, Any], field: str) -> None:
    """Raise `RequestError` for a schema that would cost too much. Its size and depth are bounded before."""
    check_together([root], field)
    nodes = list(_objects(root))
    _check_levels(root, nodes, field)
    if not any(map(_intersects, nodes)):
        return
    names = sum(len(_mapping(node.get("patternProperties"))) for node in nodes)
    others = sum(key in node for node in nodes for key in ("pattern", "format", "multipleOf"))
    if names + others > MAX_INTERSECTED:
        raise RequestError(
            f"{field} combines schemas (`allOf`, or keywords beside `$ref` and `anyOf`), and so may have at "
            f"most {MAX_INTERSECTED} of pattern, patternProperties, format and multipleOf",
            field=field,
        )
    if math.prod({_remainders(node.get("multipleOf")) for node in nodes}) > MAX_REMAINDERS:
        raise RequestError(f"{field} combines `multipleOf` of too large numbers", field=field)


def check_together(roots: Iterable[Mapping[str, Any]], field: str) -> None:
    """Raise `RequestError` for schemas of one grammar, as of all tools, that would cost too much in sum."""
    nodes = [node for root in roots for node in _objects(root)]
    names = [name for node in nodes for name in _mapping(node.get("patternProperties"))]
    patterns = [node["pattern"] for node in nodes if isinstance(node.get("pattern"), str)]
    if sum(map(len, [*names, *patterns])) > MAX_PATTERN_TEXT or len(names) > MAX_NAME_PATTERNS:
        raise RequestError(
            f"{field} has too many patterns: at most {MAX_NAME_PATTERNS} for names, and {MAX_PATTERN_TEXT} "
            "characters of all",
            field=field,
        )
    if sum({_remainders(node.get("multipleOf")) for node in nodes}) > MAX_REMAINDERS:
        raise RequestError(
            f"{field} has `multipleOf` of too large numbers: at most {MAX_REMAINDERS} in sum, without zeros "
            "at their ends",
            field=field,
        )


def check_grammar(text: str, field: str) -> None:
    """Raise `RequestError` for a grammar in Lark's or GBNF's notation that would cost too much."""
    if len(text) > MAX_GRAMMAR_TEXT:
        raise RequestError(f"{field} is too long: at most {MAX_GRAMMAR_TEXT} characters", field=field)
    if len(_RULE.findall(text)) > MAX_RULES:
        raise RequestError(f"{field} has too many rules: at most {MAX_RULES}", field=field)
    bare = _QUOTED.sub('""', text)
    if _EXTENSION.search(bare):
        raise RequestError(f"{field} must be in Lark's or GBNF's notation, without extensions", field=field)
    if bare.count("&") + bare.count("~") > MAX_OPERATORS:
        raise RequestError(f"{field} has too many of `&` and `~`: at most {MAX_OPERATORS}", field=field)


def _check_levels(root: Mapping[str, Any], nodes: list[Mapping[str, Any]], field: str) -> None:
    references = {node["$ref"] for node in nodes if isinstance(node.get("$ref"), str)}
    left = MAX_LEVELS
    for target in (root, *(resolve(reference, root) for reference in references)):
        # what we do not find the library may, and nothing in the document is deeper than its root
        level = [target if isinstance(target, Mapping) else root]
        while level and left >= 0:
            left -= 1
            level = [inner for node in level for inner in _inside(node)]
    if left < 0:
        raise RequestError(
            f"{field} refers too deep: at most {MAX_LEVELS} levels in all that is referred to", field=field
        )


def _objects(root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every object of a document: a reference may make a schema of any of them."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += _inside(node)


def _inside(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The objects next below one, through any number of lists."""
    values: list[Any] = list(node.values())
    while values:
        value = values.pop()
        if isinstance(value, Mapping):
            yield value
        elif isinstance(value, list):
            values += value


def _intersects(node: Mapping[str, Any]) -> bool:
    several = isinstance(node.get("allOf"), list) and len(node["allOf"]) > 1
    beside = any(key in node for key in _INTERSECTING) and sum(key in node for key in _CONSTRAINING) > 1
    return several or beside


def _remainders(multiple: Any) -> int:
    """The digits of a number as an integer, without zeros before and after: 12 for 0.012 and for 1200."""
    if isinstance(multiple, bool) or not isinstance(multiple, int | float):
        return 1
    digits = repr(multiple).lower().partition("e")[0].replace(".", "").strip("-0")
    return int(digits[:20] or 1)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
