"""Load on a real server: what its streams held, and what goes wrong is told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from kaminari.bench import serve
from kaminari.bench.load import Ask, LoadError, closed_loop, open_loop
from kaminari.bench.options import Options
from kaminari.bench.result import OURS
from kaminari.bench.server_process import RunningServer, free_port, own_environment, own_line, running
from kaminari.config import DtypeChoice, EngineSettings, ModelSettings, Settings
from kaminari.config.units import spell
from tests.bench.harness import LIMITS, bench_of

OPTIONS = Options(tokens=5, requests=2, clients=(1, 2), pictures_share=0.5)


@pytest.fixture
def asks(tiny_checkpoint: Path) -> list[Ask]:
    bench = bench_of(tiny_checkpoint, OPTIONS)
    return serve.asks(bench, "kaminari-demo", 6, 0)


def test_half_of_the_requests_hold_a_picture(asks: list[Ask]) -> None:
    assert [ask.pictures for ask in asks] == [0, 1, 0, 1, 0, 1]
    assert len({ask.body for ask in asks}) == 6


def test_a_closed_loop_answers_everything_once(demo_url: str, asks: list[Ask]) -> None:
    load = closed_loop(demo_url, asks, 3)
    assert len(load.answers) == 6
    assert sum(answer.pictures for answer in load.answers) == 3
    for answer in load.answers:
        assert answer.tokens == 5
        assert 0 < answer.first <= answer.whole <= load.seconds
        assert sum(answer.gaps) <= answer.whole - answer.first + 1e-6
    assert load.client > 0


def test_an_open_loop_does_not_wait_for_answers(demo_url: str, asks: list[Ask]) -> None:
    load = open_loop(demo_url, asks, rate=500.0)
    assert len(load.answers) == 6
    # with everything sent at once, the last answers waited for the first ones
    assert sum(answer.whole for answer in load.answers) > load.seconds


def test_a_refusal_is_an_error_of_the_load(demo_url: str) -> None:
    with pytest.raises(LoadError, match="HTTP 400"):
        closed_loop(demo_url, [Ask(json.dumps({"messages": []}).encode(), 0)], 1)


def test_a_server_that_is_not_there_is_an_error_of_the_load() -> None:
    with pytest.raises(LoadError, match="ConnectError"):
        closed_loop("http://127.0.0.1:9/v1", [Ask(b"{}", 0)], 1)


@pytest.fixture
def cut_short() -> Iterator[str]:
    """A server whose streams end without their end."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    event = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
    started = asyncio.new_event_loop()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(b"{}"))  # a close with something unread would be a reset
        writer.write(head + event)
        await writer.drain()
        writer.close()

    server = started.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0))
    thread = threading.Thread(target=started.run_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    started.call_soon_threadsafe(server.close)
    started.call_soon_threadsafe(started.stop)
    thread.join()
    started.close()


def test_a_stream_without_its_end_is_an_error_of_the_load(cut_short: str) -> None:
    with pytest.raises(LoadError, match="ended early"):
        closed_loop(cut_short, [Ask(b"{}", 0)], 1)


def test_every_level_is_recorded(demo_url: str, tiny_checkpoint: Path) -> None:
    bench = bench_of(tiny_checkpoint, OPTIONS)
    server = RunningServer(demo_url, 0.0, 0.0)
    reached = serve._closed(bench, OURS, server, serve._Floors(bench))
    serve._open(bench, OURS, server, 0.7 * reached)
    one, two, opened = bench.recorder.figures(LIMITS)
    assert one.case == {"loop": "closed", "clients": 1}
    assert two.case == {"loop": "closed", "clients": 2}
    assert opened.case["loop"] == "open"
    assert two.seconds.count == 4
    assert one.values["limit_tokens_per_second"] > 0
    assert "limit_tokens_per_second" not in opened.values
    for figure in (one, two, opened):
        assert figure.values["first_p50"] <= figure.values["first_p95"] <= figure.seconds.high
        assert figure.values["pictures_per_second"] > 0


def test_a_server_gets_the_same_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KAMINARI_SERVER__PORT", "1")
    settings = Settings(
        model=ModelSettings.model_validate({"source": str(tmp_path)}),
        engine=EngineSettings(slots=3, threads=1),
    )
    environment = own_environment(settings)
    own = {name: value for name, value in environment.items() if name.startswith("KAMINARI_")}
    assert own == {
        "KAMINARI_MODEL__SOURCE": spell(settings.model.source),
        "KAMINARI_ENGINE__SLOTS": "3",
        "KAMINARI_ENGINE__THREADS": "1",
    }


def test_a_server_of_its_own_is_ready_when_it_is_handed_over_and_gone_afterwards() -> None:
    port = free_port()
    settings = Settings(
        model=ModelSettings(dtype=DtypeChoice.FLOAT32), engine=EngineSettings(slots=1, context=64, threads=1)
    )
    with running(OURS, own_line(port), port, own_environment(settings)) as server:
        models = httpx.get(f"{server.url}/models", trust_env=False).json()
        assert models["data"][0]["id"] == "kaminari-demo"
        assert server.ready > 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/models", trust_env=False)
