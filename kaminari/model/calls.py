"""How a family spells the calls of tools in its answers: the words that its parser and its grammar speak.

A parser reads the text of one answer in pieces, however it is cut, and parts the calls from the text around
them. It never fails: what does not read as a call is text. A spelling says which texts a call may be, in
parts that know no grammar library's notation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Parameters = Mapping[str, Any]
"""JSON Schema of a tool's arguments, an object."""


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
class Written:
    """Exactly this text."""

    text: str


@dataclass(frozen=True, slots=True)
class JsonValue:
    """The JSON text of a value of a schema, whose references stay within it."""

    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TextForm:
    """Texts that are strings of a schema, and match none of some regular expressions as a whole.

    schema:  only keywords of strings count
    """

    schema: Mapping[str, Any]
    unlike: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RawText:
    """Text as it is, without quotes, which has one of the forms; and then `end`.

    without:  texts that it may not hold
    """

    forms: tuple[TextForm, ...]
    without: tuple[str, ...]
    end: str


@dataclass(frozen=True, slots=True)
class Either:
    """One of several spellings."""

    options: tuple[Spelling, ...]


@dataclass(frozen=True, slots=True)
class Maybe:
    """A spelling, or nothing."""

    parts: Spelling


@dataclass(frozen=True, slots=True)
class Repeated:
    """A spelling any number of times, also none."""

    parts: Spelling


SpellingPart = Written | JsonValue | RawText | Either | Maybe | Repeated
Spelling = tuple[SpellingPart, ...]


class UnspeakableArguments(ValueError):
    """Arguments of this schema have no spelling that a grammar can hold; the message says why."""


class CallFormat(Protocol):
    """A family's spelling of calls.

    opening:           what every call begins with
    separator:         what stands between two calls
    mapped_arguments:  the family's chat template takes the arguments of earlier calls as a mapping, and not
                       as JSON text
    """

    opening: str
    separator: str
    mapped_arguments: bool

    def spell(self, name: str, parameters: Parameters) -> Spelling:
        """What follows the opening of a call of this tool. Raises `UnspeakableArguments`."""
        ...

    def parser(self, tools: Mapping[str, Parameters]) -> CallParser:
        """A parser for an answer that may call these tools."""
        ...
