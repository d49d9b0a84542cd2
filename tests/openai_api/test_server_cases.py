"""The cases of the server that need an engine of their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from kaminari.config import EngineSettings, ModelSettings, Settings
from kaminari.engine.engine import Engine
from kaminari.engine.loading import LoadedModel, load_model
from tests.cases.loading import case, resolve
from tests.openai_api.harness import CHAT, AsgiCall, client_of, error_of, make_app, until
from tests.patience import PATIENCE


@contextmanager
def broken_once(settings: Settings) -> Iterator[Engine]:
    """An engine whose vision tower returns one row too few for its first picture only."""

    def build() -> LoadedModel:
        loaded = load_model(settings)
        encode = loaded.model.encode_picture
        seen: list[Any] = []

        def short(picture: Any) -> Any:
            rows = encode(picture)
            seen.append(picture)
            return replace(rows, embeddings=rows.embeddings[:-1]) if len(seen) == 1 else rows

        loaded.model.encode_picture = short  # type: ignore[method-assign]
        return loaded

    with Engine(build, queue_size=16, stall_after=60) as engine:
        yield engine


async def test_srv_one_bad_kills() -> None:
    """Case srv-one-bad-kills."""
    settings = Settings(
        model=ModelSettings(dtype="float32"), engine=EngineSettings(threads=1, slots=4, context=512)
    )
    parts = [
        {"type": "image_url", "image_url": {"url": resolve("@file:digit_3.png")}},
        {"type": "text", "text": "Read."},
    ]
    body = {"messages": [{"role": "user", "content": parts}], "temperature": 0, "max_tokens": 4}
    with broken_once(settings) as engine:
        async with client_of(make_app(engine)[0]) as client:
            answers = await asyncio.gather(*(client.post(CHAT, json=body) for _ in range(4)))
            statuses = sorted(answer.status_code for answer in answers)
            assert statuses == [200, 200, 200, 500]
            (bad,) = [answer for answer in answers if answer.status_code == 500]
            assert error_of(bad)["code"] == "internal_error"
            good = [answer.json()["choices"][0]["message"] for answer in answers if answer is not bad]
            again = (await client.post(CHAT, json=body)).json()["choices"][0]["message"]
            assert good == [again] * 3
            assert (await client.get("/health")).status_code == 200
        await until(lambda: engine.status().free_slots == 4)


async def test_srv_kv_livelock() -> None:
    """Case srv-kv-livelock."""
    settings = Settings(
        model=ModelSettings(dtype="float32"), engine=EngineSettings(threads=1, slots=1, context=512)
    )

    def body(words: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": "word " * words}]
        return {"messages": messages, "max_tokens": 300, "ignore_eos": True}

    with Engine.load(settings) as engine:
        async with client_of(make_app(engine)[0]) as client:
            *fitting, never = await asyncio.wait_for(
                asyncio.gather(*(client.post(CHAT, json=body(n)) for n in (80, 80, 80, 80, 2000))),
                2 * PATIENCE,
            )
        assert error_of(never)["code"] == "context_length_exceeded"
        for answer in fitting:
            assert answer.status_code == 200
            usage = answer.json()["usage"]
            assert answer.json()["choices"][0]["finish_reason"] == "length"
            assert usage["prompt_tokens"] > 512 - 300
            assert usage["completion_tokens"] == min(300, 512 - usage["prompt_tokens"])
        await until(lambda: engine.status().free_slots == 1)


async def test_str_slow_client() -> None:
    """Nobody waits for a reader that stopped reading, and what is kept for it is no more than its answer."""
    settings = Settings(
        model=ModelSettings(dtype="float32"), engine=EngineSettings(threads=1, slots=2, context=512)
    )
    slow = {**case("str-slow-client").request("kaminari-demo"), "ignore_eos": True, "max_tokens": 300}
    quick = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
    with Engine.load(settings) as engine:
        app, _ = make_app(engine)
        call, stopped = AsgiCall(app, json.dumps(slow).encode()), asyncio.Event()

        async def stuck(message: Any) -> None:
            call.sent.append(message)
            if message["type"] == "http.response.body":
                stopped.set()
                await asyncio.sleep(600)

        call.send = stuck  # type: ignore[method-assign]
        reading = asyncio.create_task(call.run())
        await asyncio.wait_for(stopped.wait(), PATIENCE)
        (request,) = engine._open.values()
        async with client_of(app) as client:
            answers = [await client.post(CHAT, json=quick) for _ in range(10)]
        assert {answer.json()["choices"][0]["message"]["content"] for answer in answers} == {"Paris"}
        await until(lambda: engine.status().free_slots == 2)
        assert 0 < len(request.stream._events) <= 300 + 2
        assert not reading.done()
        call.gone.set()
        await asyncio.wait_for(reading, PATIENCE)
        assert len(call.sent) == 2
