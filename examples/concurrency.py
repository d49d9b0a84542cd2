"""Async concurrency: sixteen pictures at once; each answer is its own picture's."""

from __future__ import annotations

import asyncio
import time

from client import API_KEY, BASE_URL
from openai import AsyncOpenAI
from pictures import image_part, shape

COLORS = {"red": (220, 30, 30), "green": (30, 160, 50), "blue": (35, 70, 220), "orange": (250, 140, 20)}
SHAPES = ("circle", "square", "triangle", "circle")


async def ask(client: AsyncOpenAI, model: str, name: str, color: str) -> str:
    answer = await client.chat.completions.create(
        model=model,
        messages=[
            {
                "role": "user",
                "content": [
                    image_part(shape(name, COLORS[color])),
                    {"type": "text", "text": "What shape and color?"},
                ],
            }
        ],
        temperature=0,
    )
    return answer.choices[0].message.content or ""


async def main() -> None:
    client = AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY)
    model = (await client.models.list()).data[0].id
    asked = [(name, color) for name in SHAPES for color in COLORS]
    began = time.perf_counter()
    answers = await asyncio.gather(*(ask(client, model, name, color) for name, color in asked))
    for (name, color), answer in zip(asked, answers, strict=True):
        print(f"{color} {name}: {answer}")
    print(f"{len(asked)} answers in {time.perf_counter() - began:.2f} s")


asyncio.run(main())
