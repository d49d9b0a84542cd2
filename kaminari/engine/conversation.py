"""A conversation as the engine takes it: neutral of any wire format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from PIL import Image

from kaminari.engine.answer_format import AnswerFormat
from kaminari.engine.tools import Tool, ToolCall, ToolChoice, ToolUse


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Detail(StrEnum):
    """How many tokens a picture may take; each maps onto a budget in the settings."""

    LOW = "low"
    AUTO = "auto"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class PicturePart:
    """An encoded picture file (bytes) or an image that is already decoded.

    field:  where the picture stands in the request, for error messages, such as `messages[0].content[1]`
    """

    source: bytes | Image.Image
    detail: Detail = Detail.AUTO
    field: str | None = None


Part = TextPart | PicturePart


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `parts` keeps the order of text and pictures exactly.

    tool_calls:    what an assistant called, after its text
    reasoning:     what an assistant thought before that; whether it is shown is the chat template's to say
    tool_call_id:  the call that a tool's turn is the result of
    """

    role: Role
    parts: tuple[Part, ...]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str = ""

    @staticmethod
    def text(role: Role | str, text: str) -> Message:
        return Message(Role(role), (TextPart(text),))


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns, how the chat template renders them, and what the answer may be.

    answer_format:        the form of its text; None: any
    parallel_tool_calls:  False ends the answer with its first call
    """

    messages: tuple[Message, ...]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    answer_format: AnswerFormat | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolUse.AUTO
    parallel_tool_calls: bool = True

    @property
    def offered_tools(self) -> tuple[Tool, ...]:
        """The tools that the model is shown."""
        return () if self.tool_choice is ToolUse.NONE else self.tools

    @staticmethod
    def ask(text: str, *pictures: bytes | Image.Image) -> Conversation:
        """One user turn: pictures (encoded files or images), then the question."""
        parts: tuple[Part, ...] = (*(PicturePart(picture) for picture in pictures), TextPart(text))
        return Conversation((Message(Role.USER, parts),))
