"""The two shapes of an answer, `chat.completion` and `chat.completion.chunk`, made from the engine's events.

Pure formatting: it reads no stream and writes to no socket.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
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
    ToolCallDelta,
    Usage,
)
from kaminari.engine.info import EngineInfo
from kaminari.engine.prompt import PreparedPrompt
from kaminari.openai_api.schemas.chat import ChatRequest

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
    def new(info: EngineInfo) -> Envelope:
        return Envelope(f"chatcmpl-{uuid4().hex}", int(time.time()), info.model, fingerprint(info))

    def around(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
            "choices": choices,
        }


def message_object(choice: Choice) -> Json:
    """What one choice says. Content is null where the model only called tools."""
    content = None if choice.tool_calls and not choice.text else choice.text
    message: Json = {"role": "assistant", "content": content, "refusal": None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in choice.tool_calls
        ]
    return message


def call_delta(event: ToolCallDelta) -> Json:
    """News of one call: its id and name come once, with the first of them."""
    call: Json = {"index": event.index, "function": {"arguments": event.arguments}}
    if event.id is not None:
        call = {"index": event.index, "id": event.id, "type": "function"}
        call["function"] = {"name": event.name, "arguments": event.arguments}
    return {"tool_calls": [call]}


def completion_object(
    envelope: Envelope, request: ChatRequest, prompt: PreparedPrompt, answer: Answer
) -> Json:
    """The body of an answer that is not streamed."""
    choices: list[Json] = []
    for index, choice in enumerate(answer.choices):
        message = message_object(choice)
        formatted = {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": None if choice.reason is None else choice.reason.value,
        }
        if request.return_token_ids:
            formatted["token_ids"] = choice.token_ids
        choices.append(formatted)
    body = envelope.around("chat.completion", choices)
    body["usage"] = usage_object(answer.usage)
    if request.return_token_ids:
        body["prompt_token_ids"] = prompt.token_ids
    if request.timings:
        body["timings"] = timings_object(answer.timings, answer.usage, request.n)
    return body


class ChunkFormatter:
    """Turns the events of one stream into chunks.

    Role chunks come first; a delta is never empty; each choice ends with an empty delta and its reason. The
    last choice's end is held until the request's own, which brings the timings that belong on that chunk.
    """

    def __init__(self, envelope: Envelope, request: ChatRequest, prompt: PreparedPrompt) -> None:
        self._envelope = envelope
        self._request = request
        self._prompt = prompt
        options = request.stream_options
        self._with_usage = options is not None and options.include_usage
        self._running_usage = self._with_usage and options is not None and options.continuous_usage_stats
        self._completion_tokens = 0
        self._unsent_ids: list[list[int]] = [[] for _ in range(request.n)]
        self._open = request.n
        self._last: Json | None = None

    def begin(self) -> Iterator[Json]:
        """A role chunk per choice; the first holds the prompt's token ids where they are asked for."""
        for index in range(self._request.n):
            delta = {"role": "assistant", "content": "", "refusal": None}
            chunk = self._chunk([self._choice(index, delta)])
            if index == 0 and self._request.return_token_ids:
                chunk["prompt_token_ids"] = self._prompt.token_ids
            yield chunk

    def chunks(self, event: Event) -> Iterator[Json]:
        """The chunks that follow from an event; `Failed` has none."""
        if isinstance(event, Delta):
            self._completion_tokens += len(event.token_ids)
            self._unsent_ids[event.choice] += event.token_ids
            if event.text:
                yield self._chunk([self._choice(event.choice, {"content": event.text})])
        elif isinstance(event, ReasoningDelta):
            yield self._chunk([self._choice(event.choice, {"reasoning_content": event.text})])
        elif isinstance(event, ToolCallDelta):
            yield self._chunk([self._choice(event.choice, call_delta(event))])
        elif isinstance(event, ChoiceFinished):
            self._open -= 1
            end = self._chunk([self._choice(event.choice, {}, event.reason)])
            if self._open:
                yield end
            else:
                self._last = end
        elif isinstance(event, Finished):
            yield from self._finish(event)

    def _finish(self, event: Finished) -> Iterator[Json]:
        if self._last is not None:
            if self._request.timings:
                self._last["timings"] = timings_object(event.timings, event.usage, self._request.n)
            yield self._last
        if self._with_usage:
            chunk = self._chunk([])
            chunk["usage"] = usage_object(event.usage)
            yield chunk

    def _choice(self, index: int, delta: Json, reason: FinishReason | None = None) -> Json:
        choice: Json = {
            "index": index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": None if reason is None else reason.value,
        }
        if self._request.return_token_ids and "role" not in delta:
            choice["token_ids"] = self._unsent_ids[index]
            self._unsent_ids[index] = []
        return choice

    def _chunk(self, choices: list[Json]) -> Json:
        chunk = self._envelope.around("chat.completion.chunk", choices)
        if self._running_usage:
            usage = Usage(
                len(self._prompt.token_ids), self._completion_tokens, image_tokens=self._prompt.image_tokens
            )
            chunk["usage"] = usage_object(usage)
        elif self._with_usage:
            chunk["usage"] = None
        return chunk
