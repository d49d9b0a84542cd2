"""Streams over time: silence, slow readers, and a server that stops."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import anyio
import httpx
import pytest

from kaminari.config import ServerSettings, Settings
from kaminari.engine.events import Delta, Failed
from kaminari.engine.stream import EventStream
from kaminari.openai_api.lifecycle import Lifecycle
from kaminari.openai_api.sse import DONE, WRITE_BYTES, StreamResponse, together
from tests.openai_api.fake_engine import FakeEngine, endless, hello, says
from tests.openai_api.harness import (
    CHAT,
    HI,
    AsgiCall,
    client_of,
    error_of,
    events_of,
    make_app,
    serving,
    until,
)
from tests.patience import PATIENCE, patience

ASK = json.dumps({"messages": HI, "stream": True}).encode()


async def test_silence_is_filled_with_comments() -> None:
    async def events() -> AsyncIterator[bytes]:
        await asyncio.sleep(0.2)
        yield DONE

    response = StreamResponse(
        events(), EventStream(lambda: None), Lifecycle(grace=1), send_timeout=1, keep_alive=0.05
    )
    call = AsgiCall(response, b"")
    await call.run()
    body = b"".join(message.get("body", b"") for message in call.sent)
    assert body.startswith(b": keep-alive\n\n: keep-alive\n\n")
    assert body.endswith(DONE)


async def test_a_reader_that_takes_nothing_is_dropped() -> None:
    aborted = threading.Event()
    stream = EventStream(aborted.set)
    closed = asyncio.Event()

    async def events() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"data: 1\n\n"
        finally:
            closed.set()

    response = StreamResponse(events(), stream, Lifecycle(grace=1), send_timeout=0.05, keep_alive=15)
    call = AsgiCall(response, b"")

    async def stuck(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.sleep(60)

    call.send = stuck  # type: ignore[method-assign]
    with anyio.fail_after(PATIENCE):
        await call.run()
    assert closed.is_set()
    assert aborted.is_set()


async def test_a_reader_that_does_not_take_a_comment_is_dropped() -> None:
    aborted = threading.Event()

    async def silence() -> AsyncIterator[bytes]:
        await asyncio.sleep(60)
        yield DONE

    response = StreamResponse(
        silence(), EventStream(aborted.set), Lifecycle(grace=1), send_timeout=0.05, keep_alive=0.01
    )
    call = AsgiCall(response, b"")

    async def stuck(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.sleep(60)

    call.send = stuck  # type: ignore[method-assign]
    with anyio.fail_after(PATIENCE):
        await call.run()
    assert aborted.is_set()


async def test_a_stuck_reader_is_dropped_while_a_foreign_server_stops() -> None:
    aborted = threading.Event()
    lifecycle = Lifecycle(grace=60)

    async def events() -> AsyncIterator[bytes]:
        while True:
            yield b"data: 1\n\n"

    response = StreamResponse(events(), EventStream(aborted.set), lifecycle, send_timeout=0.1, keep_alive=15)
    call = AsgiCall(response, b"")

    async def stuck(message: Any) -> None:
        if message["type"] == "http.response.body":
            response._stopping.set()
            await asyncio.sleep(60)

    call.send = stuck  # type: ignore[method-assign]
    with anyio.fail_after(PATIENCE):
        await call.run()
    assert aborted.is_set()
    assert lifecycle.stopping


async def test_a_slow_reader_that_takes_what_comes_is_kept() -> None:
    async def events() -> AsyncIterator[bytes]:
        for _ in range(12):
            yield b"data: 1\n\n"
        yield DONE

    response = StreamResponse(
        events(), EventStream(lambda: None), Lifecycle(grace=1), send_timeout=0.5, keep_alive=15
    )
    call = AsgiCall(response, b"")
    takes = call.send

    async def slow(message: Any) -> None:
        await asyncio.sleep(0.05)
        await takes(message)

    call.send = slow  # type: ignore[method-assign]
    await call.run()
    assert b"".join(message.get("body", b"") for message in call.sent).endswith(DONE)


def test_events_that_wait_go_out_together_in_bounded_writes() -> None:
    assert list(together([])) == []
    assert list(together([b"a", b"b"])) == [b"ab"]
    large = b"x" * (WRITE_BYTES - 1)
    assert list(together([large, b"y", b"a", large, b"c"])) == [large + b"y", b"a" + large, b"c"]


async def test_what_gathered_is_one_write_and_what_is_alone_goes_at_once() -> None:
    """The events are the same, however many of them one write holds."""

    async def writes(pause: float) -> list[bytes]:
        app, _ = make_app(FakeEngine(hello, pause=pause))
        body = json.dumps({"messages": HI, "stream": True, "n": 2, "return_token_ids": True}).encode()
        call = AsgiCall(app, body)
        await call.run()
        return [message["body"] for message in call.sent if message.get("body")]

    def said(parts: list[bytes]) -> list[Any]:
        chunks = events_of(b"".join(parts).decode())
        return [chunk["choices"] for chunk in chunks]

    gathered, one_by_one = await writes(0.0), await writes(0.02)
    opening, everything, done = gathered
    assert opening.count(b"data: ") == 2
    assert everything.count(b"data: ") == len(said(gathered)) - 2
    assert done == DONE
    assert len(one_by_one) > 5
    assert said(one_by_one) == said(gathered)


async def test_what_came_before_a_failure_is_sent() -> None:
    engine = FakeEngine(says([Delta(0, "so far", (1,)), Failed("it broke")]))
    app, _ = make_app(engine)
    async with client_of(app) as client:
        *_, text, failure = events_of((await client.post(CHAT, content=ASK)).text)
    assert text["choices"][0]["delta"]["content"] == "so far"
    assert failure["error"]["message"].startswith("it broke")


def test_over_a_socket_a_stuck_reader_harms_nobody() -> None:
    def flood(params: Any) -> list[list[Any]]:
        return [[Delta(0, "x" * 50_000, (1,))] for _ in range(400)]

    engine = FakeEngine(flood, pause=0.001)
    with serving(engine, send_timeout=timedelta(seconds=0.5)) as running:
        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.connect(("127.0.0.1", int(running.url.rsplit(":", 1)[1])))
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(ASK)}\r\n\r\n"
            stuck.sendall(head.encode() + ASK)
            assert stuck.recv(10)
            health, close = f"{running.url}/health", {"connection": "close"}
            while running.server.server_state.connections:
                with patience():
                    assert httpx.get(health, headers=close, verify=False).status_code == 200
                time.sleep(0.02)
        assert engine.wait_until_idle()


async def test_what_runs_may_finish_within_the_grace() -> None:
    engine = FakeEngine(hello, pause=0.05)
    app, lifecycle = make_app(engine, grace=5)
    async with client_of(app) as client:
        whole = asyncio.create_task(client.post(CHAT, json={"messages": HI}))
        stream = asyncio.create_task(client.post(CHAT, content=ASK))
        await until(lambda: engine.live == 2)
        lifecycle.begin_shutdown()
        late = await client.post(CHAT, json={"messages": HI})
        assert late.status_code == 503
        assert error_of(late)["code"] == "shutting_down"
        assert (await whole).json()["choices"][0]["finish_reason"] == "stop"
        assert events_of((await stream).text)[-1]["choices"][0]["finish_reason"] == "stop"


async def test_what_still_runs_after_the_grace_is_told() -> None:
    engine = FakeEngine(endless, pause=0.01)
    app, lifecycle = make_app(engine, grace=0.1)
    async with client_of(app) as client:
        whole = asyncio.create_task(client.post(CHAT, json={"messages": HI}))
        stream = asyncio.create_task(client.post(CHAT, content=ASK))
        await until(lambda: engine.live == 2)
        lifecycle.begin_shutdown()
        response = await whole
        assert response.status_code == 503
        assert error_of(response)["code"] == "shutting_down"
        assert events_of((await stream).text)[-1]["error"]["code"] == "shutting_down"
    assert engine.wait_until_idle()


async def test_what_is_prepared_when_the_grace_ends_is_told() -> None:
    engine = FakeEngine()
    leave = threading.Event()
    engine.prepare_hook = lambda: leave.wait(PATIENCE) and None
    app, lifecycle = make_app(engine, grace=0.05)
    async with client_of(app) as client:
        waiting = asyncio.create_task(client.post(CHAT, json={"messages": HI}))
        await until(lambda: len(engine.conversations) == 1)
        lifecycle.begin_shutdown()
        assert error_of(await waiting)["code"] == "shutting_down"
        leave.set()


@pytest.mark.parametrize("grace", [0.0, 0.3])
def test_over_a_socket_a_stopping_server_ends_its_streams(grace: float) -> None:
    engine = FakeEngine(endless, pause=0.01)
    with serving(engine, grace=grace) as running:
        with httpx.stream("POST", running.url + CHAT, content=ASK, timeout=PATIENCE) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            began = time.monotonic()
            running.server.should_exit = True
            rest = "\n".join(lines)
        assert events_of(rest)[-1]["error"]["code"] == "shutting_down"
        assert grace <= time.monotonic() - began < PATIENCE
        running.thread.join(PATIENCE)
        assert not running.thread.is_alive()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{running.url}/health")
    assert engine.wait_until_idle()


async def test_a_plain_uvicorn_that_stops_begins_the_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(endless, pause=0.01)
    app, lifecycle = make_app(engine, grace=0.05)
    call = AsgiCall(app, ASK)
    task = asyncio.create_task(call.run())
    await until(lambda: engine.live == 1)
    monkeypatch.setattr("sse_starlette.sse.AppStatus.should_exit", True)
    await asyncio.wait_for(task, PATIENCE)
    assert lifecycle.stopping
    text = b"".join(message.get("body", b"") for message in call.sent).decode()
    assert events_of(text)[-1]["error"]["code"] == "shutting_down"


async def test_the_setting_says_how_often_a_silent_stream_gets_a_comment() -> None:
    engine = FakeEngine(hello, pause=0.15)
    app, _ = make_app(engine, Settings(server=ServerSettings(keep_alive="50ms")))
    async with client_of(app) as client:
        text = (await client.post(CHAT, content=ASK)).text
    assert text.count(": keep-alive\n\n") >= 3
    assert events_of(text)[-1]["choices"][0]["finish_reason"] == "stop"
