"""The body of `POST /v1/chat/completions`.

Three kinds of fields: honoured, accepted without effect, and known but not supported yet (these pass only
with a value that changes nothing). Ranges of sampling parameters are the engine's to check.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainValidator, model_validator

from kaminari.openai_api.schemas.answer_format import AnyResponseFormat, StructuredOutputs
from kaminari.openai_api.schemas.base import Ignored, Schema, not_supported, problem
from kaminari.openai_api.schemas.messages import AnyMessage
from kaminari.openai_api.schemas.tools import AnyChoice, FunctionTool

MAX_MESSAGES = 8192
MAX_TOOLS = 128


def _stop(value: Any) -> list[str]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(text, str) for text in strings):
        raise problem("must be a string or an array of strings")
    return strings


class StreamOptions(Schema):
    """`include_obfuscation` asks for padding against eavesdroppers: accepted, none is sent."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Ignored = None


class ChatRequest(Schema):
    model: str | None = None
    messages: Annotated[list[AnyMessage], Field(min_length=1, max_length=MAX_MESSAGES)]

    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int = 1
    stop: Annotated[list[str] | None, PlainValidator(_stop, json_schema_input_type=str | list[str])] = None
    ignore_eos: bool = False

    response_format: AnyResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnyChoice | None = None
    parallel_tool_calls: bool = True

    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    timings: bool = False

    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    user: Ignored = None
    store: Ignored = None
    metadata: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    reasoning_effort: Ignored = None
    verbosity: Ignored = None

    functions: Annotated[Any, not_supported([])] = None
    function_call: Annotated[Any, not_supported("none", "auto")] = None
    logprobs: Annotated[Any, not_supported(False)] = None
    top_logprobs: Annotated[Any, not_supported(0)] = None
    logit_bias: Annotated[Any, not_supported({})] = None
    presence_penalty: Annotated[Any, not_supported(0)] = None
    frequency_penalty: Annotated[Any, not_supported(0)] = None
    repetition_penalty: Annotated[Any, not_supported(1)] = None
    stop_token_ids: Annotated[Any, not_supported([])] = None
    min_tokens: Annotated[Any, not_supported(0)] = None
    modalities: Annotated[Any, not_supported(["text"])] = None
    audio: Annotated[Any, not_supported()] = None
    prediction: Annotated[Any, not_supported()] = None
    moderation: Annotated[Any, not_supported()] = None
    web_search_options: Annotated[Any, not_supported()] = None

    @model_validator(mode="after")
    def _fits_together(self) -> ChatRequest:
        if self.stream_options is not None and not self.stream:
            raise problem("is allowed only where `stream` is true", at="stream_options")
        if self.structured_outputs is not None and self.response_format is not None:
            raise problem("excludes `response_format`: send one of them", at="structured_outputs")
        if self.continue_final_message and self.add_generation_prompt:
            raise problem(
                "cannot be true together with `add_generation_prompt`: the final message is either "
                "continued or answered",
                at="continue_final_message",
            )
        return self
