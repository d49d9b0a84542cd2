"""Reads a stream of events to its end: whole answers, for those who do not want them in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from kaminari.engine.errors import EngineFault
from kaminari.engine.events import (
    ChoiceFinished,
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    ReasoningDelta,
    Timings,
    TokenLogprobs,
    ToolCallDelta,
    Usage,
)
from kaminari.engine.tools import ToolCall


@dataclass(slots=True)
class Choice:
    """One answer. `reason` is None only while it is being written.

    logprobs:  one for each of `token_ids` where the request asks for it, otherwise none
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    reason: FinishReason | None = None
    stop: str | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass(slots=True)
class Answer:
    """All choices of a request, in order, with what they cost."""

    choices: list[Choice]
    usage: Usage
    timings: Timings

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text


class AnswerBuilder:
    """Gathers events; `answer()` once the stream is over. For readers that have their own loop."""

    def __init__(self) -> None:
        self._choices: dict[int, Choice] = {}
        self._end: tuple[Usage, Timings] | None = None

    def add(self, event: Event) -> None:
        """Take one event. Raises `EngineFault` for `Failed`."""
        match event:
            case Failed():
                raise EngineFault(event.message)
            case Finished():
                self._end = (event.usage, event.timings)
            case _:
                _add(event, self._choices.setdefault(event.choice, Choice()))

    def answer(self) -> Answer:
        """Return the whole answer. Raises `EngineFault` where the stream ended early (it was aborted)."""
        if self._end is None:
            raise EngineFault("the request was aborted")
        return Answer([self._choices[index] for index in sorted(self._choices)], *self._end)


def _add(event: Delta | ReasoningDelta | ToolCallDelta | ChoiceFinished, choice: Choice) -> None:
    match event:
        case Delta():
            choice.text += event.text
            choice.token_ids += event.token_ids
            choice.logprobs += event.logprobs
        case ReasoningDelta():
            choice.reasoning += event.text
        case ToolCallDelta(id=str(call_id), name=str(name)):
            choice.tool_calls.append(ToolCall(call_id, name, event.arguments))
        case ToolCallDelta():
            call = choice.tool_calls[event.index]
            choice.tool_calls[event.index] = replace(call, arguments=call.arguments + event.arguments)
        case ChoiceFinished():
            choice.reason, choice.stop = event.reason, event.stop


def collect(events: Iterable[Event]) -> Answer:
    """Read a stream to its end, blocking. Raises `EngineFault`."""
    builder = AnswerBuilder()
    for event in events:
        builder.add(event)
    return builder.answer()
