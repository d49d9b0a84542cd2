"""How a family spells the calls of tools in its answers: the words that its parser speaks.

A parser reads the text of one answer in pieces, however it is cut, and parts the calls from the text around
them. It never fails: what does not read as a call is text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PlainText:
    """Text outside of calls."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of a tool begins; what follows up to `CallEnd` belongs to it."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of a call's arguments."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is complete."""


CallPiece = PlainText | CallStart | CallArguments | CallEnd


class CallParser(Protocol):
    """Reads one answer. The joined pieces do not depend on how its text is cut."""

    def push(self, text: str) -> list[CallPiece]:
        """Take more text; return what is certain."""
        ...

    def flush(self) -> list[CallPiece]:
        """End the answer; return what was held back. A call without `CallEnd` was cut off."""
        ...


@dataclass(frozen=True, slots=True)
class CallFrame:
    """What stands before and after the JSON arguments of a call."""

    before: str
    after: str


class CallFormat(Protocol):
    """A family's spelling of calls.

    opening:    what every call begins with
    separator:  what stands between two calls
    """

    opening: str
    separator: str

    def frame(self, name: str) -> CallFrame:
        """The text around the arguments of a call of this tool."""
        ...

    def parser(self) -> CallParser: ...
