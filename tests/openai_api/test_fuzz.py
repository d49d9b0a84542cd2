"""Random bodies made from the OpenAPI document: an answer or a refusal in its shape, and never a 500.

`benchmarks/fuzz_http.py` sends many thousands of the same kind to a server in a process of its own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kaminari.config import EngineSettings, ModelSettings, Settings
from kaminari.engine.engine import Engine
from tests.openai_api.bodies import bodies
from tests.openai_api.fake_engine import FakeEngine
from tests.openai_api.harness import client_of, error_of, make_app, until_free

REFUSALS = {400, 404, 413, 415, 503}


def document() -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        async with client_of(make_app(FakeEngine())[0]) as client:
            found: dict[str, Any] = (await client.get("/openapi.json")).json()
        return found

    return asyncio.run(ask())


DOCUMENT = document()
SCHEMAS = DOCUMENT["components"]["schemas"]
POSTS = {
    path: methods["post"]["requestBody"]["content"]["application/json"]["schema"]
    for path, methods in DOCUMENT["paths"].items()
    if "requestBody" in methods.get("post", {})
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load(
        Settings(model=ModelSettings(dtype="float32"), engine=EngineSettings(threads=1, slots=4, context=256))
    ) as loaded:
        yield loaded


async def send(engine: Any, path: str, body: bytes) -> httpx.Response:
    async with client_of(make_app(engine)[0]) as client:
        return await client.post(path, content=body)


def check(response: httpx.Response) -> None:
    if response.status_code == 200:
        if response.headers["content-type"].startswith("text/event-stream"):
            assert response.text.count("data: [DONE]\n\n") == 1
            assert response.text.endswith("data: [DONE]\n\n")
            assert '"internal_error"' not in response.text
        else:
            assert response.json()
        return
    assert response.status_code in REFUSALS
    error = error_of(response)
    assert error["type"] in ("invalid_request_error", "server_error")
    assert not re.search("0x[0-9a-f]{6}", error["message"]), "an address of an object"
    assert "Traceback" not in error["message"]
    assert len(error["message"]) < 2000


def _maybe_streamed(data: st.DataObject, path: str) -> Any:
    """A random body; a third of them asks for a stream, which the schema alone seldom does."""
    body = data.draw(bodies(POSTS[path], SCHEMAS))
    streamed = data.draw(st.integers(0, 2)) == 0
    return {**body, "stream": True} if isinstance(body, dict) and streamed else body


def _short(body: Any) -> Any:
    """No long answers: what is fuzzed is what is understood, not how long it goes on."""
    if isinstance(body, dict) and "messages" in body:
        return {"max_tokens": 3, **body, "max_completion_tokens": 2}
    if isinstance(body, dict) and "prompt" in body:
        return {**body, "max_tokens": 2}
    return body


def _encodable(body: Any) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:
        return repr(body).encode("utf-8", "replace")


@pytest.mark.parametrize("path", POSTS)
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_bodies_against_a_scripted_engine(path: str, data: st.DataObject) -> None:
    body = _maybe_streamed(data, path)
    fake = FakeEngine()
    check(asyncio.run(send(fake, path, _encodable(body))))
    assert fake.live == 0


@pytest.mark.parametrize("path", POSTS)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_bodies_against_the_demo(engine: Engine, path: str, data: st.DataObject) -> None:
    body = _short(_maybe_streamed(data, path))
    check(asyncio.run(send(engine, path, _encodable(body))))
    status = engine.status()
    assert status.alive
    assert (status.running, status.waiting) == (0, 0)
    asyncio.run(until_free(engine))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_bytes_that_are_no_request(body: bytes) -> None:
    response = asyncio.run(send(FakeEngine(), next(iter(POSTS)), body))
    assert response.status_code == 400
    error_of(response)
