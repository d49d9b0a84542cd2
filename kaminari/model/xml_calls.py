"""Calls of tools as Qwen3.5 and MiniCPM-V write them, in tags that look like XML and escape nothing:

    <tool_call>
    <function=find_town>
    <parameter=city>
    Rome
    </parameter>
    </function>
    </tool_call>

The parser makes JSON of the arguments as they come: a string's text is passed on as it is written, unless it
begins with a quote or a blank, and so may be a JSON string; any other value is passed on once it is complete.
Since nothing is escaped, `</parameter>` ends a value only where one of the tags follows that may follow it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from kaminari.model.call_reader import BLANKS, CallReader
from kaminari.model.calls import CallParser, Parameters, Spelling
from kaminari.model.xml_spelling import spell_call
from kaminari.model.xml_tags import (
    CALL_END,
    CALL_START,
    FUNCTION_END,
    FUNCTION_START,
    PARAMETER_END,
    PARAMETER_START,
)
from kaminari.model.xml_values import STRING, SchemaTypes, Types, argument_json

_MAY_QUOTE = ('"', *BLANKS)
MAX_NAME = 256
MAX_BLANKS = 16
"""How many blanks may stand between two tags where a value might still go on."""


class XmlCallFormat:
    """`kaminari.model.calls.CallFormat` of functions and parameters in tags."""

    opening = CALL_START
    separator = "\n"
    mapped_arguments = True

    def spell(self, name: str, parameters: Parameters) -> Spelling:
        return spell_call(name, parameters)

    def parser(self, tools: Mapping[str, Parameters]) -> CallParser:
        """Models sometimes leave out the outer tag: a function of one of the tools opens a call, too."""
        signatures = {name: Signature(parameters) for name, parameters in tools.items()}
        openings = {
            CALL_START: partial(CallElement, signatures),
            FUNCTION_START: partial(CallElement, signatures, bare=True),
        }
        return CallReader(openings, CALL_END, line_breaks=2)


class Signature:
    """What a tool's schema says of its parameters."""

    def __init__(self, parameters: Parameters) -> None:
        properties = parameters.get("properties")
        self._properties: Mapping[str, object] = properties if isinstance(properties, Mapping) else {}
        self._others = parameters.get("additionalProperties")
        self._types = SchemaTypes(parameters)
        self.names = frozenset(self._properties)

    def types(self, name: str) -> Types:
        return self._types.of(self._properties.get(name, self._others))


@dataclass(frozen=True, slots=True)
class Ending:
    """A tag that ends a value where one of some others follows it.

    size:      how much of the tag belongs to the value's end; what does not is read as a tag of its own
    own_line:  only at the start of a line
    """

    tag: str
    followers: tuple[str, ...]
    size: int
    own_line: bool = False


# The second is for a value whose own closing tag is missing.
ENDINGS = (
    Ending(PARAMETER_END, (PARAMETER_START, FUNCTION_END, CALL_END), len(PARAMETER_END)),
    Ending(FUNCTION_END, (CALL_END,), 0),
)


class _At(Enum):
    START = auto()
    FUNCTION = auto()
    BODY = auto()
    PARAMETER = auto()
    VALUE = auto()


class CallElement:
    """`kaminari.model.call_reader.CallBody` of a function between its tags.

    What is read is passed on by `_at`: blanks and tags, the two kinds of names, and values.
    """

    def __init__(self, signatures: Mapping[str, Signature], *, bare: bool = False) -> None:
        """`bare`: the function's tag opened the call, so that it must be one of the tools'."""
        self.name: str | None = None
        self.complete = False
        self._signatures = signatures
        self._signature = Signature({})
        self._bare = bare
        self._at = _At.FUNCTION if bare else _At.START
        self._held = ""  # perhaps a tag; a name so far; in a value: perhaps its end
        self._given: set[str] = set()
        self._types: Types = None
        self._endings: tuple[Ending, ...] = ENDINGS
        self._value: list[str] = []  # of a value that waits for its end
        self._streams = False  # the value is passed on as it is written
        self._fresh = False  # nothing of the value was read
        self._arguments: list[str] = []

    def take(self, char: str) -> bool:
        match self._at:
            case _At.FUNCTION | _At.PARAMETER:
                return self._take_name(char)
            case _At.VALUE:
                self._take_value(char)
                return True
            case _:
                return (char in BLANKS and not self._held) or self._take_tag(char)

    def new_arguments(self) -> str:
        text = "".join(self._arguments)
        self._arguments = []
        return text

    def leave(self) -> str:
        if self._at is not _At.VALUE:
            return PARAMETER_START + self._held if self._at is _At.PARAMETER else self._held
        if PARAMETER_END in self._held:
            self._end_value()
        else:
            self._write(self._held)
            if not self._streams:
                self._arguments.append(json.dumps("".join(self._value), ensure_ascii=False)[:-1])
        return ""

    def _take_tag(self, char: str) -> bool:
        tags = (FUNCTION_START,) if self._at is _At.START else (PARAMETER_START, FUNCTION_END, CALL_END)
        held = self._held + char
        if not any(tag.startswith(held) for tag in tags):
            return False
        self._held = held
        if held in tags:
            self._held = ""
            if held == FUNCTION_START:
                self._at = _At.FUNCTION
            elif held == PARAMETER_START:
                self._at = _At.PARAMETER
            else:
                self._arguments.append("}" if self._given else "{}")
                self.complete = True
        return True

    def _take_name(self, char: str) -> bool:
        if char != ">":
            if char in "<\n" or len(self._held) == MAX_NAME:
                return False
            self._held += char
            return True
        name = self._held
        if not name or (self._bare and self.name is None and name not in self._signatures):
            return False
        self._held = ""
        if self._at is _At.FUNCTION:
            self.name = name
            self._signature = self._signatures.get(name, self._signature)
            self._at = _At.BODY
        else:
            self._begin_value(name)
        return True

    def _begin_value(self, name: str) -> None:
        self._at, self._fresh, self._streams = _At.VALUE, True, False
        self._types = self._signature.types(name)
        comma = ", " if self._given else "{"
        self._arguments.append(f"{comma}{json.dumps(name, ensure_ascii=False)}: ")
        self._given.add(name)
        # Where the closing tag is missing, a parameter that may come next ends the value.
        following = (f"{PARAMETER_START}{other}>" for other in self._signature.names - self._given)
        self._endings = (*ENDINGS, *(Ending(tag, ("",), 0, own_line=True) for tag in following))

    def _take_value(self, char: str) -> None:
        fresh, self._fresh = self._fresh, False
        if fresh and char == "\n":
            return
        held = self._held + char
        while held:
            size = end_of_value(held, self._endings)
            if size is None:
                break
            if size >= 0:
                self._end_value()
                for each in held[size:]:
                    if not self.complete:
                        self.take(each)
                return
            self._write(held[0])
            held = held[1:]
        self._held = held

    def _write(self, text: str) -> None:
        if self._types == STRING and text and not self._value and not self._streams:
            self._streams = text[0] not in _MAY_QUOTE
            self._arguments += ['"'] if self._streams else []
        if self._streams:
            self._arguments.append(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self._value.append(text)

    def _end_value(self) -> None:
        self._at, self._held = _At.BODY, ""
        if self._streams:
            self._arguments.append('"')
        else:
            self._arguments.append(argument_json("".join(self._value), self._types))
            self._value = []


def end_of_value(held: str, endings: Iterable[Ending]) -> int | None:
    """How many characters of `held` end a value; the rest are tags to read.

    -1: the first character belongs to the value; None: more has to be read.
    """
    if held[0] not in "\n<":
        return -1
    line = int(held[0] == "\n")
    rest = held[line:]
    undecided = False
    for ending in endings:
        if ending.own_line and not line:
            continue
        if not rest.startswith(ending.tag):
            undecided |= ending.tag.startswith(rest)
            continue
        after = rest[len(ending.tag) :].lstrip("".join(BLANKS))
        if len(rest) - len(ending.tag) - len(after) > MAX_BLANKS:
            continue
        if any(after.startswith(tag) for tag in ending.followers):
            return line + ending.size
        undecided |= any(tag.startswith(after) for tag in ending.followers)
    return None if undecided else -1
