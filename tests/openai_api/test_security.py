"""API keys and CORS: who may call, from where, and that a refusal tells nothing."""

from __future__ import annotations

import hmac
from typing import Any

import httpx
import pytest

from kaminari.config import ServerSettings, Settings
from tests.cases.loading import case
from tests.openai_api.fake_engine import FakeEngine
from tests.openai_api.harness import CHAT, HI, client_of, error_of, make_app

KEYS = ["first-key", "second-key-that-is-longer"]
ORIGIN = "http://localhost:3000"


def client(engine: FakeEngine | None = None, **server: Any) -> httpx.AsyncClient:
    app, _ = make_app(engine or FakeEngine(), Settings(server=ServerSettings(**server)))
    return client_of(app)


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer first-key"},
        {"Authorization": "bearer   second-key-that-is-longer "},
        {"X-Api-Key": "second-key-that-is-longer"},
        {"X-Api-Key": "first-key", "Authorization": "Bearer wrong"},
        {"X-Api-Key": "first-key", "Authorization": "Basic abc"},
    ],
)
async def test_each_key_opens_by_either_header(headers: dict[str, str]) -> None:
    async with client(api_keys=KEYS) as http:
        assert (await http.post(CHAT, json={"messages": HI}, headers=headers)).status_code == 200
        assert (await http.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "first-key"},
        {"Authorization": "Basic first-key"},
        {"Authorization": "Bearer first-ke"},
        {"Authorization": "Bearer first-key2"},
        {"Authorization": "Bearer FIRST-KEY"},
        {"Authorization": b"Bearer \xff\xfe"},
        {"X-Api-Key": "Bearer first-key"},
        {"X-Api-Key": "wrong" * 1000},
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/version", "/nowhere", "/health/x"])
async def test_without_a_key_nothing_is_told(headers: dict[str, Any], path: str) -> None:
    engine = FakeEngine()
    async with client(engine, api_keys=KEYS) as http:
        response = await http.request("POST" if path == CHAT else "GET", path, headers=headers, content=b"{")
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-request-id"]
    error = error_of(response)
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
    for secret in (*KEYS, "wrong"):
        assert secret not in response.text
    assert engine.conversations == []


async def test_health_needs_no_key() -> None:
    async with client(api_keys=KEYS) as http:
        assert (await http.get("/health")).status_code == 200


async def test_every_pair_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr("kaminari.openai_api.security.hmac.compare_digest", compare)
    async with client(api_keys=KEYS) as http:
        for key in ("first-key", "second-key-that-is-longer", "x"):
            compared.clear()
            await http.get("/v1/models", headers={"X-Api-Key": key})
            assert len(compared) == len(KEYS)
            assert {len(side) for pair in compared for side in pair} == {32}


async def test_srv_cors_a_preflight_needs_no_key() -> None:
    assert "OPTIONS" in case("srv-cors").input["http"]
    headers = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    async with client(api_keys=KEYS, cors_origins=[ORIGIN]) as http:
        response = await http.options(CHAT, headers=headers)
        assert response.is_success
        assert response.headers["access-control-allow-origin"] == ORIGIN
        assert {"authorization", "content-type"} <= set(
            response.headers["access-control-allow-headers"].replace(" ", "").lower().split(",")
        )
        stranger = await http.options(CHAT, headers={**headers, "Origin": "http://evil.example"})
        assert not stranger.is_success
        assert "access-control-allow-origin" not in stranger.headers
        assert "CORS_ORIGINS" in error_of(stranger)["message"]


@pytest.mark.parametrize("origins", [[ORIGIN], ["*"], ["*", ORIGIN]])
async def test_srv_cors_error_replies_carry_the_headers(origins: list[str]) -> None:
    engine = FakeEngine()
    engine.submit_hook = lambda: {}["a fault"]
    async with client(engine, api_keys=KEYS, cors_origins=origins) as http:
        key = {"X-Api-Key": KEYS[0], "Origin": ORIGIN}
        replies = {
            401: await http.post(CHAT, json={"messages": HI}, headers={"Origin": ORIGIN}),
            400: await http.post(CHAT, json={}, headers=key),
            404: await http.get("/nowhere", headers=key),
            405: await http.get(CHAT, headers=key),
            500: await http.post(CHAT, json={"messages": HI}, headers=key),
            200: await http.get("/v1/models", headers=key),
        }
    for status, response in replies.items():
        assert response.status_code == status
        allowed = response.headers["access-control-allow-origin"]
        assert allowed == ("*" if "*" in origins else ORIGIN)
        assert not (allowed == "*" and "access-control-allow-credentials" in response.headers)
        assert "x-request-id" in response.headers["access-control-expose-headers"]


async def test_a_cookie_does_not_turn_the_star_into_an_origin_with_credentials() -> None:
    async with client(cors_origins=["*"]) as http:
        response = await http.get("/v1/models", headers={"Origin": ORIGIN, "Cookie": "a=b"})
    assert "access-control-allow-credentials" not in response.headers


async def test_cors_is_off_by_default() -> None:
    async with client(api_keys=KEYS) as http:
        preflight = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
        for response in (
            await http.get("/health", headers={"Origin": ORIGIN}),
            await http.options(CHAT, headers=preflight),
        ):
            assert not [name for name in response.headers if name.startswith("access-control")]
