"""LangChain's `ChatOpenAI`: chat, streams, pictures, tools, `with_structured_output`, errors, leaving."""

from __future__ import annotations

import asyncio
import functools
import operator
from typing import Any, Literal

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict, Field
from slots import Slots

WEATHER = "What is the weather in Rome?"
CAPITAL = "What is the capital of France?"
JSON_TASK = "Answer in JSON: total and date."


class Receipt(BaseModel):
    """What a receipt says."""

    total: str = Field(pattern=r"^\d{1,3}\.\d{2}$")
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")


class Closed(BaseModel):
    """The demo model would go on inventing fields where a schema leaves room for them."""

    model_config = ConfigDict(extra="forbid")


class Color(Closed):
    """A color of the picture."""

    color: Literal["red", "green", "blue"]


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@pytest.fixture
def chat(url: str, model: str) -> ChatOpenAI:
    return ChatOpenAI(base_url=url, api_key="none", model=model, temperature=0, max_retries=0)


def about(picture: str, question: str) -> list[HumanMessage]:
    parts = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": question}]
    return [HumanMessage(content=parts)]


def test_a_chat(chat: ChatOpenAI, model: str) -> None:
    answer = chat.invoke(CAPITAL)
    assert answer.content == "Paris"
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.response_metadata["model_name"] == model
    used = answer.usage_metadata
    assert used is not None
    assert used["total_tokens"] == used["input_tokens"] + used["output_tokens"] > 0


def test_a_system_message_and_a_follow_up(chat: ChatOpenAI, circle: str) -> None:
    history: list[Any] = [SystemMessage("Be brief."), *about(circle, "What shape and color?")]
    first = chat.invoke(history)
    again = chat.invoke([*history, first, HumanMessage("What color is it?")])
    assert isinstance(again.content, str)
    assert again.content


def test_a_stream_with_usage(chat: ChatOpenAI, receipt_url: str) -> None:
    asked = about(receipt_url, "Read the text.")
    chunks = list(chat.stream(asked, stream_usage=True))
    joined = functools.reduce(operator.add, chunks)
    assert len(chunks) > 10
    assert joined.content == chat.invoke(asked).content
    assert joined.usage_metadata is not None
    assert joined.usage_metadata["output_tokens"] > 10


def test_a_picture_in_each_form(chat: ChatOpenAI, circle: str) -> None:
    assert chat.invoke(about(circle, "What shape and color?")).content == "a red circle"
    block = {"type": "image", "base64": circle.partition(",")[2], "mime_type": "image/png"}
    asked = HumanMessage(content=[block, {"type": "text", "text": "What shape and color?"}])
    assert chat.invoke([asked]).content == "a red circle"


def test_an_asynchronous_batch(chat: ChatOpenAI) -> None:
    answers = asyncio.run(chat.abatch([CAPITAL, "What is 3+4?", CAPITAL]))
    assert [answer.content for answer in answers] == ["Paris", "7", "Paris"]


@pytest.mark.parametrize("choice", ["any", "required", "get_weather"])
def test_a_forced_tool(chat: ChatOpenAI, choice: str) -> None:
    bound = chat.bind_tools([get_weather], tool_choice=choice, strict=True)
    answer = bound.invoke(WEATHER)
    assert isinstance(answer, AIMessage)
    assert answer.tool_calls
    assert answer.response_metadata["finish_reason"] == "tool_calls"
    for call in answer.tool_calls:
        assert call["name"] == "get_weather"
        assert get_weather.invoke(call["args"]).startswith("sunny in")
    results = [ToolMessage("sunny", tool_call_id=call["id"]) for call in answer.tool_calls]
    final = chat.bind_tools([get_weather], tool_choice="none").invoke([WEATHER, answer, *results])
    assert not final.tool_calls


def test_a_tool_in_a_stream(chat: ChatOpenAI) -> None:
    bound = chat.bind_tools([get_weather], tool_choice="get_weather", parallel_tool_calls=False, strict=True)
    joined = functools.reduce(operator.add, bound.stream(WEATHER))
    (streamed,) = joined.tool_calls
    (whole,) = bound.invoke(WEATHER).tool_calls
    assert (streamed["name"], streamed["args"]) == (whole["name"], whole["args"])


def test_tools_that_the_model_need_not_call(chat: ChatOpenAI) -> None:
    """The demo was never taught to call, so what it does is open; but it was shown the tools."""
    answer = chat.bind_tools([get_weather]).invoke(CAPITAL)
    plain = chat.invoke(CAPITAL)
    assert isinstance(answer, AIMessage)
    assert answer.usage_metadata is not None
    assert plain.usage_metadata is not None
    assert answer.usage_metadata["input_tokens"] > plain.usage_metadata["input_tokens"] + 100
    assert answer.response_metadata["finish_reason"] in ("stop", "tool_calls")


@pytest.mark.parametrize("strict", [None, True, False])
def test_structured_output_by_schema(chat: ChatOpenAI, receipt_url: str, strict: bool | None) -> None:
    structured = chat.with_structured_output(Receipt, method="json_schema", strict=strict)
    assert structured.invoke(about(receipt_url, JSON_TASK)) == Receipt(total="10.85", date="2026-03-14")


@pytest.mark.parametrize("strict", [None, True, False])
def test_structured_output_by_function(chat: ChatOpenAI, circle: str, strict: bool | None) -> None:
    structured = chat.with_structured_output(Color, method="function_calling", strict=strict)
    answer = structured.invoke(about(circle, "What color is it?"))
    assert isinstance(answer, Color)


def test_structured_output_by_json_mode(chat: ChatOpenAI, receipt_url: str) -> None:
    structured = chat.with_structured_output(Receipt, method="json_mode")
    assert structured.invoke(about(receipt_url, JSON_TASK)) == Receipt(total="10.85", date="2026-03-14")


def test_structured_output_in_a_stream(chat: ChatOpenAI, receipt_url: str) -> None:
    structured = chat.with_structured_output(Receipt, method="json_schema")
    assert list(structured.stream(about(receipt_url, JSON_TASK)))[-1] == Receipt(
        total="10.85", date="2026-03-14"
    )


def test_leaving_a_stream_frees_its_slot(chat: ChatOpenAI, slots: Slots) -> None:
    with slots.freed():
        stream = chat.stream("hello", extra_body={"ignore_eos": True})
        assert next(stream) is not None
        assert next(stream) is not None
        stream.close()


def test_errors_are_the_openai_sdks(chat: ChatOpenAI, url: str) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        chat.invoke("hi", temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        chat.invoke("hi " * 3000)
    assert long.value.code == "context_length_exceeded"
    unknown = ChatOpenAI(base_url=url, api_key="none", model="gpt-4o", max_retries=0)
    with pytest.raises(openai.NotFoundError):
        unknown.invoke("hi")
    with pytest.raises(openai.NotFoundError):
        list(unknown.stream("hi"))
