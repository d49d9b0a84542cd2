"""Turns the tokens of one choice into events, and knows when the choice is over. Never sees a tensor."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from kaminari.engine.constraints import Constraint
from kaminari.engine.detokenizer import Detokenizer
from kaminari.engine.drawn import DrawnLogprobs
from kaminari.engine.events import ChoiceFinished, Event, FinishReason, LikelyToken, TokenLogprobs
from kaminari.engine.params import SamplingParams
from kaminari.engine.parsing import PLAIN, AnswerSyntax
from kaminari.engine.stop_strings import StopMatcher
from kaminari.engine.token_text import TokenText


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
        token_text: TokenText,
        constraint: Constraint | None = None,
        syntax: AnswerSyntax = PLAIN,
    ) -> None:
        self.choice = choice
        self.tokens = 0
        self.reasoning_tokens = 0
        self.reason: FinishReason | None = None
        self.constraint = constraint
        self._max_tokens = max_tokens
        self._min_tokens = params.min_tokens
        self._end_token_ids = params.ending(end_token_ids)
        self._detokenizer = detokenizer
        self._stops = StopMatcher(params.stop)
        self._token_text = token_text
        self._shown = False
        self._reader = syntax.reader(choice)

    def push(self, token: int, logprobs: DrawnLogprobs | None = None) -> list[Event]:
        """Take the next token. Returns its deltas, and the end of the choice where this token ends it."""
        if self.reason is not None:
            raise RuntimeError("a choice that is over takes no more tokens")
        self.tokens += 1
        self.reasoning_tokens += self._reader.reasoning
        stop = None
        named = () if logprobs is None else (self._named(token, logprobs),)
        if self.constraint is not None:
            self.constraint.accept(token)
        if token in self._end_token_ids:
            text, self.reason = "", FinishReason.STOP
        else:
            text, stop = self._watched(self._detokenizer.push(token))
            if stop is not None or (self.constraint is not None and self.constraint.finished):
                self.reason = FinishReason.STOP
            elif self.tokens >= self._max_tokens:
                self.reason = FinishReason.LENGTH
        if self.reason is not None and stop is None:
            tail, stop = self._watched(self._detokenizer.flush())
            text += tail
            if stop is None:
                text += self._stops.flush()
            else:
                self.reason = FinishReason.STOP
        events: list[Event] = [*self._reader.push(text, (token,), named)]
        if self._reader.complete:
            self.reason = FinishReason.STOP
        if self.reason is None:
            return events
        events += self._reader.flush()
        if self.reason is FinishReason.STOP and self._reader.called:
            self.reason = FinishReason.TOOL_CALLS
        return [*events, ChoiceFinished(self.choice, self.reason, stop)]

    def _watched(self, text: str) -> tuple[str, str | None]:
        """Look for stop strings. None begins in what the least number of tokens says."""
        return (text, None) if self.tokens <= self._min_tokens else self._stops.push(text)

    def _named(self, token: int, logprobs: DrawnLogprobs) -> TokenLogprobs:
        """The token and its rivals with what each would add to the text. A token that ends adds nothing."""
        named = TokenLogprobs(
            self._likely(token, logprobs.logprob),
            tuple(self._likely(rival, logprob) for rival, logprob in logprobs.top),
        )
        self._shown = self._shown or bool(named.token.bytes)
        return named

    def _likely(self, token: int, logprob: float) -> LikelyToken:
        added = self._token_text.bytes_of(token, first=not self._shown)
        spelling = self._token_text.spelling(token)
        if token in self._end_token_ids:
            return LikelyToken(token, b"", spelling or added.decode("utf-8", "replace"), logprob)
        return LikelyToken(token, added, spelling, logprob)
