"""Whom an evaluation asks: a running server, or an engine in this process. Greedy, always."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

from examples.demo_model.sample import Sample
from examples.pictures import image_part
from kaminari import Conversation, Engine, Message, PicturePart, Role, SamplingParams, TextPart, collect

Ask = Callable[[Sample], str]
MOST_TOKENS = 512


def conversation(sample: Sample) -> Conversation:
    """The sample up to its last question."""
    pictures = tuple(PicturePart(drawing.image) for drawing in sample.drawings)
    messages: list[Message] = []
    for number, turn in enumerate(sample.turns):
        shown = pictures if number == 0 else ()
        messages.append(Message(Role.USER, (*shown, TextPart(turn.question))))
        messages.append(Message.text(Role.ASSISTANT, turn.answer))
    return Conversation(tuple(messages[:-1]))


def engine_asker(engine: Engine) -> Ask:
    """Ask an engine. What it raises is raised: `RequestError`, `EngineFault`, `EngineUnavailable`."""

    def ask(sample: Sample) -> str:
        prompt = engine.prepare(conversation(sample))
        params = SamplingParams(temperature=0, max_tokens=MOST_TOKENS)
        return collect(engine.submit(prompt, params)).text

    return ask


def server_asker(client: httpx.Client, model: str) -> Ask:
    """Ask the server that the client's base URL names. Raises `httpx.HTTPError`."""

    def ask(sample: Sample) -> str:
        pictures = [image_part(drawing.image) for drawing in sample.drawings]
        messages: list[dict[str, Any]] = []
        for number, turn in enumerate(sample.turns):
            shown = pictures if number == 0 else []
            messages.append({"role": "user", "content": [*shown, {"type": "text", "text": turn.question}]})
            messages.append({"role": "assistant", "content": turn.answer})
        body = {"model": model, "messages": messages[:-1], "temperature": 0, "max_tokens": MOST_TOKENS}
        answer = client.post("v1/chat/completions", json=body).raise_for_status().json()
        return answer["choices"][0]["message"]["content"] or ""

    return ask


def served_model(client: httpx.Client) -> str:
    """The first model that the server lists. Raises `httpx.HTTPError`."""
    return str(client.get("v1/models").raise_for_status().json()["data"][0]["id"])
