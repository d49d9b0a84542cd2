"""What a supervisor and a chat UI poll: models, health, version."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

import pytest

from kaminari import __version__
from tests.openai_api.fake_engine import INFO, FakeEngine
from tests.openai_api.harness import CHAT, HI, client_of, error_of, make_app


async def test_models_lists_the_served_name_and_its_context() -> None:
    app, _ = make_app(FakeEngine())
    async with client_of(app) as client:
        body = (await client.get("/v1/models")).json()
        model = (await client.get(f"/v1/models/{INFO.model}")).json()
        quoted = (await client.get(f"/v1/models/{quote(INFO.model, safe='')}")).json()
    assert body == {"object": "list", "data": [model]}
    assert isinstance(model.pop("created"), int)
    assert model == {
        "id": INFO.model,
        "object": "model",
        "owned_by": "kaminari",
        "max_model_len": INFO.context,
    }
    assert quoted["id"] == INFO.model


@pytest.mark.parametrize("name", ["gpt-4o", "org", "org/fake-vl/x", ""])
async def test_another_model_is_a_404(name: str) -> None:
    app, _ = make_app(FakeEngine())
    async with client_of(app) as client:
        response = await client.get(f"/v1/models/{name}")
    assert response.status_code == 404
    error = error_of(response)
    assert error["code"] == "model_not_found"
    assert INFO.model in error["message"]


async def test_aliases_are_listed_and_served_under_the_models_own_name() -> None:
    app, _ = make_app(FakeEngine(info=replace(INFO, aliases=("gpt-4o", INFO.model, "a/b"))))
    async with client_of(app) as client:
        listed = [model["id"] for model in (await client.get("/v1/models")).json()["data"]]
        assert listed == [INFO.model, "gpt-4o", "a/b"]
        assert (await client.get("/v1/models/a/b")).json()["id"] == "a/b"
        for name in listed:
            answer = await client.post(CHAT, json={"messages": HI, "model": name})
            assert answer.json()["model"] == INFO.model
        refused = await client.post(CHAT, json={"messages": HI, "model": "gpt-4"})
    assert refused.status_code == 404
    assert all(f"`{name}`" in error_of(refused)["message"] for name in listed)


async def test_health_follows_the_engine() -> None:
    engine = FakeEngine()
    app, lifecycle = make_app(None)
    async with client_of(app) as client:

        async def health() -> tuple[int, dict[str, str]]:
            response = await client.get("/health")
            return response.status_code, response.json()

        assert await health() == (503, {"status": "loading"})
        lifecycle.attach(engine)
        assert await health() == (200, {"status": "ok"})
        engine.stalled = True
        assert await health() == (503, {"status": "stalled"})
        engine.alive = False
        assert await health() == (503, {"status": "dead"})


async def test_nothing_else_is_served_while_loading() -> None:
    app, lifecycle = make_app(None)
    async with client_of(app) as client:
        for response in (
            await client.get("/v1/models"),
            await client.get("/v1/models/x"),
            await client.post(CHAT, json={"messages": HI}),
            await client.post(CHAT, json={"messages": HI, "stream": True}),
        ):
            assert response.status_code == 503
            assert error_of(response)["code"] == "model_loading"
            assert int(response.headers["retry-after"]) >= 1
        assert (await client.get("/version")).json() == {
            "version": __version__,
            "model": None,
            "device": None,
            "dtype": None,
            "quantization": None,
        }
        lifecycle.attach(FakeEngine())
        assert (await client.post(CHAT, json={"messages": HI})).status_code == 200


async def test_version_says_what_is_served() -> None:
    app, _ = make_app(FakeEngine())
    async with client_of(app) as client:
        body = (await client.get("/version")).json()
    assert body == {
        "version": __version__,
        "model": INFO.model,
        "device": "cpu",
        "dtype": "float32",
        "quantization": "none",
    }
