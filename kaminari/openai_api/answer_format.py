"""From what a request says of its answer's form to the engine's word for it."""

from __future__ import annotations

import json
from typing import Any

from kaminari.engine.answer_format import AnswerFormat, ChoiceFormat, GrammarFormat, JsonFormat, RegexFormat
from kaminari.openai_api.errors import invalid
from kaminari.openai_api.schemas.answer_format import (
    JsonObjectFormat,
    JsonSchemaFormat,
    StructuredOutputs,
)
from kaminari.openai_api.schemas.chat import ChatRequest

_ANY_OBJECT = {"type": "object"}


def to_answer_format(request: ChatRequest) -> AnswerFormat | None:
    """The form that is asked for, or None where any text will do. Raises `ApiError`."""
    match request.response_format:
        case JsonObjectFormat():
            return JsonFormat(_ANY_OBJECT, "response_format")
        case JsonSchemaFormat(json_schema=spec):
            return JsonFormat(spec.schema_, "response_format.json_schema.schema")
    return None if request.structured_outputs is None else _structured(request.structured_outputs)


def _structured(asked: StructuredOutputs) -> AnswerFormat:
    if asked.json_ is not None:
        return JsonFormat(_schema(asked.json_), "structured_outputs.json")
    if asked.regex is not None:
        return RegexFormat(asked.regex)
    if asked.choice is not None:
        return ChoiceFormat(tuple(asked.choice))
    if asked.grammar is not None:
        return GrammarFormat(asked.grammar)
    return JsonFormat(_ANY_OBJECT, "structured_outputs.json_object")


def _schema(value: dict[str, Any] | bool | str) -> dict[str, Any] | bool:
    if not isinstance(value, str):
        return value
    try:
        schema = json.loads(value)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict | bool):
        raise invalid("`structured_outputs.json` must be a JSON Schema", param="structured_outputs.json")
    return schema
