"""Refuses tools that cannot be offered, before anything is rendered."""

from __future__ import annotations

import json
from collections.abc import Callable

from kaminari.engine.conversation import Conversation
from kaminari.engine.errors import RequestError
from kaminari.engine.json_schema import check_size
from kaminari.engine.tools import NamedTool, ToolUse
from kaminari.model.calls import CallFormat

MAX_TOOLS = 128


def check_tools(
    conversation: Conversation, call_format: CallFormat | None, mentions: Callable[[str], bool]
) -> None:
    """Raise `RequestError` for tools that this model, or any, cannot be offered.

    mentions: whether the chat template has a name in it
    """
    tools, choice = conversation.tools, conversation.tool_choice
    check_size([tool.definition for tool in tools], "tools")
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"tools must hold at most {MAX_TOOLS} tools", field="tools")
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise RequestError("tools must have names that differ", field="tools")
    if isinstance(choice, NamedTool) and choice.name not in names:
        raise RequestError("tool_choice names a function that is not among the tools", field="tool_choice")
    if choice is ToolUse.REQUIRED and not tools:
        raise RequestError("tool_choice is `required`, and there are no tools", field="tool_choice")
    if conversation.offered_tools and (call_format is None or not mentions("tools")):
        raise RequestError("this model's chat template knows no tools", field="tools")
    for place, message in enumerate(conversation.messages):
        if message.tool_calls and not mentions("tool_calls"):
            field = f"messages[{place}].tool_calls"
            raise RequestError("this model's chat template knows no tool calls", field=field)


def tool_text(conversation: Conversation) -> str:
    """What tools, calls and reasoning add to the prompt's text, about."""
    tools = [json.dumps(tool.definition, ensure_ascii=False) for tool in conversation.offered_tools]
    calls = [call for message in conversation.messages for call in message.tool_calls]
    thoughts = [message.reasoning for message in conversation.messages]
    return "".join([*tools, *(call.name + call.arguments for call in calls), *thoughts])
