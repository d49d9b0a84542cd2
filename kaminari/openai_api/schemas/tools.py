"""Tools, the choice among them, and calls in the history."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from kaminari.openai_api.schemas.base import Ignored, Schema, problem

MAX_CALLS = 1024
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]


class FunctionDefinition(Schema):
    """`parameters` is a JSON Schema of an object; left out: the function takes nothing."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class FunctionTool(Schema):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(Schema):
    name: str


class NamedChoice(Schema):
    type: Literal["function"]
    function: FunctionName


Word = Literal["none", "auto", "required"]


def _choice(value: Any) -> NamedChoice | str:
    if isinstance(value, dict):
        return NamedChoice.model_validate(value)
    if value in ("none", "auto", "required"):
        return str(value)
    raise problem('must be none, auto, required or {"type": "function", "function": {"name": "..."}}')


AnyChoice = Annotated[NamedChoice | str, PlainValidator(_choice, json_schema_input_type=Word | NamedChoice)]


class CalledFunction(Schema):
    """`arguments` is JSON text. What a model wrote wrongly is accepted as it is.

    The openai SDK's `parse` adds `parsed_arguments`, and clients send back what they have.
    """

    name: str
    arguments: str = "{}"
    parsed_arguments: Ignored = None


class CallInHistory(Schema):
    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Ignored = None


CallsInHistory = Annotated[list[CallInHistory], Field(max_length=MAX_CALLS)]
