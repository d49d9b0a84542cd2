"""Qwen3-VL's calls of tools, in the form that the Hermes models brought in:

    <tool_call>
    {"name": "find_town", "arguments": {"city": "Rome"}}
    </tool_call>

The parser looks at each character once. It passes arguments on as they are written, so that what is streamed
is what a whole answer holds, and does not judge the JSON inside them.
"""

from __future__ import annotations

import json
from enum import Enum, auto

from kaminari.model.calls import (
    CallArguments,
    CallEnd,
    CallFrame,
    CallParser,
    CallPiece,
    CallStart,
    PlainText,
)

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
_OPENINGS = (OPEN, "\n" + OPEN)
_BLANKS = frozenset(" \t\r\n")


class HermesCallFormat:
    """`kaminari.model.calls.CallFormat` of JSON objects between tags."""

    opening = OPEN
    separator = "\n"

    def frame(self, name: str) -> CallFrame:
        quoted = json.dumps(name, ensure_ascii=False)
        return CallFrame(f'{OPEN}\n{{"name": {quoted}, "arguments": ', f"}}\n{CLOSE}")

    def parser(self) -> CallParser:
        return HermesCallParser()


class HermesCallParser:
    """Reads one answer.

    A line break directly before a call belongs to the call, as in the chat template, and so does one that is
    all that follows the last call. An object that goes wrong before its name is known is text; one that goes
    wrong later is a call that was cut off, and the rest is text.
    """

    def __init__(self) -> None:
        self._call: _CallObject | None = None  # the object that is being read
        self._raw: list[str] = []  # all of a call that has no name yet
        self._held = ""  # in text: perhaps the start of a call; after an object: perhaps its closing tag
        self._blanks: list[str] = []  # after an object: what stands before the closing tag
        self._closing = False  # after an object
        self._after_call = False  # nothing was shown since a call
        self._pieces: list[CallPiece] = []
        self._text: list[str] = []

    def push(self, text: str) -> list[CallPiece]:
        for char in text:
            self._take(char)
        if self._call is not None:
            self._pass_arguments(self._call)
        return self._drain()

    def flush(self) -> list[CallPiece]:
        if self._call is not None and self._raw:
            self._show("".join(self._raw))
        elif self._call is None and not self._closing and not (self._after_call and self._held == "\n"):
            self._show(self._held)
        self._call, self._raw, self._held, self._blanks, self._closing = None, [], "", [], False
        return self._drain()

    def _take(self, char: str) -> None:
        if self._call is not None:
            self._take_in_call(self._call, char)
        elif self._closing:
            self._take_after_object(char)
        else:
            self._take_in_text(char)

    def _take_in_text(self, char: str) -> None:
        held = self._held + char
        while held and not any(opening.startswith(held) for opening in _OPENINGS):
            self._show(held[0])
            held = held[1:]
        if held in _OPENINGS:
            self._call, self._raw, held = _CallObject(), [held], ""
        self._held = held

    def _take_in_call(self, call: _CallObject, char: str) -> None:
        if not call.take(char):
            self._pass_arguments(call)
            self._show("".join(self._raw))
            self._call, self._raw = None, []
            self._take(char)
            return
        if self._raw:
            self._raw.append(char)
            if call.name is not None:
                self._raw = []
                self._add(CallStart(call.name))
        if call.complete:
            self._pass_arguments(call)
            self._add(CallEnd())
            self._call, self._closing, self._after_call = None, True, True

    def _take_after_object(self, char: str) -> None:
        """Skip blanks and the closing tag. Anything else is text."""
        if char in _BLANKS and not self._held:
            self._blanks.append(char)
            return
        self._held += char
        if CLOSE.startswith(self._held) and self._held != CLOSE:
            return
        again = [] if self._held == CLOSE else [*self._blanks, *self._held]
        self._held, self._blanks, self._closing = "", [], False
        for each in again:
            self._take(each)

    def _pass_arguments(self, call: _CallObject) -> None:
        if not self._raw and (arguments := call.new_arguments()):
            self._add(CallArguments(arguments))

    def _show(self, text: str) -> None:
        if text:
            self._text.append(text)
            self._after_call = False

    def _add(self, piece: CallPiece) -> None:
        self._settle_text()
        self._pieces.append(piece)

    def _settle_text(self) -> None:
        if self._text:
            self._pieces.append(PlainText("".join(self._text)))
            self._text = []

    def _drain(self) -> list[CallPiece]:
        self._settle_text()
        pieces, self._pieces = self._pieces, []
        return pieces


class _At(Enum):
    BRACE = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()


class _CallObject:
    """Reads `{"name": …, "arguments": …}` in any order of keys; other keys are skipped.

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

    def new_arguments(self) -> str:
        """Text of the arguments that was not asked for yet."""
        text = "".join(self._arguments)
        self._arguments = []
        return text

    def take(self, char: str) -> bool:
        """Read on. False where this character cannot belong to a call; it is not taken then."""
        if self._scan is not None:
            return self._go_on(self._scan, char)
        if char in _BLANKS:
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
        if scan.is_scalar and (char in _BLANKS or char in ",}"):
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
