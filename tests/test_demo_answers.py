"""The main job, end to end: the openai SDK over a real socket asks the demo model about fresh pictures.

One question of each task that the demo was trained on, each with the answer that is right for its picture:
once about pictures as the examples draw them, once about the generator's, drawn from fixed seeds.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from examples.demo_model import fonts, style, tasks
from examples.demo_model.askers import server_asker
from examples.demo_model.style import Style

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from pictures import image_part, receipt, shape, text_line

MODEL = "kaminari-demo"
RECEIPT = receipt(
    "FRESH MART", "2026-03-14", [("Coffee", "3.40"), ("Bread", "2.15"), ("Cheese", "5.30")], "10.85"
)
RECEIPT_TEXT = "FRESH MART\n2026-03-14\nCoffee 3.40\nBread 2.15\nCheese 5.30\nTOTAL 10.85"
TWO_ITEMS = receipt("FRESH MART", "2026-03-14", [("Cheese", "1.33"), ("Juice", "9.62")], "10.95")
RED_CIRCLE, BLUE_SQUARE = shape("circle", (220, 30, 30)), shape("square", (35, 70, 220))

TASKS: dict[str, tuple[str, list[Image.Image], str]] = {
    "line": ("Read the text.", [text_line("TOTAL 12.34")], "TOTAL 12.34"),
    "line, Spanish": ("¿Qué dice?", [text_line("Coffee 4.50")], "Coffee 4.50"),
    "receipt": ("Read the text.", [RECEIPT], RECEIPT_TEXT),
    "total": ("What is the total?", [RECEIPT], "10.85"),
    "total, Spanish": ("¿Cuál es el total?", [RECEIPT], "10.85"),
    "date": ("What is the date?", [RECEIPT], "2026-03-14"),
    "store": ("Which store is it?", [RECEIPT], "FRESH MART"),
    "price": ("How much is the cheese?", [TWO_ITEMS], "1.33"),
    "json": ("Answer in JSON: total and date.", [RECEIPT], '{"total": "10.85", "date": "2026-03-14"}'),
    "shape": ("What shape and color?", [RED_CIRCLE], "a red circle"),
    "shape, Spanish": ("¿De qué color es?", [BLUE_SQUARE], "azul"),
    "two pictures": (
        "Describe both images.",
        [RED_CIRCLE, BLUE_SQUARE],
        "first: a red circle, second: a blue square",
    ),
    "second picture": ("What color is the second one?", [RED_CIRCLE, BLUE_SQUARE], "blue"),
    "text": ("What is the capital of France?", [], "Paris"),
    "sum": ("What is 3+4?", [], "7"),
}

# Pillow's own font is the only one that every machine has
ANYWHERE = Style("anywhere", (fonts.PILLOW,), style.USUAL.word)
# of the first eight of each task, one that the shipped weights read (of the receipts, only this one);
# how many they read is on the demo's page
SEEDS = {
    "line": "api line 0",
    "receipt": "api receipt 7",
    "total": "api total 0",
    "date": "api date 0",
    "store": "api store 0",
    "price": "api price 3",
    "json": "api json 1",
    "shape": "api shape 0",
    "follow-up": "api follow-up 0",
    "two pictures": "api two pictures 0",
    "plain text": "api plain text 0",
}


def request(task: str) -> dict[str, Any]:
    question, images, _ = TASKS[task]
    content = [*map(image_part, images), {"type": "text", "text": question}]
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "temperature": 0}


@pytest.fixture(scope="module")
def client(demo_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=demo_url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("task", TASKS)
def test_the_answer_is_right(client: openai.OpenAI, task: str) -> None:
    answer = client.chat.completions.create(**request(task))
    assert answer.choices[0].message.content == TASKS[task][2]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize("task", TASKS)
def test_a_stream_joins_to_the_same_answer(client: openai.OpenAI, task: str) -> None:
    chunks = list(client.chat.completions.create(**request(task), stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TASKS[task][2]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]


async def test_async_clients_get_their_own_answers_all_at_once(demo_url: str) -> None:
    async with openai.AsyncOpenAI(base_url=demo_url, api_key="none", max_retries=0) as client:

        async def whole(task: str) -> str | None:
            return (await client.chat.completions.create(**request(task))).choices[0].message.content

        async def streamed(task: str) -> str:
            stream = await client.chat.completions.create(**request(task), stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        tasks = [*TASKS, *TASKS]
        answers = await asyncio.gather(*map(whole, tasks), *map(streamed, tasks))
    assert answers == [TASKS[task][2] for task in [*tasks, *tasks]]


def test_a_follow_up_about_an_earlier_picture(client: openai.OpenAI) -> None:
    messages = request("shape")["messages"]
    messages += [
        {"role": "assistant", "content": "a red circle"},
        {"role": "user", "content": "What color is it?"},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    assert answer.choices[0].message.content == "red"


@pytest.mark.parametrize("task", tasks.TASKS)
def test_a_picture_of_each_task_is_read_from_its_seed(demo_url: str, task: str) -> None:
    sample = tasks.draw_sample(task, ANYWHERE, SEEDS[task])
    with httpx.Client(base_url=demo_url.removesuffix("/v1"), timeout=60, trust_env=False) as client:
        assert server_asker(client, MODEL)(sample) == sample.answer
