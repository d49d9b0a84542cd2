"""Holds one choice to its grammar: which tokens may come next, and whether the answer is complete.

A constraint is state on the host. It is made on a worker thread, used by the engine's thread, and dies with
its choice. Nothing here sees a tensor or a request.
"""

from __future__ import annotations

from llguidance import LLMatcher


class Constraint:
    """The grammar state of one choice."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._stuck = False

    def mask(self) -> bytes:
        """One bit per token that may come next, lowest bit first; no bit at all once the grammar failed."""
        bits = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            bits = bytes(len(bits))
        self._stuck = bits.count(0) == len(bits)
        return bits

    def accept(self, token: int) -> None:
        """Take the next token. One that the mask forbids makes the constraint fail."""
        self._matcher.consume_token(token)

    def rollback(self, tokens: int) -> None:
        """Take back the last tokens that were accepted."""
        self._matcher.rollback(tokens)

    @property
    def failed(self) -> bool:
        """The grammar is past its bounds, took a token that it forbids, or allows none to follow."""
        return self._stuck or bool(self._matcher.is_error())

    @property
    def finished(self) -> bool:
        """The answer is complete and nothing may follow."""
        return bool(self._matcher.is_stopped()) and not self.failed


class Grammar:
    """A compiled grammar, from which each choice gets its own state. Never changes."""

    def __init__(self, start: LLMatcher) -> None:
        self._start = start

    def new(self) -> Constraint:
        return Constraint(self._start.deep_copy())
