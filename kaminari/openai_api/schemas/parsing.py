"""From the bytes of a body to a schema, or to the one error that says what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from kaminari.openai_api.errors import ApiError, invalid
from kaminari.openai_api.schemas.base import PROBLEM

SchemaT = TypeVar("SchemaT", bound=BaseModel)

MAX_COMMAS = 1_000_000
"""In a body, inside strings or out. Each value but the first has one before it, and takes the memory of a
hundred; nothing else runs while they are made.
"""

# pydantic's kind of error -> what follows the field's path in the message, and the code
_PHRASES: Mapping[str, tuple[str, str]] = {
    "missing": ("is required", "missing_required_parameter"),
    "string_type": ("must be a string", "invalid_type"),
    "int_type": ("must be an integer", "invalid_type"),
    "float_type": ("must be a number", "invalid_type"),
    "bool_type": ("must be true or false", "invalid_type"),
    "list_type": ("must be an array", "invalid_type"),
    "dict_type": ("must be an object", "invalid_type"),
    "literal_error": ("must be {expected}", "invalid_value"),
    "greater_than_equal": ("must be at least {ge}", "invalid_value"),
    "less_than_equal": ("must be at most {le}", "invalid_value"),
    "string_pattern_mismatch": ("must match {pattern}", "invalid_value"),
    "too_short": ("must hold at least {min_length} item(s)", "invalid_value"),
    "too_long": ("must hold at most {max_length} items", "invalid_value"),
}
_UNKNOWN_KIND = ("is not valid", "invalid_value")


def parse(schema: type[SchemaT], body: bytes) -> SchemaT:
    """Parse and validate a body. Raises `ApiError` 400 or 413, which repeats of the body only names."""
    if body.count(b",") > MAX_COMMAS:
        raise ApiError(413, "the body holds more values than this server reads", code="request_too_large")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid(
            f"the body is not valid JSON (line {error.lineno}, column {error.colno})", code="invalid_json"
        ) from None
    if not isinstance(value, dict):
        raise invalid("the body must be a JSON object", code="invalid_type")
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise _first_problem(error) from None


def field_path(location: Sequence[str | int]) -> str:
    """Spell a location as OpenAI does: `messages[0].content[1].image_url.url`."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{step}" if path else step
    return path


def _first_problem(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_input=False)[0]
    location = list(first["loc"])
    context: dict[str, Any] = first.get("ctx", {})
    if first["type"] == PROBLEM:
        says, code = context["says"], context["code"]
        if context["at"] is not None:
            location.append(context["at"])
    else:
        phrase, code = _PHRASES.get(first["type"], _UNKNOWN_KIND)
        says = phrase.format_map(context)
    path = field_path(location)
    return invalid(f"`{path}` {says}", param=path, code=code)
