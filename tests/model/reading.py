"""Reads answers through a family's parser of calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kaminari.model.calls import CallArguments, CallEnd, CallParser, CallPiece, CallStart, PlainText


@dataclass
class Read:
    """What a parser made of an answer. `calls` are name, arguments and whether the call is complete."""

    text: str = ""
    calls: list[tuple[str, str, bool]] = field(default_factory=list)

    def add(self, pieces: list[CallPiece]) -> None:
        for piece in pieces:
            match piece:
                case PlainText(text):
                    assert text
                    self.text += text
                case CallStart(name):
                    self.calls.append((name, "", False))
                case CallArguments(text):
                    name, before, complete = self.calls[-1]
                    assert not complete
                    self.calls[-1] = (name, before + text, False)
                case CallEnd():
                    name, arguments, complete = self.calls[-1]
                    assert not complete
                    self.calls[-1] = (name, arguments, True)


def read_pieces(parser: CallParser, pieces: Iterable[str]) -> Read:
    """What a fresh parser makes of an answer that comes in these pieces."""
    result = Read()
    for piece in pieces:
        result.add(parser.push(piece))
    result.add(parser.flush())
    return result
