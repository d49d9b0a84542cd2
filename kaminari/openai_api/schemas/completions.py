"""The body of `POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainValidator, model_validator

from kaminari.engine.params import MAX_TOP_LOGPROBS
from kaminari.openai_api.schemas.base import Ignored, not_supported, problem
from kaminari.openai_api.schemas.generation import GenerationFields

DEFAULT_MAX_TOKENS = 16

Prompt = str | list[int]


def is_ids(value: Any) -> bool:
    """Whether a value is an array of integers (of which none is true or false)."""
    return isinstance(value, list) and all(type(token) is int for token in value)


def _prompts(value: Any) -> list[Prompt]:
    """One prompt or several, always as several."""
    if isinstance(value, str) or (value and is_ids(value)):
        return [value]
    if isinstance(value, list) and value and all(isinstance(prompt, str) for prompt in value):
        return value
    if isinstance(value, list) and value and all(is_ids(prompt) for prompt in value):
        return value
    raise problem("must be a string, an array of token ids, or a non-empty array of either")


class CompletionRequest(GenerationFields):
    """`max_tokens` is 16 where it is left out, as in OpenAI's API."""

    prompt: Annotated[
        list[Prompt],
        PlainValidator(_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
    ]
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    suffix: Annotated[Any, not_supported("")] = None
    best_of: Annotated[Any, not_supported(1)] = None
    response_format: Annotated[Any, not_supported({"type": "text"})] = None
    structured_outputs: Annotated[Any, not_supported()] = None

    store: Ignored = None
    metadata: Ignored = None

    @property
    def most_tokens(self) -> int:
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def named_tokens(self) -> int | None:
        return self.logprobs

    @model_validator(mode="after")
    def _no_logprobs_of_the_prompt(self) -> CompletionRequest:
        if self.echo and self.logprobs is not None:
            raise problem(
                "is not supported yet together with `echo`: the prompt has no log-probabilities here",
                code="unsupported_parameter",
                at="logprobs",
            )
        return self
