"""instructor: pydantic models by tools and by schema, asking again, streams of partial models, errors."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import instructor
import openai
import pytest
from instructor.core.exceptions import IncompleteOutputException, InstructorRetryException
from pydantic import BaseModel, ConfigDict, Field, field_validator
from slots import Slots

READ = {"total": "10.85", "date": "2026-03-14"}


class Receipt(BaseModel):
    model_config = ConfigDict(extra="forbid")

    total: str = Field(pattern=r"^\d{1,3}\.\d{2}$")
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")


class Color(BaseModel):
    model_config = ConfigDict(extra="forbid")

    color: Literal["red", "green", "blue"]


def says(text: str, picture: str) -> list[Any]:
    parts = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


@pytest.fixture
def sdk(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0)


@pytest.fixture(params=[instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA], ids=["tools", "schema"])
def client(request: pytest.FixtureRequest, sdk: openai.OpenAI) -> instructor.Instructor:
    """The modes in which the server holds the answer to the form; in the others the demo model is lost."""
    return instructor.from_openai(sdk, mode=request.param)


def test_a_model_of_a_picture(client: instructor.Instructor, model: str, circle: str) -> None:
    color, raw = client.create_with_completion(
        model=model,
        response_model=Color,
        messages=says("What color is it?", circle),
        temperature=0,
        max_retries=0,
    )
    assert isinstance(color, Color)
    assert raw.usage.completion_tokens > 0


def test_what_a_receipt_says(sdk: openai.OpenAI, model: str, receipt_url: str) -> None:
    receipt = instructor.from_openai(sdk, mode=instructor.Mode.JSON_SCHEMA).create(
        model=model,
        response_model=Receipt,
        messages=says("Answer in JSON: total and date.", receipt_url),
        temperature=0,
        max_retries=0,
    )
    assert receipt.model_dump() == READ


def test_a_model_that_is_refused_is_asked_again(
    client: instructor.Instructor, model: str, circle: str
) -> None:
    """The second request has the first answer and the complaint in its history, in the mode's own form."""
    seen: list[str] = []

    class Picky(Color):
        @field_validator("color")
        @classmethod
        def _complains_once(cls, color: str) -> str:
            seen.append(color)
            if len(seen) == 1:
                raise ValueError("look again")
            return color

    answer = client.create(
        model=model,
        response_model=Picky,
        messages=says("What color is it?", circle),
        temperature=0,
        max_retries=2,
    )
    assert isinstance(answer, Picky)
    assert len(seen) == 2


def test_partial_models_in_a_stream(client: instructor.Instructor, model: str, circle: str) -> None:
    partial = list(
        client.create_partial(
            model=model, response_model=Color, messages=says("What color is it?", circle), temperature=0
        )
    )
    assert partial[-1].color in ("red", "green", "blue")


def test_the_asynchronous_client(url: str, model: str, receipt_url: str) -> None:
    async def ask() -> Receipt:
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as sdk:
            return await instructor.from_openai(sdk, mode=instructor.Mode.JSON_SCHEMA).create(
                model=model,
                response_model=Receipt,
                messages=says("Answer in JSON: total and date.", receipt_url),
                temperature=0,
            )

    assert asyncio.run(ask()).model_dump() == READ


def test_giving_up_frees_the_slot(url: str, model: str, slots: Slots) -> None:
    """A synchronous stream is read to its end before instructor shows anything of it: none can be left."""

    class Story(BaseModel):
        words: list[Literal["a", "b"]] = Field(min_length=300)

    async def give_up() -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as sdk:
            asked = instructor.from_openai(sdk).create(
                model=model,
                response_model=Story,
                messages=[{"role": "user", "content": "hello"}],
                temperature=0,
            )
            await asyncio.wait_for(asked, 1.0)

    with slots.freed(), pytest.raises(TimeoutError):
        asyncio.run(give_up())


def test_an_answer_that_was_cut(client: instructor.Instructor, model: str, circle: str) -> None:
    with pytest.raises(IncompleteOutputException):
        client.create(
            model=model,
            response_model=Color,
            messages=says("What color is it?", circle),
            temperature=0,
            max_tokens=2,
            max_retries=0,
        )


def test_errors_carry_the_sdks_own(client: instructor.Instructor, circle: str) -> None:
    with pytest.raises(InstructorRetryException) as failed:
        client.create(
            model="gpt-4o", response_model=Color, messages=says("What color is it?", circle), max_retries=0
        )
    assert isinstance(failed.value.__cause__, openai.NotFoundError)
