"""The fields that every endpoint which makes text takes: how it is drawn, when it ends, and how it is sent.

Ranges of sampling parameters are the engine's to check.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Self

from pydantic import Field, PlainValidator, model_validator

from kaminari.openai_api.schemas.base import Ignored, Schema, problem


def _stop(value: Any) -> list[str]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(text, str) for text in strings):
        raise problem("must be a string or an array of strings")
    return strings


def _logit_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, dict) or not all(_is_bias(name, bias) for name, bias in value.items()):
        raise problem('must be an object of token ids and numbers, such as {"50256": -100}')
    return {int(name): float(bias) for name, bias in value.items()}


def _is_bias(name: str, bias: Any) -> bool:
    """Whether a name spells a token id, in the one way that there is, and the bias is a number."""
    spells_id = name.isascii() and name.isdecimal() and len(name) < 16 and str(int(name)) == name
    return spells_id and isinstance(bias, int | float) and not isinstance(bias, bool) and math.isfinite(bias)


class StreamOptions(Schema):
    """`include_obfuscation` asks for padding against eavesdroppers: accepted, none is sent."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Ignored = None


class GenerationFields(Schema):
    model: str | None = None

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[
        dict[int, float] | None, PlainValidator(_logit_bias, json_schema_input_type=dict[str, float])
    ] = None
    n: int = 1
    stop: Annotated[list[str] | None, PlainValidator(_stop, json_schema_input_type=str | list[str])] = None
    stop_token_ids: list[int] | None = None
    min_tokens: int = 0
    ignore_eos: bool = False

    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    timings: bool = False

    user: Ignored = None

    @property
    def most_tokens(self) -> int | None:
        """How many tokens a choice may have; None is what is left of the context."""
        return self.max_tokens

    @property
    def named_tokens(self) -> int | None:
        """How many likely tokens to name at each place with their log-probabilities; None asks for none."""
        return None

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise problem("is allowed only where `stream` is true", at="stream_options")
        return self
