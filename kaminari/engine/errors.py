"""What can go wrong with a request, in words that an API can pass on."""

from __future__ import annotations


class RequestError(Exception):
    """A request that is refused before it is queued.

    message:  one sentence that says what is wrong and what would be right; never echoes a payload
    field:    path of the offending field, such as `messages[0].content[1]`, or None
    code:     a machine-readable word, or None
    """

    def __init__(self, message: str, *, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.code = code


class ContextLengthExceeded(RequestError):
    """The prompt alone does not fit. `tokens` counts the prompt (a lower bound where `at_least`).

    tools:  whether tools are a part of it
    """

    def __init__(
        self, tokens: int, limit: int, *, at_least: bool = False, field: str = "messages", tools: bool = False
    ) -> None:
        bound = "at least " if at_least else ""
        fewer = "send fewer tools or shorter ones, " if tools else ""
        super().__init__(
            f"this model's maximum context length is {limit} tokens, "
            f"and the prompt has {bound}{tokens} tokens; {fewer}shorten the text or use smaller pictures",
            field=field,
            code="context_length_exceeded",
        )
        self.tokens = tokens
        self.limit = limit


class QueueFull(Exception):
    """The bounded queue has no room; try again later."""


class EngineUnavailable(Exception):
    """The engine is not running (still loading, closed, or its thread is dead)."""


class EngineFault(Exception):
    """The engine ended a request that was running; the message names no internals."""
