"""The openai SDK against a real socket: both clients, streaming and not, and the errors it maps."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import openai
import pytest

from kaminari.engine.errors import QueueFull
from kaminari.engine.events import Delta, Failed
from kaminari.openai_api.errors import LOADING_RETRY_SECONDS, QUEUE_RETRY_SECONDS
from tests.openai_api.fake_engine import INFO, FakeEngine, endless, says
from tests.openai_api.harness import HI, serving

TEXT = " Hello, world\n"
PICTURE = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()


@contextmanager
def sdk(engine: FakeEngine) -> Iterator[openai.OpenAI]:
    with (
        serving(engine) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def test_an_answer() -> None:
    engine = FakeEngine()
    with sdk(engine) as client:
        answer = client.chat.completions.create(
            model=INFO.model,
            messages=[
                {"role": "system", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is this?"},
                        {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
                    ],
                },
            ],
            temperature=0,
            max_completion_tokens=16,
            n=2,
            extra_body={"return_token_ids": True, "timings": True},
        )
        assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT]
        assert answer.choices[1].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == 1
        assert answer.model_extra is not None
        assert answer.model_extra["timings"]["first_token"] == 1.0
        again = client.chat.completions.create(
            model=INFO.model,
            messages=[*HI, answer.choices[0].message, *HI],  # type: ignore[list-item]
        )
        assert again.choices[0].message.content == TEXT
    assert engine.conversations[1].messages[1].parts[0].text == TEXT


def test_a_stream() -> None:
    with sdk(FakeEngine()) as client:
        chunks = list(
            client.chat.completions.create(
                model=INFO.model, messages=HI, stream=True, stream_options={"include_usage": True}
            )
        )
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 7
        with client.chat.completions.stream(model=INFO.model, messages=HI) as stream:
            stream.until_done()
            assert stream.get_final_completion().choices[0].message.content == TEXT


async def test_the_asynchronous_client() -> None:
    engine = FakeEngine()
    with serving(engine) as running:
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as client:
            answer = await client.chat.completions.create(model=INFO.model, messages=HI)
            assert answer.choices[0].message.content == TEXT
            stream = await client.chat.completions.create(model=INFO.model, messages=HI, stream=True)
            assert "".join([c.choices[0].delta.content or "" async for c in stream]) == TEXT
            assert [model.id async for model in client.models.list()] == [INFO.model]
            assert (await client.models.retrieve(INFO.model)).owned_by == "kaminari"


def test_leaving_a_stream_frees_its_slot() -> None:
    engine = FakeEngine(endless, pause=0.005)
    with sdk(engine) as client:
        stream = client.chat.completions.create(model=INFO.model, messages=HI, stream=True)
        for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        stream.close()
        assert engine.wait_until_idle(1.0)
        assert engine.aborted == 1


def test_errors_map_to_the_classes_of_the_sdk() -> None:
    engine = FakeEngine()
    with sdk(engine) as client:
        create = client.chat.completions.create
        with pytest.raises(openai.BadRequestError) as bad:
            create(model=INFO.model, messages=HI, temperature=9)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.NotFoundError) as missing:
            create(model="gpt-4o", messages=HI, stream=True)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("gpt-4o")

        def refuse() -> None:
            raise QueueFull

        engine.submit_hook = refuse
        with pytest.raises(openai.InternalServerError) as full:
            create(model=INFO.model, messages=HI)
        assert full.value.status_code == 503
        assert full.value.code == "queue_full"


async def test_a_full_queue_is_retried_after_the_time_that_the_server_names() -> None:
    """Whole and streamed; the SDK's own first wait would be half a second, the server asks for one."""
    engine = FakeEngine()
    refusals = iter([QueueFull, QueueFull])

    def refuse_twice() -> None:
        for refusal in refusals:
            raise refusal

    engine.submit_hook = refuse_twice
    with serving(engine) as running:
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as client:
            create = client.chat.completions.create
            began = time.monotonic()
            answer, stream = await asyncio.gather(
                create(model=INFO.model, messages=HI), create(model=INFO.model, messages=HI, stream=True)
            )
            assert time.monotonic() - began >= QUEUE_RETRY_SECONDS
            assert answer.choices[0].message.content == TEXT
            assert "".join([c.choices[0].delta.content or "" async for c in stream]) == TEXT
    assert len(engine.params) == 2


def test_a_loading_server_is_waited_for() -> None:
    """503 while the model loads, then an answer: one call of a client that began too early."""
    engine = FakeEngine()
    with serving(None) as running:
        waits: list[float] = []

        def attach(response: httpx.Response) -> None:
            if response.status_code == 503:
                waits.append(float(response.headers["retry-after"]))
                response.headers["retry-after-ms"] = "1"
                running.lifecycle.attach(engine)

        http = httpx.Client(event_hooks={"response": [attach]})
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", http_client=http) as client:
            answer = client.chat.completions.create(model=INFO.model, messages=HI)
        assert answer.choices[0].message.content == TEXT
        assert waits == [LOADING_RETRY_SECONDS]


def test_a_fault_in_a_stream_reaches_the_reader_as_an_error() -> None:
    engine = FakeEngine(says([Delta(0, "a", (1,))], [Failed("the engine failed")]))
    with sdk(engine) as client:
        stream = client.chat.completions.create(model=INFO.model, messages=HI, stream=True)
        with pytest.raises(openai.APIError, match="the engine failed"):
            list(stream)
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model=INFO.model, messages=HI)
