"""The parts of a message's content: text and pictures, and a reason for every part that is refused."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, TypeAdapter

from kaminari.openai_api.schemas.base import Ignored, Schema, problem

MAX_PARTS = 4096

_NAME = re.compile(r"[a-z_]{1,32}")
_PICTURE_SHAPE = (
    'send pictures as {"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}} '
    'and text as {"type": "text", "text": "..."}'
)
_UNSUPPORTED_PARTS = {"video_url", "video", "input_video", "input_audio", "audio_url", "audio", "file"}


class TextContent(Schema):
    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: Ignored = None


class ImageUrl(Schema):
    """`original` is OpenAI's name for the largest budget."""

    url: str
    detail: Literal["auto", "low", "high", "original"] = "auto"


def _image_url(value: Any) -> ImageUrl | str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return ImageUrl.model_validate(value)
    raise problem('must be an object {"url": "data:image/png;base64,..."} or a string')


class ImageContent(Schema):
    type: Literal["image_url"]
    image_url: Annotated[ImageUrl | str, PlainValidator(_image_url)]
    prompt_cache_breakpoint: Ignored = None


class RefusalContent(Schema):
    type: Literal["refusal"]
    refusal: str


Part = TextContent | ImageContent | RefusalContent
Content = str | list[Part]


def _part_type(value: Any) -> str:
    if not isinstance(value, dict):
        raise problem("must be an object with a `type`, such as " + '{"type": "text", "text": "..."}')
    name = value.get("type")
    if name is None:
        raise problem(f"is required; {_PICTURE_SHAPE}", at="type")
    if not isinstance(name, str):
        raise problem("must be a string", at="type")
    if name in _UNSUPPORTED_PARTS:
        raise problem(
            f"is `{name}`, which this version of kaminari does not support yet; "
            "supported part types are `text` and `image_url`",
            code="unsupported_value",
            at="type",
        )
    if name not in ("text", "image_url", "refusal"):
        called = f"`{name}`, which is not" if _NAME.fullmatch(name) else "not"
        raise problem(f"is {called} a known part type; {_PICTURE_SHAPE}", at="type")
    return name


def _input_part(value: Any) -> Part:
    """A part of a system, user or tool message."""
    match _part_type(value):
        case "image_url":
            return ImageContent.model_validate(value)
        case "refusal":
            raise problem("is `refusal`, which only assistant messages may hold", at="type")
        case _:
            return TextContent.model_validate(value)


def _assistant_part(value: Any) -> Part:
    match _part_type(value):
        case "image_url":
            raise problem(
                "is `image_url`, but messages of role assistant cannot hold pictures; "
                "put them into system, user or tool messages",
                code="unsupported_value",
                at="type",
            )
        case "refusal":
            return RefusalContent.model_validate(value)
        case _:
            return TextContent.model_validate(value)


_Parts = Field(min_length=1, max_length=MAX_PARTS)
_INPUT_PARTS: TypeAdapter[list[Part]] = TypeAdapter(
    Annotated[list[Annotated[Part, PlainValidator(_input_part)]], _Parts]
)
_ASSISTANT_PARTS: TypeAdapter[list[Part]] = TypeAdapter(
    Annotated[list[Annotated[Part, PlainValidator(_assistant_part)]], _Parts]
)


def _content(value: Any, parts: TypeAdapter[list[Part]]) -> Content:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return parts.validate_python(value, strict=True)
    raise problem("must be a string or an array of content parts")


InputContent = Annotated[Content, PlainValidator(lambda value: _content(value, _INPUT_PARTS))]
AssistantContent = Annotated[Content, PlainValidator(lambda value: _content(value, _ASSISTANT_PARTS))]
