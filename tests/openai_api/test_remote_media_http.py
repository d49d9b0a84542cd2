"""Remote pictures over HTTP: in order, a failure names its part, and nobody else waits for a slow host."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kaminari.config import EngineSettings, MediaSettings, PictureSettings, ServerSettings, Settings
from kaminari.engine.conversation import PicturePart
from kaminari.openai_api.remote_media import RemoteMedia
from tests.cases.loading import case
from tests.openai_api.fake_engine import FakeEngine
from tests.openai_api.harness import CHAT, HI, client_of, error_of, make_app
from tests.openai_api.picture_host import (
    Behaviour,
    drips,
    endless,
    picture_host,
    redirects,
    sends,
    silent,
)
from tests.patience import patience


def settings_for(**media: Any) -> Settings:
    return Settings(
        media=MediaSettings(
            **{"allowed_hosts": ["127.0.0.1"], "allow_private": True, "timeout": "10s", **media}
        ),
        pictures=PictureSettings(workers=1, max_count=3),
        engine=EngineSettings(queue_size=3),
        server=ServerSettings(port=0),
    )


def asking(*urls: str) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": "Describe."}]
    parts += [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": parts}]}


async def test_over_http_pictures_arrive_in_order_and_a_failure_names_its_part() -> None:
    engine = FakeEngine()
    app, _ = make_app(engine, settings_for())

    async def behave(writer: asyncio.StreamWriter, path: str) -> None:
        answer = sends(b"", status="404 No") if path == "/none.png" else sends(path.encode())
        await answer(writer, path)

    async with picture_host(behave) as host, client_of(app) as client:
        base = f"http://127.0.0.1:{host.port}"
        answer = await client.post(CHAT, json=asking(f"{base}/b", f"{base}/a", f"{base}/b"))
        assert answer.status_code == 200
        parts = engine.conversations[0].messages[0].parts
        assert [part.source for part in parts if isinstance(part, PicturePart)] == [b"/b", b"/a", b"/b"]
        for stream in (False, True):
            body = {**asking(f"{base}/a", f"{base}/none.png"), "stream": stream}
            refused = await client.post(CHAT, json=body)
            assert refused.status_code == 400
            error = error_of(refused)
            assert error["param"] == "messages[0].content[2].image_url.url"
            assert error["code"] == "invalid_image_url"
            assert "127.0.0.1" not in error["message"]
        many = await client.post(CHAT, json=asking(*(f"{base}/{i}" for i in range(4))))
        assert many.status_code == 400
        assert "at most 3 pictures" in error_of(many)["message"]
    assert len(engine.conversations) == 1


async def test_img_fetch_timeout_others_are_unaffected() -> None:
    body = case("img-fetch-timeout").request()
    app, _ = make_app(FakeEngine(), settings_for(timeout="0.5s"))
    async with picture_host(silent) as host, client_of(app) as client:
        body["messages"][0]["content"][0]["image_url"]["url"] = f"http://127.0.0.1:{host.port}/slow.png"
        body.pop("model")
        slow = [asyncio.create_task(client.post(CHAT, json=body)) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert (await client.post(CHAT, json={"messages": HI})).status_code == 200
        with patience():
            answers = await asyncio.gather(*slow)
        for answer in answers:
            assert answer.status_code == 400
            assert error_of(answer)["param"] == "messages[0].content[0].image_url.url"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "behave",
    [drips(0.02), endless, silent, sends(b"x", length=2), sends(b"x", length=10**12)],
    ids=["a slow drip", "an endless body", "silence", "too long a length", "far too long a length"],
)
async def test_a_host_that_misbehaves_is_a_400_in_bounded_time(behave: Behaviour, stream: bool) -> None:
    app, _ = make_app(FakeEngine(), settings_for(max_size="1MB", timeout="0.5s"))
    async with picture_host(behave) as host, client_of(app) as client:
        body = {**asking(f"http://127.0.0.1:{host.port}/a.png"), "stream": stream}
        with patience():
            answer = await client.post(CHAT, json=body)
        assert answer.status_code == 400
        assert error_of(answer)["param"] == "messages[0].content[1].image_url.url"
        assert host.connections <= 1, "it tries once, and on a machine that stalls not even that in time"


@pytest.mark.parametrize("where", ["127.0.0.1", "localhost", "[::1]", "2130706433", "pictures.test"])
async def test_srv_ssrf_redirect_reaches_no_inner_port(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by another host, nor by the same one, whose name points inside at the second look-up."""
    looked_up: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        looked_up.append(host)
        return ["127.0.0.1"] if len(looked_up) == 1 else ["169.254.169.254", "127.0.0.1"]

    monkeypatch.setitem(RemoteMedia.__init__.__kwdefaults__, "resolve", resolve)
    app, _ = make_app(FakeEngine(), settings_for(allowed_hosts=["pictures.test"]))
    async with picture_host(sends(b"inner")) as inner:
        async with (
            picture_host(redirects(f"http://{where}:{inner.port}/secret")) as outer,
            client_of(app) as client,
        ):
            answer = await client.post(CHAT, json=asking(f"http://pictures.test:{outer.port}/a.png"))
            assert outer.connections == 1
        assert answer.status_code == 400
        assert error_of(answer)["code"] == "invalid_image_url"
        assert inner.connections == 0
    assert looked_up == ["pictures.test"] * (2 if where == "pictures.test" else 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_img_fetch_fail_200(stream: bool) -> None:
    body = {**case("img-fetch-fail-200").request(), "stream": stream}
    body.pop("model")
    for settings in (Settings(), settings_for()):
        async with client_of(make_app(FakeEngine(), settings)[0]) as client:
            answer = await client.post(CHAT, json=body)
        assert answer.status_code == 400
        assert error_of(answer)["param"] == "messages[0].content[0].image_url.url"


def test_the_default_time_for_a_picture_is_within_ten_seconds() -> None:
    assert MediaSettings().timeout.total_seconds() <= 10
