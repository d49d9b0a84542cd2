"""From what a request says of tools to the engine's words for it."""

from __future__ import annotations

from typing import Any

from kaminari.engine.tools import NamedTool, Tool, ToolCall, ToolChoice, ToolUse
from kaminari.openai_api.schemas.chat import ChatRequest
from kaminari.openai_api.schemas.tools import CallInHistory, FunctionTool, NamedChoice


def to_tools(request: ChatRequest) -> tuple[Tool, ...]:
    return tuple(_tool(tool, f"tools[{place}]") for place, tool in enumerate(request.tools or ()))


def to_tool_choice(request: ChatRequest) -> ToolChoice:
    choice = request.tool_choice
    if isinstance(choice, NamedChoice):
        return NamedTool(choice.function.name)
    return ToolUse.AUTO if choice is None else ToolUse(choice)


def to_calls(calls: list[CallInHistory]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in calls)


def _tool(tool: FunctionTool, field: str) -> Tool:
    """The model sees a function in one order of keys, so that equal tools make equal prompts."""
    function = tool.function
    shown: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        shown["description"] = function.description
    if function.parameters is not None:
        shown["parameters"] = function.parameters
    definition = {"type": "function", "function": shown}
    return Tool(function.name, definition, function.parameters, function.strict, field)
