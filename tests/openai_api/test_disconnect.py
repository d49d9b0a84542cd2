"""A client that leaves takes its request with it: while it waits, prepares or runs, streamed or not."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest

from kaminari.config import EngineSettings, PictureSettings, Settings
from kaminari.engine.errors import QueueFull
from kaminari.openai_api.workers import Workers
from tests.openai_api.fake_engine import FakeEngine, endless
from tests.openai_api.harness import CHAT, HI, AsgiCall, client_of, error_of, make_app, serving, until
from tests.patience import PATIENCE


def body(**fields: Any) -> bytes:
    return json.dumps({"messages": HI, **fields}).encode()


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_while_it_runs_aborts(stream: bool) -> None:
    engine = FakeEngine(endless, pause=0.005)
    app, _ = make_app(engine)
    call = AsgiCall(app, body(stream=stream))
    task = asyncio.create_task(call.run())
    await until(lambda: engine.live == 1 and (len(call.sent) > 3 or not stream))
    call.gone.set()
    await asyncio.wait_for(task, PATIENCE)
    assert engine.wait_until_idle()
    assert engine.aborted == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_handler_aborts(stream: bool) -> None:
    engine = FakeEngine(endless, pause=0.005)
    app, _ = make_app(engine)
    task = asyncio.create_task(AsgiCall(app, body(stream=stream)).run())
    await until(lambda: engine.live == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.wait_until_idle()
    assert engine.aborted == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_handler_that_is_cancelled_as_it_submits_aborts(stream: bool) -> None:
    engine = FakeEngine(endless, pause=0.005)
    app, _ = make_app(engine)
    task = asyncio.create_task(AsgiCall(app, body(stream=stream)).run())
    engine.submit_hook = lambda: task.cancel() and None
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.wait_until_idle()
    assert engine.aborted == 1


async def test_a_stream_whose_first_header_cannot_be_sent_aborts() -> None:
    engine = FakeEngine(endless, pause=0.005)
    app, _ = make_app(engine)
    call = AsgiCall(app, body(stream=True))

    async def broken(message: Any) -> None:
        raise OSError("gone")

    call.send = broken  # type: ignore[method-assign]
    with pytest.raises(OSError, match="gone"):
        await call.run()
    assert engine.wait_until_idle()
    assert engine.aborted == 1


async def test_leaving_while_it_is_prepared_queues_nothing() -> None:
    engine = FakeEngine()
    entered, leave = threading.Event(), threading.Event()

    def slow() -> None:
        entered.set()
        leave.wait(PATIENCE)

    engine.prepare_hook = slow
    app, _ = make_app(engine)
    call = AsgiCall(app, body())
    task = asyncio.create_task(call.run())
    await until(entered.is_set)
    call.gone.set()
    await asyncio.wait_for(task, PATIENCE)
    leave.set()
    await asyncio.sleep(0.05)
    assert engine.params == []


async def test_leaving_before_the_body_is_there_is_quiet() -> None:
    engine = FakeEngine()
    app, _ = make_app(engine)
    call = AsgiCall(app, b"")
    call.gone.set()
    call._given = True
    await call.run()
    assert engine.conversations == []


async def test_the_event_loop_stays_free_while_requests_are_prepared() -> None:
    engine = FakeEngine()
    leave = threading.Event()
    engine.prepare_hook = lambda: leave.wait(PATIENCE) and None
    app, _ = make_app(engine, Settings(pictures=PictureSettings(workers=2)))
    async with client_of(app) as client:
        posts = [asyncio.create_task(client.post(CHAT, json={"messages": HI})) for _ in range(8)]
        await until(lambda: len(engine.conversations) == 2)
        for _ in range(10):
            assert (await client.get("/health")).status_code == 200
        assert not any(post.done() for post in posts)
        leave.set()
        assert {(await post).status_code for post in posts} == {200}


async def test_too_many_requests_in_preparation_are_refused_at_once() -> None:
    engine = FakeEngine()
    leave = threading.Event()
    engine.prepare_hook = lambda: leave.wait(PATIENCE) and None
    settings = Settings(pictures=PictureSettings(workers=1), engine=EngineSettings(queue_size=3))
    app, _ = make_app(engine, settings)
    async with client_of(app) as client:
        posts = [asyncio.create_task(client.post(CHAT, json={"messages": HI})) for _ in range(10)]
        await until(lambda: sum(post.done() for post in posts) == 6)
        leave.set()
        answers = [await post for post in posts]
        assert [answer.status_code for answer in answers].count(200) == 4
        refused = [answer for answer in answers if answer.status_code == 503]
        assert {error_of(answer)["code"] for answer in refused} == {"queue_full"}
        assert (await client.post(CHAT, json={"messages": HI})).status_code == 200


async def test_a_cancelled_job_leaves_its_place() -> None:
    workers = Workers(threads=1, waiting=1)
    leave = threading.Event()
    running = asyncio.create_task(workers.run(lambda: leave.wait(PATIENCE)))
    waiting = asyncio.create_task(workers.run(lambda: pytest.fail("it was cancelled")))
    await asyncio.sleep(0.01)
    with pytest.raises(QueueFull):
        await workers.run(lambda: None)
    waiting.cancel()
    await asyncio.sleep(0.01)
    third = asyncio.create_task(workers.run(lambda: 3))
    await asyncio.sleep(0.01)
    leave.set()
    assert await third == 3
    assert await running is True
    workers.close()


@pytest.mark.parametrize("stream", [False, True])
def test_over_a_socket_every_slot_comes_back(stream: bool) -> None:
    engine = FakeEngine(endless, pause=0.005)
    with serving(engine) as running:
        for _ in range(engine.info.slots + 5):
            timeout = httpx.Timeout(10, read=10 if stream else 0.1)
            with httpx.Client(base_url=running.url, timeout=timeout, verify=False) as client:
                if stream:
                    with client.stream("POST", CHAT, content=body(stream=True)) as response:
                        next(response.iter_lines())
                else:
                    with pytest.raises(httpx.ReadTimeout):
                        client.post(CHAT, content=body())
        assert engine.wait_until_idle()
        assert engine.aborted == engine.info.slots + 5


async def test_a_storm_of_clients_that_leave_leaves_no_task_and_no_slot_behind() -> None:
    engine = FakeEngine(endless, pause=0.002)
    app, _ = make_app(engine)
    # the first stream that begins starts sse-starlette's one watcher for the event loop
    first = AsgiCall(app, body(stream=True))
    streaming = asyncio.create_task(first.run())
    await until(lambda: len(first.sent) > 1)
    first.gone.set()
    await streaming
    before = asyncio.all_tasks()
    for number in range(60):
        call = AsgiCall(app, body(stream=bool(number % 2)))
        task = asyncio.create_task(call.run())
        await asyncio.sleep(number % 7 * 0.002)
        if number % 3:
            call.gone.set()
        else:
            task.cancel()
        await asyncio.wait([task])
    assert await asyncio.to_thread(engine.wait_until_idle)
    await until(lambda: asyncio.all_tasks() == before)
