"""What the engine says of a request while it runs: neutral words that any API can format.

A stream of n choices yields deltas (of text, reasoning and tool calls) in any order of choices, one
`ChoiceFinished` per choice, and then `Finished`. A fault yields one `Failed` instead of all that is still
missing, and nothing after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    image_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds, measured on the engine's clock; `first_token` counts from submission."""

    preprocess: float
    queue: float
    vision: float
    prefill: float
    first_token: float
    decode: float


@dataclass(frozen=True, slots=True)
class LikelyToken:
    """A token and how likely it was.

    bytes:     what it adds to the text; empty for a token that is not shown
    spelling:  the name of a token that is not shown, such as `<|im_end|>`; None for any other
    logprob:   natural logarithm of its probability in the model's own distribution; may be minus infinity
    """

    token_id: int
    bytes: bytes
    spelling: str | None
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token that was made, and the likeliest tokens at its place, the likeliest first."""

    token: LikelyToken
    top: tuple[LikelyToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """New text of one choice (may be empty while bytes or a possible stop string are held back).

    token_ids:  tokens made since the last delta of this choice, end token included
    logprobs:   one for each of them where the request asks for it, otherwise none
    """

    choice: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """New text of what one choice thinks before it answers."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """News of a call that one choice makes: first its id and its name, then pieces of its arguments.

    index:      0 for the choice's first call
    arguments:  JSON text; the pieces join to the whole
    """

    choice: int
    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """One choice is done. `stop` is the stop string that ended it, if one did."""

    choice: int
    reason: FinishReason
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The request is done and its slots are free."""

    usage: Usage
    timings: Timings


@dataclass(frozen=True, slots=True)
class Failed:
    """A fault inside the engine ended the request. The message names no internals.

    field:  of the request, where that is at fault and not the engine
    """

    message: str
    field: str | None = None


Event = Delta | ReasoningDelta | ToolCallDelta | ChoiceFinished | Finished | Failed
