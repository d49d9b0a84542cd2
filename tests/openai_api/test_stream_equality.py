"""A stream that is joined is the whole answer, byte for byte, for random prompts, stops, forms and tools."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kaminari.config import EngineSettings, ModelSettings, Settings
from kaminari.engine.engine import Engine
from tests.cases.loading import file_url
from tests.engine.random_schemas import random_schema
from tests.openai_api.harness import CHAT, client_of, events_of, make_app, until_free

ROUNDS = 16
WORDS = ["What", "is", "3+4", "?", "capital", "ß", "日本", "😀", "\n", "  ", "<tool_call>", "}", "é", "Rome"]
PICTURES = ["digit_3.png", "shape_red_circle.png"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    settings = Settings(
        model=ModelSettings(dtype="float32"), engine=EngineSettings(threads=1, slots=8, context=2048)
    )
    with Engine.load(settings) as loaded:
        yield loaded


def random_prompt(rng: random.Random) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": " ".join(rng.choices(WORDS, k=rng.randint(1, 8)))}
    ]
    if rng.random() < 0.3:
        parts.insert(0, {"type": "image_url", "image_url": {"url": file_url(rng.choice(PICTURES))}})
    return [{"role": "user", "content": parts}]


def small_schema(rng: random.Random) -> dict[str, Any]:
    """One of few tokens, since the demo model reads a byte or two at a time."""
    return next(schema for _ in range(1000) if len(json.dumps(schema := random_schema(rng))) < 400)


def random_tools(rng: random.Random) -> dict[str, Any]:
    functions = [
        {"name": f"f{place}", "parameters": small_schema(rng), "strict": rng.random() < 0.5}
        for place in range(rng.randint(1, 2))
    ]
    named = {"type": "function", "function": {"name": "f0"}}
    return {
        "tools": [{"type": "function", "function": function} for function in functions],
        "tool_choice": rng.choice(["auto", "required", "required", named, "none"]),
        "parallel_tool_calls": rng.random() < 0.7,
    }


def random_form(rng: random.Random) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": random_schema(rng)}}
    return rng.choice(
        [
            {"response_format": form},
            {"response_format": form},
            {"response_format": {"type": "json_object"}},
            {"structured_outputs": {"regex": "([a-z]{1,9} ?){2,9}[0-9é]*"}},
            {"structured_outputs": {"choice": ["red", "reddish", "日本", "a b"]}},
        ]
    )


def random_request(rng: random.Random, kind: str) -> dict[str, Any]:
    extra = {"plain": lambda _: {}, "form": random_form, "tools": random_tools}[kind](rng)
    return {
        "messages": random_prompt(rng),
        "temperature": rng.choice([0, 0.7, 1.3]),
        "seed": rng.randint(0, 10**6),
        "max_tokens": rng.randint(1, 40),
        "n": rng.randint(1, 3),
        "ignore_eos": kind == "plain" and rng.random() < 0.7,
        "logprobs": rng.random() < 0.4,
        "return_token_ids": rng.random() < 0.5,
        **extra,
    }


def comparable(choice: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return {
        "content": (message.get("content") or "").encode(),
        "reasoning": (message.get("reasoning_content") or "").encode(),
        "calls": [(call["name"], call["arguments"].encode()) for call in calls],
        "reason": choice["finish_reason"],
        "tokens": choice.get("token_ids"),
        "logprobs": choice["logprobs"]["content"] if choice["logprobs"] else None,
    }


def joined(events: list[dict[str, Any]], index: int) -> dict[str, Any]:
    """One choice of a stream as the choice of a whole answer."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    choice: dict[str, Any] = {"finish_reason": None, "logprobs": None}
    for chunk in events:
        for piece in chunk["choices"]:
            if piece["index"] != index:
                continue
            delta = piece["delta"]
            message["content"] += delta.get("content", "")
            message["reasoning_content"] += delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    message["tool_calls"].append(
                        {"function": {"name": call["function"]["name"], "arguments": ""}}
                    )
                assert call["index"] == len(message["tool_calls"]) - 1
                message["tool_calls"][-1]["function"]["arguments"] += call["function"]["arguments"]
            if "token_ids" in piece:
                choice.setdefault("token_ids", []).extend(piece["token_ids"])
            if piece["logprobs"]:
                choice["logprobs"] = choice["logprobs"] or {"content": []}
                choice["logprobs"]["content"] += piece["logprobs"]["content"]
            choice["finish_reason"] = piece["finish_reason"] or choice["finish_reason"]
    return comparable(choice, message)


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> httpx.Response:
    response = await client.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    return response


async def whole(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = (await ask(client, body)).json()
    return answer


async def same_streamed(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    """The whole answer, after a check that its stream is the same."""
    answer = await whole(client, body)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    events = events_of((await ask(client, {**body, **options})).text)
    for choice in answer["choices"]:
        assert joined(events, choice["index"]) == comparable(choice, choice["message"])
    assert events[-1]["usage"] == answer["usage"]
    return answer


def stops_within(rng: random.Random, answer: dict[str, Any]) -> list[str]:
    """Pieces of what was said, and what was not, so that stops are met in the middle, at ends and never."""
    said = "".join(
        (choice["message"]["content"] or "")
        + "".join(call["function"]["arguments"] for call in choice["message"].get("tool_calls") or ())
        for choice in answer["choices"]
    )
    stops = ["never said"]
    for _ in range(rng.randint(1, 3)):
        if said:
            start = rng.randrange(len(said))
            stops.append(said[start : start + rng.randint(1, 6)])
    return stops


async def both(client: httpx.AsyncClient, kind: str, number: int) -> tuple[int, int]:
    """Compare a random request without and with stops. Counts the choices that a stop cut, and the calls."""
    rng = random.Random(f"{kind} {number}")
    body = random_request(rng, kind)
    free = await same_streamed(client, body)
    stopped = await same_streamed(client, {**body, "stop": stops_within(rng, free)})
    pairs = zip(free["choices"], stopped["choices"], strict=True)
    cut = sum(json.dumps(one["message"]) != json.dumps(other["message"]) for one, other in pairs)
    return cut, sum(len(choice["message"].get("tool_calls") or ()) for choice in free["choices"])


@pytest.mark.parametrize("kind", ["plain", "form", "tools"])
async def test_a_joined_stream_is_the_whole_answer(engine: Engine, kind: str) -> None:
    async with client_of(make_app(engine)[0]) as client:
        # one after the other: in other company the last digits of log-probabilities are others
        seen = [await both(client, kind, number) for number in range(ROUNDS)]
    assert sum(cut for cut, _ in seen) > ROUNDS / 4
    assert (sum(calls for _, calls in seen) > ROUNDS / 4) is (kind == "tools")
    await until_free(engine)
