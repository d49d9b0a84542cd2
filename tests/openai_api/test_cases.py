"""What broke other servers: the cases about streams, limits and the server, against the demo model.

A case whose answer needs a model that knows more than the demo is tested by its mechanism.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kaminari.config import EngineSettings, ModelSettings, ServerSettings, Settings
from kaminari.engine.engine import Engine
from tests.cases.loading import case, file_facts, resolve
from tests.engine.harness import quiet
from tests.openai_api.harness import CHAT, client_of, error_of, events_of, make_app, post, serving, until
from tests.patience import PATIENCE, processor_time

NAME = "kaminari-demo"
SLOTS = 4
SETTINGS = Settings(
    model=ModelSettings(dtype="float32"),
    engine=EngineSettings(threads=1, slots=SLOTS, queue_size=40),
    server=ServerSettings(port=0),
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load(SETTINGS) as loaded:
        yield loaded


def request_of(case_id: str, **fields: Any) -> dict[str, Any]:
    return {**case(case_id).request(NAME), **fields}


def ask(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


async def stream(engine: Engine, **fields: Any) -> list[dict[str, Any]]:
    response = await post(engine, **{**fields, "stream": True})
    assert response.status_code == 200, response.text
    return events_of(response.text)


def joined(chunks: list[dict[str, Any]]) -> str:
    return "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"])


def deltas(chunks: list[dict[str, Any]]) -> list[str]:
    """Content of all but the role and the finish chunk."""
    return [chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:-1]]


async def test_str_stop_leak(engine: Engine) -> None:
    """Case str-stop-leak."""
    body = ask("What is the capital of France?")
    assert joined(await stream(engine, **body)) == "Paris"
    chunks = await stream(engine, **body, stop=["ris"])
    assert joined(chunks) == "Pa"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_str_stop_flush(engine: Engine) -> None:
    chunks = await stream(engine, **ask("What is the capital of France?", stop=["Parisian"]))
    assert joined(chunks) == "Paris"
    assert all(deltas(chunks))
    chunks = await stream(engine, **request_of("str-stop-flush"))
    assert all(deltas(chunks))


async def test_str_usage_default(engine: Engine) -> None:
    body = request_of("str-usage-default")
    assert all(len(chunk["choices"]) == 1 and "usage" not in chunk for chunk in await stream(engine, **body))
    *others, last = await stream(engine, **body, **case("str-usage-default").input["also"])
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] <= 4
    assert all(len(chunk["choices"]) == 1 and chunk["usage"] is None for chunk in others)


async def test_str_error_first(engine: Engine) -> None:
    response = await post(engine, **request_of("str-error-first"))
    assert response.status_code == 400
    assert error_of(response)["param"] == "n"
    response = await post(engine, **request_of("lim-overflow", stream=True))
    assert response.status_code == 400
    assert error_of(response)["code"] == "context_length_exceeded"


async def test_str_done(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    body = request_of("str-done", ignore_eos=True, temperature=0)
    for fields in ({}, {"stop": ["a", "e", "i"]}, {"max_tokens": 1}):
        assert await stream(engine, **{**body, **fields})
    faults = iter([None, None, None, RuntimeError("injected")])
    runner = engine._loop.runner
    decode = runner.decode

    def breaks(rows: Any) -> Any:
        if (fault := next(faults, None)) is not None:
            raise fault
        return decode(rows)

    monkeypatch.setattr(runner, "decode", breaks)
    with quiet("kaminari.engine"), quiet("kaminari.http"):
        chunks = await stream(engine, **body)
    assert chunks[-1]["error"]["type"] == "server_error"
    assert "injected" not in chunks[-1]["error"]["message"]
    assert joined(await stream(engine, **ask("What is the capital of France?"))) == "Paris"


def test_str_disconnect(engine: Engine) -> None:
    body = request_of("str-disconnect", ignore_eos=True, max_tokens=1000)
    with serving(engine) as running, httpx.Client(base_url=running.url, timeout=30, verify=False) as client:
        for _ in range(SLOTS + 20):
            with client.stream("POST", CHAT, json=body) as response:
                assert next(response.iter_lines()).startswith("data: ")
        deadline = time.monotonic() + PATIENCE
        while (status := engine.status()).running or status.waiting or status.free_slots != SLOTS:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert client.post(CHAT, json=ask("hi", max_tokens=4)).status_code == 200


async def test_str_keepalive_only(engine: Engine) -> None:
    body = request_of("str-keepalive-only", return_token_ids=True, ignore_eos=True)
    body["messages"][0]["content"] = "word " * 350
    chunks = await stream(engine, **body)
    assert len(chunks[0]["prompt_token_ids"]) > engine.info.prefill_chunk
    ids = [token for chunk in chunks for c in chunk["choices"] for token in c.get("token_ids", [])]
    assert len(ids) == chunks[-1]["usage"]["completion_tokens"] == 10


async def test_str_equal(engine: Engine) -> None:
    for body in (request_of("str-equal"), request_of("str-equal", ignore_eos=True)):
        whole = (await post(engine, **body)).json()["choices"][0]["message"]["content"]
        assert joined(await stream(engine, **body)) == whole


async def test_lim_maxtok_clamp(engine: Engine) -> None:
    response = await post(engine, **request_of("lim-maxtok-clamp"))
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"]


async def test_lim_maxtok_values(engine: Engine) -> None:
    body = request_of("lim-maxtok-values")
    for value in (0, -1, "10", 1.5):
        response = await post(engine, **{**body, "max_tokens": value})
        assert response.status_code == 400
        assert error_of(response)["param"] == "max_tokens"
    assert (await post(engine, **{**body, "max_tokens": None})).status_code == 200
    for one in ({"max_tokens": 1}, {"max_tokens": 9, "max_completion_tokens": 1}):
        answer = (await post(engine, **{**body, **one})).json()
        assert answer["usage"]["completion_tokens"] == 1
        assert answer["choices"][0]["finish_reason"] == "length"


async def test_lim_overflow(engine: Engine) -> None:
    body = request_of("lim-overflow")
    with processor_time(2):
        response = await post(engine, **body)
    assert response.status_code == 400
    error = error_of(response)
    assert error["code"] == "context_length_exceeded"
    assert str(engine.info.context) in error["message"]


async def test_lim_length_poison(engine: Engine) -> None:
    body = request_of("lim-length-poison")
    contents = []
    for _ in range(4):
        response = await post(engine, **body)
        assert response.status_code == 200
        contents.append(response.json()["choices"][0]["message"]["content"])
    assert len(set(contents)) == 1


@pytest.mark.parametrize("case_id", ["srv-ssrf", "srv-file-url", "img-fetch-fail-200"])
async def test_no_address_is_fetched(engine: Engine, case_id: str) -> None:
    body = request_of(case_id)
    (part,) = [part for part in body["messages"][0]["content"] if part["type"] == "image_url"]
    for url in (part["image_url"]["url"], *case(case_id).input.get("also", [])):
        part["image_url"]["url"] = url
        response = await post(engine, **body)
        assert response.status_code == 400
        assert error_of(response)["param"] == "messages[0].content[0].image_url.url"


async def test_srv_null_fields(engine: Engine) -> None:
    assert (await post(engine, **request_of("srv-null-fields"))).status_code == 200


async def test_srv_developer(engine: Engine) -> None:
    body = request_of("srv-developer", return_token_ids=True)
    developer = (await post(engine, **body)).json()
    body["messages"][0]["role"] = "system"
    system = (await post(engine, **body)).json()
    assert developer["prompt_token_ids"] == system["prompt_token_ids"]
    body["messages"][0]["role"] = "robot"
    assert (await post(engine, **body)).status_code == 400


async def test_srv_model_name(engine: Engine) -> None:
    response = await post(engine, **request_of("srv-model-name"))
    assert response.status_code == 404
    assert NAME in error_of(response)["message"]


async def test_srv_health_blocked(engine: Engine) -> None:
    app, _ = make_app(engine, SETTINGS)
    body = request_of("srv-health-blocked", max_tokens=1)
    async with client_of(app) as client:
        posts = [asyncio.create_task(client.post(CHAT, json=body)) for _ in range(3)]
        answered = 0
        while not any(post.done() for post in posts):
            assert (await client.get("/health")).status_code == 200
            answered += 1
            await asyncio.sleep(0.001)
        assert {(await post).status_code for post in posts} == {200}
        assert answered > 20


async def test_srv_queue_full(engine: Engine) -> None:
    app, _ = make_app(engine, SETTINGS)
    async with client_of(app) as client:
        body = request_of("srv-queue-full", max_tokens=8)
        answers = await asyncio.gather(*(client.post(CHAT, json=body) for _ in range(200)))
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(answers) - len(refused) >= SETTINGS.engine.queue_size
    assert refused
    for answer in refused:
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert error_of(answer)["code"] == "queue_full"
    await until(lambda: engine.status().free_slots == SLOTS)


async def test_prompt_part_forms(engine: Engine) -> None:
    body = request_of("prompt-part-forms", temperature=0)
    said = (await post(engine, **body)).json()["choices"][0]["message"]["content"]
    content = body["messages"][0]["content"]
    content[0] = {"type": "image_url", "image_url": {"url": content[0]["image_url"]}}
    assert (await post(engine, **body)).json()["choices"][0]["message"]["content"] == said
    for form in case("prompt-part-forms").input["also"]:
        content[0] = resolve(form)
        response = await post(engine, **body)
        assert response.status_code == 400
        assert '"type": "image_url"' in error_of(response)["message"]


@pytest.mark.parametrize("case_id", ["prompt-empty-assistant", "prompt-same-role", "prompt-text-parts"])
async def test_prompts_of_odd_shape_are_answered(engine: Engine, case_id: str) -> None:
    assert (await post(engine, **request_of(case_id))).status_code == 200


@pytest.mark.parametrize("case_id", ["smp-n-huge", "smp-top-logprobs"])
async def test_sampling_out_of_bounds_is_refused(engine: Engine, case_id: str) -> None:
    body = request_of(case_id)
    response = await post(engine, **body)
    assert response.status_code == 400
    assert error_of(response)["param"] in body


@pytest.mark.parametrize("top_k", [8888888, 0, -1])
async def test_smp_top_k(engine: Engine, top_k: int) -> None:
    assert (await post(engine, **request_of("smp-top-k", top_k=top_k))).status_code == 200


@pytest.mark.parametrize("name", [fact.name for fact in file_facts() if fact.expect == "reject"])
async def test_every_bad_file_is_a_400_that_names_its_part(engine: Engine, name: str) -> None:
    content = [{"type": "image_url", "image_url": {"url": resolve(f"@file:{name}")}}]
    response = await post(engine, messages=[{"role": "user", "content": content}])
    assert response.status_code == 400
    assert error_of(response)["param"].startswith("messages[0].content[0]")


@pytest.mark.parametrize("stream", [False, True])
async def test_img_truncated(engine: Engine, stream: bool) -> None:
    body = request_of("img-truncated", stream=stream)
    for name in case("img-truncated").input["files"]:
        body["messages"][0]["content"][0]["image_url"]["url"] = resolve(f"@file:{name}")
        response = await post(engine, **body)
        assert response.status_code == 400, name
        assert error_of(response)["param"] == "messages[0].content[0]"
