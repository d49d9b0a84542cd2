"""`POST /v1/chat/completions`: what a body means, and how an answer is worded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from kaminari.engine.answer import Choice
from kaminari.engine.events import FinishReason, ReasoningDelta, TokenLogprobs, ToolCallDelta
from kaminari.engine.parsing import Part
from kaminari.engine.prompt import PreparedPrompt
from kaminari.openai_api.completion import Json
from kaminari.openai_api.conversion import to_conversation, to_params
from kaminari.openai_api.engine_protocol import Engine
from kaminari.openai_api.generation import PreparedRequest
from kaminari.openai_api.logprobs import chat_logprobs
from kaminari.openai_api.media import Media
from kaminari.openai_api.models import require_name
from kaminari.openai_api.schemas.chat import ChatRequest
from kaminari.openai_api.schemas.parsing import parse


def prepare_chat(body: bytes, engine: Engine, media: Media) -> PreparedRequest:
    """All that is slow: run it by `Preparation`. Raises `ApiError`, `RequestError` and `NotFetched`."""
    request = parse(ChatRequest, body)
    require_name(request.model, engine.info)
    params = to_params(request, engine.info)
    with engine.expecting() if request.stream else nullcontext():
        prompt = engine.prepare(to_conversation(request, media))
    return PreparedRequest(request, (prompt,), params, ChatWording(request, prompt))


class ChatWording:
    """Choices hold a message; chunks hold its deltas, of which the first names the role."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    id_prefix = "chatcmpl"

    def __init__(self, request: ChatRequest, prompt: PreparedPrompt) -> None:
        self._request = request
        self._prompt = prompt

    def about_prompt(self) -> Json:
        return {"prompt_token_ids": self._prompt.token_ids} if self._request.return_token_ids else {}

    def whole(self, index: int, choice: Choice) -> Json:
        return {
            "index": index,
            "message": _message(choice),
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": None if choice.reason is None else choice.reason.value,
        }

    def opening(self, index: int) -> Json:
        return self._delta(index, {"role": "assistant", "content": "", "refusal": None})

    def piece(self, part: Part, logprobs: Sequence[TokenLogprobs]) -> Json:
        match part:
            case ReasoningDelta(text=text):
                delta: Json = {"reasoning_content": text}
            case ToolCallDelta():
                delta = _call_delta(part)
            case _:
                delta = {"content": part.text}
        return self._delta(part.choice, delta, logprobs)

    def end(self, index: int, reason: FinishReason, logprobs: Sequence[TokenLogprobs]) -> Json:
        return self._delta(index, {}, logprobs) | {"finish_reason": reason.value}

    def _delta(self, index: int, delta: Json, logprobs: Sequence[TokenLogprobs] = ()) -> Json:
        return {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(logprobs) if logprobs else None,
            "finish_reason": None,
        }

    def _logprobs(self, logprobs: Sequence[TokenLogprobs]) -> Json | None:
        return chat_logprobs(logprobs) if self._request.logprobs else None


def _message(choice: Choice) -> Json:
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


def _call_delta(event: ToolCallDelta) -> Json:
    """News of one call: its id and name come once, with the first of them."""
    call: Json = {"index": event.index, "function": {"arguments": event.arguments}}
    if event.id is not None:
        call = {"index": event.index, "id": event.id, "type": "function"}
        call["function"] = {"name": event.name, "arguments": event.arguments}
    return {"tool_calls": [call]}
