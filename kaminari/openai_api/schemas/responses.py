"""What this server answers, as pydantic models for the OpenAPI document. Nothing is built from them: answers
are plain dicts, which a test holds against these models.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """An object of a response. More fields may come with later versions."""

    model_config = ConfigDict(extra="allow")


class ErrorDetail(Answer):
    """What went wrong: `type` and `code` for programs, `param` the path of the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Answer):
    """The body of every response that is not a success, and of an error event within a stream."""

    error: ErrorDetail


class PromptDetails(Answer):
    cached_tokens: int
    image_tokens: int


class CompletionDetails(Answer):
    reasoning_tokens: int


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Timings(Answer):
    """Seconds; sent where the request says `timings`."""

    queue: float
    preprocess: float
    vision: float
    prefill: float
    first_token: float
    decode: float
    tokens_per_second: float | None


class FunctionCall(Answer):
    """`arguments` is JSON text as the model wrote it."""

    name: str
    arguments: str


class ToolCall(Answer):
    id: str
    type: Literal["function"]
    function: FunctionCall


class AnswerMessage(Answer):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class NamedToken(Answer):
    """`bytes` are the raw bytes that the token adds to the content; none for a control token."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(NamedToken):
    top_logprobs: list[NamedToken]


class ChatLogprobs(Answer):
    content: list[TokenLogprobs]
    refusal: None


class ChatChoice(Answer):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"] | None


class Envelope(Answer):
    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatCompletion(Envelope):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings | None = None


class ChunkChoice(Answer):
    index: int
    delta: dict[str, Any]
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"] | None


class ChatCompletionChunk(Envelope):
    """The data of one event of a stream; the last event is `[DONE]`."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]
    usage: Usage | None = None
    timings: Timings | None = None


class TextLogprobs(Answer):
    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]


class TextChoice(Answer):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class TextCompletion(Envelope):
    """An answer of `/v1/completions`, and the data of an event of its stream."""

    object: Literal["text_completion"]
    choices: list[TextChoice]
    usage: Usage | None = None
    timings: Timings | None = None


class Tokenized(Answer):
    """`count` has the placeholders of pictures in it; `max_model_len` is the context."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Answer):
    prompt: str


class Model(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(Answer):
    object: Literal["list"]
    data: list[Model]


class HealthBody(Answer):
    status: Literal["ok", "loading", "dead", "stalled"]


class VersionBody(Answer):
    """The model's part is null while it is loading."""

    version: str
    model: str | None
    device: str | None
    dtype: str | None
    quantization: str | None
