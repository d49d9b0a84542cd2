"""The messages of a chat, one schema per role."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator

from kaminari.openai_api.schemas.base import Ignored, Schema, not_supported, problem
from kaminari.openai_api.schemas.content import AssistantContent, InputContent
from kaminari.openai_api.schemas.tools import CallsInHistory

MAX_MESSAGES = 8192
MAX_ITEMS = 16_384

Absent = Annotated[Any, not_supported()]


class SystemMessage(Schema):
    """`developer` is the newer name of `system`."""

    role: Literal["system", "developer"]
    content: InputContent
    name: Ignored = None


class UserMessage(Schema):
    role: Literal["user"]
    content: InputContent
    name: Ignored = None


class AssistantMessage(Schema):
    """A turn of the model. Clients send back what they got, so the fields of an answer are known here.

    Whether reasoning of earlier turns is shown to the model again is its chat template's to say.
    """

    role: Literal["assistant"]
    content: AssistantContent | None = None
    refusal: str | None = None
    name: Ignored = None
    annotations: Ignored = None
    parsed: Ignored = None
    reasoning_content: str | None = None
    audio: Absent = None
    function_call: Absent = None
    tool_calls: CallsInHistory | None = None


class ToolMessage(Schema):
    role: Literal["tool"]
    content: InputContent
    tool_call_id: str | None = None
    name: Ignored = None


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage

_BY_ROLE: dict[str, type[Message]] = {
    "system": SystemMessage,
    "developer": SystemMessage,
    "user": UserMessage,
    "assistant": AssistantMessage,
    "tool": ToolMessage,
}


def _message(value: Any) -> Message:
    if not isinstance(value, dict):
        raise problem('must be an object such as {"role": "user", "content": "..."}')
    role = value.get("role")
    known = ", ".join(_BY_ROLE)
    if role is None:
        raise problem(f"is required; one of {known}", at="role")
    if not isinstance(role, str) or role not in _BY_ROLE:
        raise problem(f"must be one of {known}", at="role")
    return _BY_ROLE[role].model_validate(value)


AnyMessage = Annotated[Message, PlainValidator(_message)]


def _few_items(value: Any) -> Any:
    """Refuse messages that hold too much in sum before any is looked into."""
    if isinstance(value, list) and sum(map(_items, value)) > MAX_ITEMS:
        raise problem(f"must hold at most {MAX_ITEMS} parts and tool calls in all", code="invalid_value")
    return value


def _items(message: Any) -> int:
    fields = [message.get("content"), message.get("tool_calls")] if isinstance(message, dict) else []
    return sum(len(field) for field in fields if isinstance(field, list))


Messages = Annotated[
    list[AnyMessage], Field(min_length=1, max_length=MAX_MESSAGES), BeforeValidator(_few_items)
]
