"""The body of `POST /v1/chat/completions`.

Three kinds of fields: honoured, accepted without effect, and known but not supported yet (these pass only
with a value that changes nothing). Ranges of sampling parameters are the engine's to check.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from kaminari.engine.params import MAX_TOP_LOGPROBS
from kaminari.engine.tool_checks import MAX_TOOLS
from kaminari.openai_api.schemas.answer_format import AnyResponseFormat, StructuredOutputs
from kaminari.openai_api.schemas.base import Ignored, not_supported, problem
from kaminari.openai_api.schemas.generation import GenerationFields
from kaminari.openai_api.schemas.messages import Messages
from kaminari.openai_api.schemas.tools import AnyChoice, FunctionTool


class ChatRequest(GenerationFields):
    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] = 0

    response_format: AnyResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnyChoice | None = None
    parallel_tool_calls: bool = True

    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

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
    modalities: Annotated[Any, not_supported(["text"])] = None
    audio: Annotated[Any, not_supported()] = None
    prediction: Annotated[Any, not_supported()] = None
    moderation: Annotated[Any, not_supported()] = None
    web_search_options: Annotated[Any, not_supported()] = None

    @property
    def most_tokens(self) -> int | None:
        longest = self.max_completion_tokens
        return self.max_tokens if longest is None else longest

    @property
    def named_tokens(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @model_validator(mode="after")
    def _fits_together(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise problem("is allowed only where `logprobs` is true", at="top_logprobs")
        if self.structured_outputs is not None and self.response_format is not None:
            raise problem("excludes `response_format`: send one of them", at="structured_outputs")
        if self.continue_final_message and self.add_generation_prompt:
            raise problem(
                "cannot be true together with `add_generation_prompt`: the final message is either "
                "continued or answered",
                at="continue_final_message",
            )
        return self
