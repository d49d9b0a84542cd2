"""The error object everywhere, request ids, bounds of the body, and refusals for want of room."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from pydantic import ByteSize

from kaminari.config import ServerSettings, Settings
from kaminari.engine.errors import EngineUnavailable, QueueFull
from tests.openai_api.fake_engine import FakeEngine
from tests.openai_api.harness import CHAT, HI, client_of, error_of, make_app, post


async def request(method: str, path: str, engine: FakeEngine | None = None, **kwargs: Any) -> httpx.Response:
    app, _ = make_app(engine or FakeEngine())
    async with client_of(app) as client:
        return await client.request(method, path, **kwargs)


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/embeddings", "/v1/chat/completions/", "/v1/chat/x"])
async def test_an_unknown_path_is_a_404(path: str) -> None:
    response = await request("POST", path, json={})
    assert response.status_code == 404
    assert error_of(response)["code"] == "not_found"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, {"POST"}),
        ("DELETE", CHAT, {"POST"}),
        ("POST", "/v1/models", {"GET", "HEAD"}),
        ("POST", "/health", {"GET", "HEAD"}),
    ],
)
async def test_a_wrong_method_is_a_405_that_names_the_right_one(
    method: str, path: str, allowed: set[str]
) -> None:
    response = await request(method, path)
    assert response.status_code == 405
    assert error_of(response)["code"] == "method_not_allowed"
    assert {name.strip() for name in response.headers["allow"].split(",")} == allowed


@pytest.mark.parametrize(
    "media_type",
    [
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
        "image/png",
        "text/html",
        "Application/XML",
    ],
)
async def test_a_body_that_says_it_is_not_json_is_a_415(media_type: str) -> None:
    response = await request("POST", CHAT, content=b"{}", headers={"content-type": media_type})
    assert response.status_code == 415
    assert "application/json" in error_of(response)["message"]


@pytest.mark.parametrize(
    "media_type",
    ["application/json", "application/json; charset=utf-8", "text/plain", "application/x+json", None, ""],
)
async def test_the_content_type_need_not_be_exact(media_type: str | None) -> None:
    headers = {} if media_type is None else {"content-type": media_type}
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'
    assert (await request("POST", CHAT, content=body, headers=headers)).status_code == 200


@pytest.mark.parametrize("media_type", ["text/plain", "text/plain;charset=UTF-8", None, ""])
async def test_a_web_page_cannot_send_what_its_browser_asks_nobody_for(media_type: str | None) -> None:
    headers = {"origin": "http://evil.example"} | ({} if media_type is None else {"content-type": media_type})
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'
    assert (await request("POST", CHAT, content=body, headers=headers)).status_code == 415
    headers["content-type"] = "application/json"
    assert (await request("POST", CHAT, content=body, headers=headers)).status_code == 200


async def test_a_compressed_body_is_a_415() -> None:
    response = await request("POST", CHAT, content=b"x", headers={"content-encoding": "gzip"})
    assert response.status_code == 415


LIMIT = 1000


async def send_body(size: int, *, chunked: bool) -> httpx.Response:
    app, _ = make_app(FakeEngine(), Settings(server=ServerSettings(max_body=ByteSize(LIMIT))))
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'
    body += b" " * (size - len(body))

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, size, 100):
            yield body[start : start + 100]

    async with client_of(app) as client:
        return await client.post(CHAT, content=pieces() if chunked else body)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_bound_is_a_413(chunked: bool) -> None:
    assert (await send_body(LIMIT, chunked=chunked)).status_code == 200
    response = await send_body(LIMIT + 1, chunked=chunked)
    assert response.status_code == 413
    assert str(LIMIT) in error_of(response)["message"]


async def test_a_body_without_end_is_not_read_to_its_end() -> None:
    app, _ = make_app(FakeEngine(), Settings(server=ServerSettings(max_body=ByteSize(LIMIT))))
    sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 100
            assert sent < 10 * LIMIT
            yield b" " * 100

    async with client_of(app) as client:
        assert (await client.post(CHAT, content=pieces())).status_code == 413
    assert sent == LIMIT + 100


@pytest.mark.parametrize("length", ["9" * 30, "9" * 5000])
async def test_a_declared_length_beyond_reason_is_a_413(length: str) -> None:
    assert (await request("POST", CHAT, content=b"{}", headers={"content-length": length})).status_code == 413


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "code"),
    [(QueueFull("64 requests"), "queue_full"), (EngineUnavailable("gone"), "engine_unavailable")],
)
async def test_no_room_or_no_engine_is_a_503_before_any_header_of_a_stream(
    refusal: Exception, code: str, stream: bool
) -> None:
    engine = FakeEngine()

    def refuse() -> None:
        raise refusal

    engine.submit_hook = refuse
    response = await post(engine, stream=stream)
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert error_of(response)["code"] == code


@pytest.mark.parametrize("where", ["prepare_hook", "submit_hook"])
async def test_an_unexpected_fault_is_a_500_without_its_details(where: str) -> None:
    engine = FakeEngine()

    def fail() -> None:
        raise RuntimeError("secret at 0x7f00 in /srv/models")

    setattr(engine, where, fail)
    response = await post(engine, stream=True)
    assert response.status_code == 500
    error = error_of(response)
    assert error["type"] == "server_error"
    assert response.headers["x-request-id"] in error["message"]
    assert "secret" not in response.text
    assert "Traceback" not in response.text


@pytest.mark.parametrize("name", ["a", "req_1.2:3-X", "x" * 128])
async def test_a_request_id_comes_back(name: str) -> None:
    for path, status in (("/health", 200), ("/nowhere", 404)):
        response = await request("GET", path, headers={"x-request-id": name})
        assert response.status_code == status
        assert response.headers["x-request-id"] == name


@pytest.mark.parametrize("name", ["", "x" * 129, "a b", "a\x7fb", "<script>", "é"])
async def test_an_unfit_request_id_is_replaced(name: str) -> None:
    headers = [(b"x-request-id", name.encode("latin-1"))]
    seen = set()
    for _ in range(2):
        response = await request("POST", CHAT, json={"messages": HI, "stream": True}, headers=headers)
        assert response.status_code == 200
        seen.add(response.headers["x-request-id"])
    assert len(seen) == 2
    assert name not in seen
