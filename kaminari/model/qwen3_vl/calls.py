"""Qwen3-VL's calls of tools, in the form that the Hermes models brought in:

    <tool_call>
    {"name": "find_town", "arguments": {"city": "Rome"}}
    </tool_call>

The parser looks at each character once. It passes arguments on as they are written, so that what is streamed
is what a whole answer holds, and does not judge the JSON inside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum, auto

from kaminari.model.call_reader import BLANKS, CallReader
from kaminari.model.calls import CallParser, JsonValue, Parameters, Spelling, Written

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


class HermesCallFormat:
    """`kaminari.model.calls.CallFormat` of JSON objects between tags."""

    opening = OPEN
    separator = "\n"
    mapped_arguments = False

    def spell(self, name: str, parameters: Parameters) -> Spelling:
        before = f'\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
        return Written(before), JsonValue(parameters), Written(f"}}\n{CLOSE}")

    def parser(self, tools: Mapping[str, Parameters]) -> CallParser:
        return CallReader({OPEN: CallObject}, CLOSE, line_breaks=1)


class _At(Enum):
    BRACE = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()


class CallObject:
    """Reads `{"name": …, "arguments": …}` in any order of keys; other keys are skipped.

    `kaminari.model.call_reader.CallBody`.

    name:      once its value is complete
    complete:  the closing brace was read
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.complete = False
        self._at = _At.BRACE
        self._scan: _Scan | None = None
        self._key = ""
        self._has_arguments = False
        self._arguments: list[str] = []

    def leave(self) -> str:
        """Every character that was taken is an argument's, or says nothing."""
        return ""

    def new_arguments(self) -> str:
        """Text of the arguments that was not asked for yet."""
        text = "".join(self._arguments)
        self._arguments = []
        return text

    def take(self, char: str) -> bool:
        """Read on. False where this character cannot belong to a call; it is not taken then."""
        if self._scan is not None:
            return self._go_on(self._scan, char)
        if char in BLANKS:
            return True
        match self._at, char:
            case _At.BRACE, "{":
                self._at = _At.KEY
            case _At.KEY, ",":
                pass
            case _At.KEY, '"':
                self._scan = _Scan(char)
            case _At.KEY, "}" if self.name is not None:
                self.complete = True
                if not self._has_arguments:
                    self._arguments.append("{}")
            case _At.COLON, ":":
                self._at = _At.VALUE
            case _At.VALUE, _ if char not in ",}":
                self._scan = _Scan(char, keep=self._key == "name" and self.name is None)
                if self._key == "arguments" and not self._has_arguments:
                    self._arguments.append(char)
            case _:
                return False
        return True

    def _go_on(self, scan: _Scan, char: str) -> bool:
        if scan.is_scalar and (char in BLANKS or char in ",}"):
            return self._end(scan) and self.take(char)
        if self._at is _At.VALUE and self._key == "arguments" and not self._has_arguments:
            self._arguments.append(char)
        over = scan.take(char)
        return self._end(scan) if over else True

    def _end(self, scan: _Scan) -> bool:
        """A key or a value is complete. False for a name or a key that is no string."""
        self._scan = None
        if self._at is _At.KEY:
            self._key, self._at = scan.text(), _At.COLON
            return True
        self._at = _At.KEY
        if self._key == "arguments":
            self._has_arguments = True
        elif self._key == "name" and self.name is None:
            name = scan.text()
            if not name:
                return False
            self.name = name
        return True


class _Scan:
    """Finds the end of one JSON value by its quotes and brackets alone."""

    def __init__(self, first: str, keep: bool = True) -> None:
        self.is_scalar = first not in '"{['
        self._kept = [first] if keep else None
        self._in_string = first == '"'
        self._depth = int(first in "{[")
        self._escaped = False

    def take(self, char: str) -> bool:
        """Take the next character; True where it ends the value."""
        if self._kept is not None:
            self._kept.append(char)
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        return not self._in_string and self._depth == 0 and not self.is_scalar

    def text(self) -> str:
        """The value as a string, empty where it is none."""
        try:
            value = json.loads("".join(self._kept or ()), strict=False)
            if isinstance(value, str):
                value.encode()  # a lone surrogate has no bytes, so no client could be told of it
                return value
        except (ValueError, RecursionError):
            pass
        return ""
