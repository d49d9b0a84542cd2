"""What form an answer must have: OpenAI's `response_format` and vLLM's `structured_outputs`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, model_validator

from kaminari.openai_api.schemas.base import Ignored, Schema, problem
from kaminari.openai_api.schemas.tools import Name

MAX_CHOICES = 10_000


def _json_schema(value: Any) -> dict[str, Any] | bool:
    if isinstance(value, dict | bool):
        return value
    raise problem("must be a JSON Schema: an object", code="invalid_type")


JsonSchema = Annotated[
    dict[str, Any] | bool, PlainValidator(_json_schema, json_schema_input_type=dict[str, Any] | bool)
]


class JsonSchemaSpec(Schema):
    """`strict` changes nothing: a schema is always enforced."""

    name: Name
    description: Ignored = None
    strict: bool = False
    schema_: JsonSchema = Field(alias="schema")


class TextFormat(Schema):
    type: Literal["text"]


class JsonObjectFormat(Schema):
    type: Literal["json_object"]


class JsonSchemaFormat(Schema):
    type: Literal["json_schema"]
    json_schema: JsonSchemaSpec


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat
_FORMATS: dict[str, type[ResponseFormat]] = {
    "text": TextFormat,
    "json_object": JsonObjectFormat,
    "json_schema": JsonSchemaFormat,
}


def _response_format(value: Any) -> ResponseFormat:
    if not isinstance(value, dict):
        raise problem('must be an object such as {"type": "json_object"}', code="invalid_type")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _FORMATS:
        raise problem(f"must be one of {', '.join(_FORMATS)}", at="type")
    return _FORMATS[kind].model_validate(value)


AnyResponseFormat = Annotated[
    ResponseFormat, PlainValidator(_response_format, json_schema_input_type=ResponseFormat)
]


class StructuredOutputs(Schema):
    """vLLM's extension. Exactly one field; `json` may also be the schema as a string."""

    json_: dict[str, Any] | bool | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES)] | None = None
    grammar: str | None = None

    @model_validator(mode="after")
    def _is_one(self) -> StructuredOutputs:
        given = [self.json_, self.json_object, self.regex, self.choice, self.grammar]
        if sum(form is not None for form in given) != 1:
            raise problem("must hold exactly one of json, json_object, regex, choice, grammar")
        if self.json_object is False:
            raise problem("must be true, or left out", at="json_object")
        return self
