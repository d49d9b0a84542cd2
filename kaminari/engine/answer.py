"""Reads a stream of events to its end: whole answers, for those who do not want them in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kaminari.engine.errors import EngineFault
from kaminari.engine.events import (
    ChoiceFinished,
    Delta,
    Event,
    Failed,
    FinishReason,
    Timings,
    TokenLogprobs,
    Usage,
)


@dataclass(slots=True)
class Choice:
    """One answer. `reason` is None only while it is being written.

    logprobs:  one for each of `token_ids` where the request asks for it, otherwise none
    """

    text: str = ""
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
        if isinstance(event, Delta):
            choice = self._choices.setdefault(event.choice, Choice())
            choice.text += event.text
            choice.token_ids += event.token_ids
            choice.logprobs += event.logprobs
        elif isinstance(event, ChoiceFinished):
            choice = self._choices.setdefault(event.choice, Choice())
            choice.reason, choice.stop = event.reason, event.stop
        elif isinstance(event, Failed):
            raise EngineFault(event.message)
        else:
            self._end = (event.usage, event.timings)

    def answer(self) -> Answer:
        """Return the whole answer. Raises `EngineFault` where the stream ended early (it was aborted)."""
        if self._end is None:
            raise EngineFault("the request was aborted")
        return Answer([self._choices[index] for index in sorted(self._choices)], *self._end)


def collect(events: Iterable[Event]) -> Answer:
    """Read a stream to its end, blocking. Raises `EngineFault`."""
    builder = AnswerBuilder()
    for event in events:
        builder.add(event)
    return builder.answer()
