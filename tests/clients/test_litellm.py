"""litellm with the `openai/` provider: chat, streams, pictures, tools, schemas, errors, leaving."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import litellm
import pytest
from pydantic import BaseModel, ConfigDict, Field
from slots import Slots


class Receipt(BaseModel):
    model_config = ConfigDict(extra="forbid")

    total: str = Field(pattern=r"^\d{1,3}\.\d{2}$")
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")


@pytest.fixture
def how(url: str, model: str) -> dict[str, Any]:
    """What every call names."""
    return {"model": f"openai/{model}", "api_base": url, "api_key": "none", "num_retries": 0}


def says(text: str, picture: str | None = None) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
    if picture is not None:
        parts.insert(0, {"type": "image_url", "image_url": {"url": picture, "detail": "high"}})
    return [{"role": "user", "content": parts}]


def test_a_chat(how: dict[str, Any]) -> None:
    answer = litellm.completion(
        **how, messages=says("What is the capital of France?"), temperature=0, max_tokens=20, user="me"
    )
    assert answer.choices[0].message.content == "Paris"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0


def test_a_stream_of_a_picture_with_usage(how: dict[str, Any], receipt_url: str) -> None:
    asked = {"messages": says("Read the text.", receipt_url), "temperature": 0}
    chunks = list(litellm.completion(**how, **asked, stream=True, stream_options={"include_usage": True}))
    whole = litellm.completion(**how, **asked)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert whole.choices[0].message.content.startswith("FRESH MART")
    built = litellm.stream_chunk_builder(chunks, messages=asked["messages"])
    assert built.usage.completion_tokens == whole.usage.completion_tokens


def test_the_asynchronous_door(how: dict[str, Any], circle: str) -> None:
    async def ask() -> Any:
        return await litellm.acompletion(**how, messages=says("What shape and color?", circle), temperature=0)

    assert asyncio.run(ask()).choices[0].message.content == "a red circle"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_tool(how: dict[str, Any], weather: dict[str, Any], choice: Any) -> None:
    messages = says("What is the weather in Rome?")
    answer = litellm.completion(
        **how,
        messages=messages,
        temperature=0,
        tools=[weather],
        tool_choice=choice,
        parallel_tool_calls=False,
    )
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    assert answer.choices[0].finish_reason == "tool_calls"
    result = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": "sunny"}
    final = litellm.completion(
        **how, messages=[*messages, answer.choices[0].message, result], tools=[weather], tool_choice="none"
    )
    assert final.choices[0].message.tool_calls is None


def test_a_tool_in_a_stream(how: dict[str, Any], weather: dict[str, Any]) -> None:
    chunks = list(
        litellm.completion(
            **how,
            messages=says("What is the weather in Rome?"),
            temperature=0,
            tools=[weather],
            tool_choice="required",
            parallel_tool_calls=False,
            stream=True,
        )
    )
    (call,) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    assert call.id
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")


def test_a_pydantic_model_as_the_form(how: dict[str, Any], receipt_url: str) -> None:
    messages = says("Answer in JSON: total and date.", receipt_url)
    answer = litellm.completion(**how, messages=messages, temperature=0, response_format=Receipt)
    assert Receipt.model_validate_json(answer.choices[0].message.content) == Receipt(
        total="10.85", date="2026-03-14"
    )


def test_leaving_a_stream_frees_its_slot(how: dict[str, Any], slots: Slots) -> None:
    async def leave() -> None:
        stream = await litellm.acompletion(
            **how, messages=says("hello"), stream=True, extra_body={"ignore_eos": True}
        )
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.aclose()

    with slots.freed():
        asyncio.run(leave())


def test_errors_have_litellms_types(how: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**how, messages=says("hi"), temperature=9)
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**how, messages=says("hi " * 3000))
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**how, "model": "openai/gpt-4o"}, messages=says("hi"))
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**how, "model": "openai/gpt-4o"}, messages=says("hi"), stream=True)
