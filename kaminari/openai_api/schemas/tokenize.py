"""The bodies of `POST /tokenize` and `POST /detokenize`, which are vLLM's."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainValidator, model_validator

from kaminari.engine.tool_checks import MAX_TOOLS
from kaminari.openai_api.schemas.base import Ignored, Schema, problem
from kaminari.openai_api.schemas.completions import is_ids
from kaminari.openai_api.schemas.messages import Messages
from kaminari.openai_api.schemas.tools import AnyChoice, FunctionTool

MAX_IDS = 262_144


def _ids(value: Any) -> list[int]:
    if not is_ids(value):
        raise problem("must be an array of token ids")
    if len(value) > MAX_IDS:
        raise problem(f"must hold at most {MAX_IDS} items")
    tokens: list[int] = value
    return tokens


class TokenizeRequest(Schema):
    """Either `messages`, which go through the chat template, or a `prompt`, which does not."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnyChoice | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    return_token_strs: bool = False
    add_special_tokens: Ignored = None

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise problem("or `messages` is required, and not both", at="prompt")
        return self


class DetokenizeRequest(Schema):
    model: str | None = None
    tokens: Annotated[list[int], PlainValidator(_ids, json_schema_input_type=list[int])]
