"""Messages in the form that chat templates read, with everything that people wrote escaped."""

from __future__ import annotations

import json
from typing import Any

from kaminari.engine.control_text import ControlEscape
from kaminari.engine.conversation import Message, PicturePart, Role, TextPart
from kaminari.engine.errors import RequestError
from kaminari.engine.json_schema import check_size


def template_message(message: Message, escape: ControlEscape, mapped_arguments: bool) -> dict[str, Any]:
    """Text alone as a string, text and pictures as a list in order.

    mapped_arguments:  the template takes the arguments of calls as a mapping, and not as JSON text
    """
    made: dict[str, Any] = {"role": Role(message.role).value, "content": _content(message, escape)}
    if message.tool_calls:
        made["tool_calls"] = [
            {
                "type": "function",
                "id": escape.escape(call.id),
                "function": {
                    "name": escape.escape(call.name),
                    "arguments": escape.escape_all(
                        _mapping(call.arguments) if mapped_arguments else call.arguments
                    ),
                },
            }
            for call in message.tool_calls
        ]
    if message.reasoning:
        made["reasoning_content"] = escape.escape(message.reasoning)
    if message.tool_call_id is not None:
        made["tool_call_id"] = escape.escape(message.tool_call_id)
    return made


def _mapping(arguments: str) -> dict[str, Any]:
    """Arguments as a template can go through them. Text that is no JSON object becomes one parameter, so that
    nothing of it is lost."""
    try:
        value = json.loads(arguments or "{}", parse_constant=_refuse)
        check_size(value, "arguments")
    except (ValueError, RecursionError, RequestError):
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def has_picture(message: Message) -> bool:
    return any(isinstance(part, PicturePart) for part in message.parts)


def _content(message: Message, escape: ControlEscape) -> str | list[dict[str, str]]:
    if not has_picture(message):
        return escape.escape("".join(part.text for part in message.parts if isinstance(part, TextPart)))
    return [
        {"type": "text", "text": escape.escape(part.text)}
        if isinstance(part, TextPart)
        else {"type": "image"}
        for part in message.parts
    ]
