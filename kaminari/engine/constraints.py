"""Holds one choice to its grammar: which tokens may come next, and whether the answer is complete.

A constraint is state on the host. It is made on a worker thread, used by the engine's thread, and dies with
its choice. Nothing here sees a tensor or a request. The library bounds the work of one step. A grammar that
is slow at every step fails once it took too much processor time, since all other requests wait meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from llguidance import LLMatcher

SECONDS_AT_ONCE = 1.0
SECONDS_PER_TOKEN = 0.01
"""What a choice may take of the engine thread's own time: at once, and more for each of its tokens."""

TOO_COSTLY = "the schema or grammar of this request is too costly to follow; make it simpler"
NO_TOKEN = "the schema or grammar of this request allows no token to follow"
# How the library speaks of its bounds on items, states and fuel; its reasons to stop do not tell them apart.
_PAST_BOUNDS = ("max is", "limit", "too many", "Too many", "fuel", "too complex")
ResultT = TypeVar("ResultT")


class Constraint:
    """The grammar state of one choice."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._stuck = False
        self._tokens = 0
        self._seconds = 0.0

    def mask(self) -> bytes:
        """One bit per token that may come next, lowest bit first; no bit at all once the grammar failed."""
        bits = self._timed(self._matcher.compute_bitmask)
        if self._matcher.is_error() or self._costly:
            bits = bytes(len(bits))
        self._stuck = bits.count(0) == len(bits)
        return bits

    def accept(self, token: int) -> None:
        """Take the next token. One that the mask forbids makes the constraint fail."""
        self._timed(lambda: self._matcher.consume_token(token))
        self._tokens += 1

    def rollback(self, tokens: int) -> None:
        """Take back the last tokens that were accepted."""
        self._matcher.rollback(tokens)

    @property
    def failed(self) -> bool:
        """The grammar is past its bounds, took a token that it forbids, or allows none to follow."""
        return self._stuck or bool(self._matcher.is_error())

    @property
    def complaint(self) -> str:
        """Why it failed, in words for the client."""
        error = str(self._matcher.get_error())
        past_bounds = any(words in error for words in _PAST_BOUNDS)
        return TOO_COSTLY if past_bounds or self._costly else NO_TOKEN

    @property
    def finished(self) -> bool:
        """The answer is complete and nothing may follow."""
        return bool(self._matcher.is_stopped()) and not self.failed

    @property
    def _costly(self) -> bool:
        return self._seconds > SECONDS_AT_ONCE + SECONDS_PER_TOKEN * self._tokens

    def _timed(self, work: Callable[[], ResultT]) -> ResultT:
        began = time.thread_time()
        result = work()
        self._seconds += time.thread_time() - began
        return result


class Grammar:
    """A compiled grammar, from which each choice gets its own state. Never changes.

    field:  where it stands in the request, for error messages
    """

    def __init__(self, start: LLMatcher, field: str) -> None:
        self.field = field
        self._start = start

    def new(self) -> Constraint:
        return Constraint(self._start.deep_copy())
