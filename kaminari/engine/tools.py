"""Tools that an answer may call, and calls that earlier answers made. Neutral of any wire format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client can run.

    definition:  what the chat template shows of it, as the client sent it
    parameters:  JSON Schema of its arguments; None: it takes none
    strict:      its arguments are held to the schema whenever it is called
    field:       where it stands in the request, for error messages
    """

    name: str
    definition: Mapping[str, Any]
    parameters: Mapping[str, Any] | None = None
    strict: bool = False
    field: str = "tools"

    @property
    def arguments(self) -> Mapping[str, Any]:
        """JSON Schema of its arguments, whether or not there are any."""
        return _NO_ARGUMENTS if self.parameters is None else self.parameters


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in the history. `arguments` is JSON text as the model wrote it, and may be broken."""

    id: str
    name: str
    arguments: str


class ToolUse(Enum):
    """AUTO: the model decides. NONE: no tool is shown to it. REQUIRED: it must call one at least."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The answer is one call of this tool."""

    name: str


ToolChoice = ToolUse | NamedTool
