"""Parts the text of one answer into what it says, what it thinks and which tools it calls, as it is written.

Knows no family: the tags and the spelling of calls come with the prompt. Never fails: what reads as nothing
else is text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from uuid import uuid4

from kaminari.engine.events import Delta, ReasoningDelta, TokenLogprobs, ToolCallDelta
from kaminari.model.calls import CallArguments, CallFormat, CallPiece, CallStart, Parameters, PlainText
from kaminari.model.family import ThinkTags


@dataclass(frozen=True, slots=True)
class AnswerSyntax:
    """How to read the answers to one prompt. Without anything set, all of an answer is text.

    calls:        how tools are called, where the prompt offers some
    tools:        their names and the schemas of their arguments
    single_call:  the answer ends with its first call
    think:        tags of the reasoning, for a prompt that may be answered with some
    thinking:     the prompt has opened the reasoning already
    """

    calls: CallFormat | None = None
    tools: Mapping[str, Parameters] = field(default_factory=dict)
    single_call: bool = False
    think: ThinkTags | None = None
    thinking: bool = False

    def reader(self, choice: int) -> AnswerReader:
        return AnswerReader(self, choice)


PLAIN = AnswerSyntax()
Part = Delta | ReasoningDelta | ToolCallDelta


class AnswerReader:
    """Reads one choice.

    called:    a tool was called, and the last call is whole
    complete:  nothing may follow: the one call that is allowed is over
    """

    def __init__(self, syntax: AnswerSyntax, choice: int) -> None:
        self.complete = False
        self._in_call = False
        self._choice = choice
        self._single = syntax.single_call
        self._thoughts = None if syntax.think is None else ThoughtReader(syntax.think, syntax.thinking)
        self._calls = None if syntax.calls is None else syntax.calls.parser(syntax.tools)
        self._index = -1

    @property
    def called(self) -> bool:
        return self._index >= 0 and not self._in_call

    @property
    def reasoning(self) -> bool:
        """What comes next is reasoning, as far as can be told."""
        return self._thoughts is not None and self._thoughts.inside

    def push(
        self, text: str, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...] = ()
    ) -> list[Part]:
        """Take more text; `token_ids` are those that made it. The first part carries them, and `logprobs`."""
        if self._thoughts is None and self._calls is None:
            return [Delta(self._choice, text, token_ids, logprobs)]
        thought, said = ("", text) if self._thoughts is None else self._thoughts.push(text)
        pieces: list[CallPiece] = [PlainText(said)]
        if self._calls is not None:
            pieces = self._calls.push(said)
        return self._parts(thought, pieces, Delta(self._choice, "", token_ids, logprobs))

    def flush(self) -> list[Part]:
        """End the answer; return what was held back."""
        thought, said = ("", "") if self._thoughts is None else self._thoughts.flush()
        pieces: list[CallPiece] = [PlainText(said)]
        if self._calls is not None:
            pieces = [*self._calls.push(said), *self._calls.flush()]
        nothing = Delta(self._choice, "", ())
        return [part for part in self._parts(thought, pieces, nothing) if part != nothing]

    def _parts(self, thought: str, pieces: list[CallPiece], carrier: Delta) -> list[Part]:
        parts: list[Part] = []
        if thought:
            parts.append(ReasoningDelta(self._choice, thought))
        parts += self._said(pieces)
        first = parts[0] if parts and not thought else None
        if isinstance(first, Delta):
            return [replace(carrier, text=first.text), *parts[1:]]
        return [carrier, *parts]

    def _said(self, pieces: list[CallPiece]) -> Iterator[Part]:
        for piece in pieces:
            if self.complete:
                return
            match piece:
                case PlainText(text):
                    if text:
                        yield Delta(self._choice, text, ())
                case CallStart(name):
                    self._in_call = True
                    self._index += 1
                    yield ToolCallDelta(self._choice, self._index, f"call_{uuid4().hex}", name)
                case CallArguments(text):
                    yield ToolCallDelta(self._choice, self._index, arguments=text)
                case _:
                    self._in_call = False
                    self.complete = self._single


class ThoughtReader:
    """Parts reasoning between tags from what follows it.

    Line breaks around both belong to the template. Reasoning that never ends is all there is; an answer that
    does not begin with the opening tag has none.
    """

    def __init__(self, tags: ThinkTags, inside: bool) -> None:
        self.inside = inside
        self._tags = tags
        self._held = ""
        self._before = not inside  # before the opening tag
        self._at_start = True  # nothing but line breaks was seen of this part

    def push(self, text: str) -> tuple[str, str]:
        """Return the reasoning and the text that are now final."""
        self._held += text
        if self._before and not self._open():
            return "", ""
        thought = self._think() if self.inside else ""
        return thought, "" if self.inside else self._speak()

    def flush(self) -> tuple[str, str]:
        """End the answer; return what was held back."""
        held, self._held = self._held, ""
        return (held.rstrip("\n"), "") if self.inside else ("", held)

    def _open(self) -> bool:
        """Whether it is clear how the answer begins."""
        begins = self._held.lstrip()
        if begins.startswith(self._tags.open):
            self._held = begins[len(self._tags.open) :]
            self.inside = True
        elif self._tags.open.startswith(begins):
            return False
        else:
            self._at_start = False
        self._before = False
        return True

    def _think(self) -> str:
        self._skip_line_breaks()
        end = self._held.find(self._tags.close)
        if end >= 0:
            thought = self._held[:end].rstrip("\n")
            self._held = self._held[end + len(self._tags.close) :]
            self.inside, self._at_start = False, True
            return thought
        shown = self._held[: len(self._held) - _overlap(self._held, self._tags.close)].rstrip("\n")
        self._held = self._held[len(shown) :]
        return shown

    def _speak(self) -> str:
        self._skip_line_breaks()
        said, self._held = self._held, ""
        return said

    def _skip_line_breaks(self) -> None:
        if self._at_start:
            self._held = self._held.lstrip("\n")
            self._at_start = not self._held


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of a text that is a beginning of the tag."""
    return next(size for size in range(min(len(tag) - 1, len(text)), -1, -1) if text.endswith(tag[:size]))
