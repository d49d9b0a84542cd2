"""Turns the tokens of one choice into events, and knows when the choice is over. Never sees a tensor."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from kaminari.engine.constraints import Constraint
from kaminari.engine.detokenizer import Detokenizer
from kaminari.engine.events import ChoiceFinished, Event, FinishReason
from kaminari.engine.params import SamplingParams
from kaminari.engine.parsing import PLAIN, AnswerSyntax
from kaminari.engine.stop_strings import StopMatcher


class ChoiceWriter:
    """One choice's way from token ids to text, reasoning and tool calls.

    max_tokens:  how many tokens the choice may have, already clamped to the context
    tokens:      how many it has; `reasoning_tokens` of them are reasoning
    reason:      why it is over, or None while it runs
    constraint:  the grammar that it follows, if any; one that is finished ends the choice
    """

    def __init__(
        self,
        choice: int,
        detokenizer: Detokenizer,
        params: SamplingParams,
        end_token_ids: AbstractSet[int],
        max_tokens: int,
        constraint: Constraint | None = None,
        syntax: AnswerSyntax = PLAIN,
    ) -> None:
        self.choice = choice
        self.tokens = 0
        self.reasoning_tokens = 0
        self.reason: FinishReason | None = None
        self.constraint = constraint
        self._max_tokens = max_tokens
        self._end_token_ids = frozenset() if params.ignore_eos else end_token_ids
        self._detokenizer = detokenizer
        self._stops = StopMatcher(params.stop)
        self._reader = syntax.reader(choice)

    def push(self, token: int) -> list[Event]:
        """Take the next token. Returns its deltas, and the end of the choice where this token ends it."""
        if self.reason is not None:
            raise RuntimeError("a choice that is over takes no more tokens")
        self.tokens += 1
        self.reasoning_tokens += self._reader.reasoning
        stop = None
        if self.constraint is not None:
            self.constraint.accept(token)
        if token in self._end_token_ids:
            text, self.reason = "", FinishReason.STOP
        else:
            text, stop = self._stops.push(self._detokenizer.push(token))
            if stop is not None or (self.constraint is not None and self.constraint.finished):
                self.reason = FinishReason.STOP
            elif self.tokens >= self._max_tokens:
                self.reason = FinishReason.LENGTH
        if self.reason is not None and stop is None:
            tail, stop = self._stops.push(self._detokenizer.flush())
            text += tail
            if stop is None:
                text += self._stops.flush()
            else:
                self.reason = FinishReason.STOP
        events: list[Event] = [*self._reader.push(text, (token,))]
        if self._reader.complete:
            self.reason = FinishReason.STOP
        if self.reason is None:
            return events
        events += self._reader.flush()
        if self.reason is FinishReason.STOP and self._reader.called:
            self.reason = FinishReason.TOOL_CALLS
        return [*events, ChoiceFinished(self.choice, self.reason, stop)]
