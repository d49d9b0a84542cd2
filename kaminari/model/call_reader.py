"""Reads the text around calls, for every family: where a call begins, and what stands before and after it.

What is inside a call is a family's own `CallBody`. Each character is looked at a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from kaminari.model.calls import CallArguments, CallEnd, CallPiece, CallStart, PlainText

BLANKS = frozenset(" \t\r\n")


class CallBody(Protocol):
    """Reads one call, from behind its opening on.

    name:      once it is known
    complete:  nothing more belongs to the call but its closing tag
    """

    name: str | None
    complete: bool

    def take(self, char: str) -> bool:
        """Read on. False where this character cannot belong to a call; it is not taken then."""
        ...

    def new_arguments(self) -> str:
        """Text of the arguments that was not asked for yet."""
        ...

    def leave(self) -> str:
        """Stop before the call is complete. Returns what was read last and belongs to no argument."""
        ...


class CallReader:
    """`kaminari.model.calls.CallParser` of calls that begin with an opening and end with a closing tag.

    Line breaks directly before a call belong to the call, as in chat templates, and so do those that are all
    that follows the last call. A call that goes wrong before its name is known is text; one that goes wrong
    later is a call that was cut off, and the rest is text. A closing tag that is missing is not missed.
    """

    def __init__(self, openings: Mapping[str, Callable[[], CallBody]], close: str, line_breaks: int) -> None:
        """`line_breaks` is how many of them belong to a call."""
        self._openings = {
            "\n" * count + opening: body
            for opening, body in openings.items()
            for count in range(line_breaks + 1)
        }
        self._close = close
        self._call: CallBody | None = None  # the call that is being read
        self._raw: list[str] = []  # all of a call that has no name yet
        self._held = ""  # in text: perhaps the start of a call; after a call: perhaps its closing tag
        self._blanks: list[str] = []  # after a call: what stands before the closing tag
        self._closing = False  # after a call
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
        if self._call is not None:
            self._call.leave()
            self._pass_arguments(self._call)
            self._show("".join(self._raw))
        elif not self._closing and not (self._after_call and self._held.strip("\n") == ""):
            self._show(self._held)
        self._call, self._raw, self._held, self._blanks, self._closing = None, [], "", [], False
        return self._drain()

    def _take(self, char: str) -> None:
        if self._call is not None:
            self._take_in_call(self._call, char)
        elif self._closing:
            self._take_after_call(char)
        else:
            self._take_in_text(char)

    def _take_in_text(self, char: str) -> None:
        held = self._held + char
        while held and not any(opening.startswith(held) for opening in self._openings):
            self._show(held[0])
            held = held[1:]
        if (body := self._openings.get(held)) is not None:
            self._call, self._raw, held = body(), [held], ""
        self._held = held

    def _take_in_call(self, call: CallBody, char: str) -> None:
        if not call.take(char):
            unread = call.leave()
            self._pass_arguments(call)
            raw = "".join(self._raw)
            self._show(raw[: len(raw) - len(unread)])
            self._call, self._raw = None, []
            for each in unread + char:
                self._take(each)
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

    def _take_after_call(self, char: str) -> None:
        """Skip blanks and the closing tag. Anything else is text."""
        if char in BLANKS and not self._held:
            self._blanks.append(char)
            return
        self._held += char
        if self._close.startswith(self._held) and self._held != self._close:
            return
        again = [] if self._held == self._close else [*self._blanks, *self._held]
        self._held, self._blanks, self._closing = "", [], False
        for each in again:
            self._take(each)

    def _pass_arguments(self, call: CallBody) -> None:
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
