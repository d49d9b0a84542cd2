"""Messages in the form that chat templates read, with everything that people wrote escaped."""

from __future__ import annotations

from typing import Any

from kaminari.engine.control_text import ControlEscape
from kaminari.engine.conversation import Message, PicturePart, Role, TextPart


def template_message(message: Message, escape: ControlEscape) -> dict[str, Any]:
    """Text alone as a string, text and pictures as a list in order; calls with their arguments as text."""
    made: dict[str, Any] = {"role": Role(message.role).value, "content": _content(message, escape)}
    if message.tool_calls:
        made["tool_calls"] = [
            {
                "type": "function",
                "id": escape.escape(call.id),
                "function": {"name": escape.escape(call.name), "arguments": escape.escape(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        made["tool_call_id"] = escape.escape(message.tool_call_id)
    return made


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
