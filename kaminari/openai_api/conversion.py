"""From a validated request to the engine's own words: a conversation and sampling parameters.

Decodes the base64 of data URLs and reads the files of file: addresses, so it runs in a worker thread. Opens
no connection: pictures that lie elsewhere are fetched before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kaminari.engine.conversation import Conversation, Detail, Message, Part, PicturePart, Role, TextPart
from kaminari.engine.errors import RequestError
from kaminari.engine.info import EngineInfo
from kaminari.engine.params import SamplingParams
from kaminari.openai_api.answer_format import to_answer_format
from kaminari.openai_api.errors import invalid
from kaminari.openai_api.media import Media, NotFetched
from kaminari.openai_api.schemas.chat import ChatRequest
from kaminari.openai_api.schemas.content import Content, ImageContent, RefusalContent
from kaminari.openai_api.schemas.generation import GenerationFields
from kaminari.openai_api.schemas.messages import AnyMessage, AssistantMessage, ToolMessage
from kaminari.openai_api.tools import to_calls, to_tool_choice, to_tools

_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
}
_DETAILS = {"low": Detail.LOW, "auto": Detail.AUTO, "high": Detail.HIGH, "original": Detail.HIGH}
NO_MEDIA = Media()
_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "n",
    "min_tokens",
    "ignore_eos",
)
"""Fields that have the same name and meaning in the engine; left out or null, its default holds."""
_TEMPLATE_FIELDS = ("add_generation_prompt", "continue_final_message")


def to_conversation(request: ChatRequest, media: Media = NO_MEDIA) -> Conversation:
    """Keep the order of text and pictures. Raises `ApiError` and `RequestError`, which name the part, and
    `NotFetched` with the addresses of all pictures that must be fetched first.
    """
    for name in _TEMPLATE_FIELDS:
        if name in request.chat_template_kwargs:
            path = f"chat_template_kwargs.{name}"
            raise invalid(f"`{path}` has a field of its own: send `{name}` instead", param=path)
    missing = [url for url in _addresses(request.messages) if media.lacks(url)]
    if missing:
        raise NotFetched(missing)
    goes_on = request.continue_final_message
    answers = request.add_generation_prompt
    return Conversation(
        messages=tuple(
            _message(message, f"messages[{i}]", media) for i, message in enumerate(request.messages)
        ),
        add_generation_prompt=not goes_on if answers is None else answers,
        continue_final_message=goes_on,
        template_kwargs=request.chat_template_kwargs,
        answer_format=to_answer_format(request),
        tools=to_tools(request),
        tool_choice=to_tool_choice(request),
        parallel_tool_calls=request.parallel_tool_calls,
    )


def to_params(request: GenerationFields, info: EngineInfo) -> SamplingParams:
    """Raise `RequestError` or `ApiError` for what is out of range on this engine."""
    if not 1 <= request.n <= info.choices:
        raise invalid(f"`n` must be between 1 and {info.choices} here", param="n")
    given: dict[str, Any] = {
        name: value for name in _SAMPLING_FIELDS if (value := getattr(request, name)) is not None
    }
    params = SamplingParams(
        max_tokens=request.most_tokens,
        stop=tuple(request.stop or ()),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        logit_bias=tuple((request.logit_bias or {}).items()),
        logprobs=request.named_tokens,
        **given,
    )
    params.check_vocabulary(info.vocab_size)
    return params


def _addresses(messages: Sequence[AnyMessage]) -> Iterator[str]:
    for message in messages:
        for part in message.content if isinstance(message.content, list) else ():
            if isinstance(part, ImageContent):
                yield part.image_url if isinstance(part.image_url, str) else part.image_url.url


def _message(message: AnyMessage, path: str, media: Media) -> Message:
    parts = _parts(message.content, f"{path}.content", media)
    match message:
        case AssistantMessage():
            if message.refusal:
                parts = (*parts, TextPart(message.refusal))
            calls, thought = to_calls(message.tool_calls or []), message.reasoning_content or ""
            return Message(Role.ASSISTANT, parts, calls, reasoning=thought)
        case ToolMessage():
            return Message(Role.TOOL, parts, tool_call_id=message.tool_call_id)
        case _:
            return Message(_ROLES[message.role], parts)


def _parts(content: Content | None, path: str, media: Media) -> tuple[Part, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    parts: list[Part] = []
    for index, part in enumerate(content):
        if isinstance(part, ImageContent):
            parts.append(_picture(part, f"{path}[{index}]", media))
        elif isinstance(part, RefusalContent):
            parts.append(TextPart(part.refusal))
        else:
            parts.append(TextPart(part.text))
    return tuple(parts)


def _picture(part: ImageContent, path: str, media: Media) -> PicturePart:
    if isinstance(part.image_url, str):
        url, detail, url_path = part.image_url, Detail.AUTO, f"{path}.image_url"
    else:
        url, detail, url_path = part.image_url.url, _DETAILS[part.image_url.detail], f"{path}.image_url.url"
    try:
        data = media.bytes_of(url)
    except RequestError as error:
        raise RequestError(
            f"`{url_path}`: {error.message}", field=url_path, code="invalid_image_url"
        ) from None
    return PicturePart(data, detail, field=path)
