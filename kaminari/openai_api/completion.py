"""An answer in the API's objects, whole or in chunks, made from the engine's events.

What the endpoints share is here; how one of them words a choice is its `Wording`. Pure formatting: it reads
no stream and writes to no socket.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from uuid import uuid4

from kaminari import __version__
from kaminari.engine.answer import Answer, Choice
from kaminari.engine.events import (
    ChoiceFinished,
    Delta,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Timings,
    TokenLogprobs,
    ToolCallDelta,
    Usage,
)
from kaminari.engine.info import EngineInfo
from kaminari.engine.parsing import Part
from kaminari.engine.prompt import PreparedPrompt
from kaminari.openai_api.schemas.generation import GenerationFields

Json = dict[str, Any]


def fingerprint(info: EngineInfo) -> str:
    """A name for what makes the tokens: the same while version, model, precision and device stay."""
    parts = (
        __version__,
        info.model,
        info.family,
        info.dtype,
        info.vision_dtype,
        info.quantization,
        info.device,
        info.kernels,
    )
    return "fp_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def usage_object(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "image_tokens": usage.image_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def timings_object(timings: Timings, usage: Usage, choices: int) -> Json:
    """Seconds. `tokens_per_second` counts all but each choice's first token; None where that is nothing."""
    later = usage.completion_tokens - choices
    return {
        "queue": timings.queue,
        "preprocess": timings.preprocess,
        "vision": timings.vision,
        "prefill": timings.prefill,
        "first_token": timings.first_token,
        "decode": timings.decode,
        "tokens_per_second": later / timings.decode if later > 0 and timings.decode > 0 else None,
    }


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all objects of one answer share. `created` is in seconds since 1970."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    @staticmethod
    def new(info: EngineInfo, prefix: str) -> Envelope:
        """`prefix` says in the id what kind of answer it is."""
        return Envelope(f"{prefix}-{uuid4().hex}", int(time.time()), info.model, fingerprint(info))

    def around(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
            "choices": choices,
        }


class Wording(Protocol):
    """How an endpoint words the choices of one answer. One object serves one answer: it may count along.

    kind, chunk_kind:  the `object` of an answer and of a chunk
    id_prefix:         how its ids begin
    """

    kind: str
    chunk_kind: str
    id_prefix: str

    def about_prompt(self) -> Json:
        """Fields of a whole answer, and of the first chunk, that tell of the prompt."""
        ...

    def whole(self, index: int, choice: Choice) -> Json:
        """A choice that is complete."""
        ...

    def opening(self, index: int) -> Json | None:
        """What a choice says before its first token, if anything."""
        ...

    def piece(self, part: Part, logprobs: Sequence[TokenLogprobs]) -> Json:
        """The next piece of a choice."""
        ...

    def end(self, index: int, reason: FinishReason, logprobs: Sequence[TokenLogprobs]) -> Json:
        """The end of a choice, which says nothing more."""
        ...


def whole_answer(envelope: Envelope, request: GenerationFields, wording: Wording, answer: Answer) -> Json:
    """The body of an answer that is not streamed."""
    choices: list[Json] = []
    for index, choice in enumerate(answer.choices):
        formatted = wording.whole(index, choice)
        if request.return_token_ids:
            formatted["token_ids"] = choice.token_ids
        choices.append(formatted)
    body = envelope.around(wording.kind, choices)
    body["usage"] = usage_object(answer.usage)
    body |= wording.about_prompt()
    if request.timings:
        body["timings"] = timings_object(answer.timings, answer.usage, len(choices))
    return body


@dataclass(slots=True)
class _Unsent:
    """What a choice has made and no chunk has carried yet."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class ChunkFormatter:
    """Turns the events of one stream into chunks.

    Openings come first; a piece is never empty; each choice ends with an empty piece and its reason. The last
    choice's end is held until the request's own, which brings the timings that belong on that chunk.
    """

    def __init__(
        self,
        envelope: Envelope,
        request: GenerationFields,
        wording: Wording,
        prompts: Sequence[PreparedPrompt],
    ) -> None:
        self._envelope = envelope
        self._request = request
        self._wording = wording
        self._choices = request.n * len(prompts)
        self._made = 0
        self._prompts = Usage(
            prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
            completion_tokens=0,
            image_tokens=sum(prompt.image_tokens for prompt in prompts),
        )
        options = request.stream_options
        self._with_usage = options is not None and options.include_usage
        self._running_usage = self._with_usage and options is not None and options.continuous_usage_stats
        self._unsent = [_Unsent() for _ in range(self._choices)]
        self._open = self._choices
        self._last: Json | None = None

    def begin(self) -> Iterator[Json]:
        """The opening of every choice; the first tells of the prompt."""
        openings = [self._wording.opening(index) for index in range(self._choices)]
        about_prompt = self._wording.about_prompt()
        for opening in openings:
            if opening is not None:
                yield self._chunk([opening]) | about_prompt
                about_prompt = {}

    def chunks(self, event: Event) -> Iterator[Json]:
        """The chunks that follow from an event; `Failed` has none."""
        if isinstance(event, Delta):
            unsent = self._unsent[event.choice]
            unsent.token_ids += event.token_ids
            unsent.logprobs += event.logprobs
            self._made += len(event.token_ids)
            if event.text:
                yield from self._piece(event)
        elif isinstance(event, ReasoningDelta | ToolCallDelta):
            yield from self._piece(event)
        elif isinstance(event, ChoiceFinished):
            self._open -= 1
            end = self._wording.end(event.choice, event.reason, self._unsent[event.choice].logprobs)
            chunk = self._chunk([self._sent(event.choice, end)])
            if self._open:
                yield chunk
            else:
                self._last = chunk
        elif isinstance(event, Finished):
            yield from self._finish(event)

    def _piece(self, part: Part) -> Iterator[Json]:
        piece = self._wording.piece(part, self._unsent[part.choice].logprobs)
        yield self._chunk([self._sent(part.choice, piece)])

    def _sent(self, index: int, choice: Json) -> Json:
        """A choice's part of a chunk that carries all that was unsent."""
        if self._request.return_token_ids:
            choice["token_ids"] = self._unsent[index].token_ids
        self._unsent[index] = _Unsent()
        return choice

    def _finish(self, event: Finished) -> Iterator[Json]:
        if self._last is not None:
            if self._request.timings:
                self._last["timings"] = timings_object(event.timings, event.usage, self._choices)
            yield self._last
        if self._with_usage:
            chunk = self._chunk([])
            chunk["usage"] = usage_object(event.usage)
            yield chunk

    def _chunk(self, choices: list[Json]) -> Json:
        chunk = self._envelope.around(self._wording.chunk_kind, choices)
        if self._running_usage:
            chunk["usage"] = usage_object(replace(self._prompts, completion_tokens=self._made))
        elif self._with_usage:
            chunk["usage"] = None
        return chunk
