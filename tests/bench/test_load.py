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
from kaminari.bench.step_counts import StepCounts, Steps, read_counts
from kaminari.config import DtypeChoice, EngineSettings, ModelSettings, Settings
from kaminari.config.units import spell
from kaminari.engine.step_clock import PARTS
from tests.bench.harness import LIMITS, bench_of

OPTIONS = Options(tokens=5, requests=2, clients=(1, 2), pictures_share=0.5)


@pytest.fixture
def asks(tiny_checkpoint: Path) -> list[Ask]:
    bench = bench_of(tiny_checkpoint, OPTIONS)
    return serve.asks(bench, OURS, "kaminari-demo", 6, 0)


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
    assert bench.recorder.shares == []
    for figure in (one, two, opened):
        assert figure.values["first_p50"] <= figure.values["first_p95"] <= figure.seconds.high
        assert figure.values["pictures_per_second"] > 0


def test_a_profile_of_a_load_is_the_servers_own_count(demo_url: str, tiny_checkpoint: Path) -> None:
    options = Options(tokens=8, requests=2, clients=(1, 2), pictures_share=0.0, profile=True)
    bench = bench_of(tiny_checkpoint, options)
    serve._closed(bench, OURS, RunningServer(demo_url, 0.0, 0.0), serve._Floors(bench))
    for figure in bench.recorder.figures(LIMITS):
        values = figure.values
        spent = {
            share.component: share.seconds for share in bench.recorder.shares if share.case == figure.case
        }
        assert set(spent) == set(PARTS)
        assert all(seconds > 0 for seconds in spent.values())
        assert 1 <= values["rows_per_step"] <= figure.case["clients"]
        device = sum(spent[part] for part in ("forward", "sample", "collect"))
        assert values["device_seconds_per_step"] == pytest.approx(device)
        assert values["host_seconds_per_row"] == values["host_seconds_per_step"] / values["rows_per_step"]


def test_a_load_without_a_step_has_nothing_to_attribute(demo_url: str, tiny_checkpoint: Path) -> None:
    options = Options(tokens=1, requests=1, clients=(1,), pictures_share=0.0, profile=True)
    bench = bench_of(tiny_checkpoint, options)
    serve._closed(bench, OURS, RunningServer(demo_url, 0.0, 0.0), serve._Floors(bench))
    assert bench.recorder.shares == []
    assert "no time to attribute" in bench.recorder.notes[0]


def test_parts_are_what_came_between_two_counts() -> None:
    before = StepCounts({"forward": 1.0, "plan": 2.0}, steps=10, rows=20)
    after = StepCounts({"forward": 3.0, "plan": 3.0, "sample": 1.0}, steps=14, rows=32)
    steps = Steps.between(before, after, wall=6.0)
    assert steps == Steps(1.5, {"forward": 0.5, "plan": 0.25, "sample": 0.25}, 3.0)
    assert steps.values == {
        "rows_per_step": 3.0,
        "device_seconds_per_step": 0.75,
        "host_seconds_per_step": 0.75,
        "host_seconds_per_row": 0.25,
    }
    assert Steps.between(before, before, wall=1.0) is None


@pytest.mark.parametrize("said", [None, "# nothing\n", "kaminari_step_seconds_total 1\n", "{ broken"])
def test_a_server_that_does_not_count_is_an_error_of_the_load(
    said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(address: str, **_: object) -> httpx.Response:
        status = 404 if said is None else 200
        return httpx.Response(status, text=said or "", request=httpx.Request("GET", address))

    monkeypatch.setattr(httpx, "get", answer)
    with pytest.raises(LoadError, match="/metrics say nothing of its steps"):
        read_counts("http://127.0.0.1:9/v1")


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
