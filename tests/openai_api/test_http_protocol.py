"""Connections by hand: what is not HTTP, what comes too slowly, and who closes its half of the socket."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kaminari.openai_api import http_protocol
from kaminari.openai_api.http_protocol import HttpProtocol
from tests.openai_api.fake_engine import FakeEngine, endless
from tests.openai_api.harness import CHAT, HI, Running, events_of, serving
from tests.patience import PATIENCE

GOOD = json.dumps({"messages": HI}).encode()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(FakeEngine(), max_body="1MiB") as served:
        yield served


def head(*lines: str, method: str = "POST", path: str = CHAT, version: str = "1.1") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/{version}", *lines, "", ""]).encode("latin-1")


def connect(running: Running) -> socket.socket:
    host, port = running.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def everything(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    got = b""
    while piece := connection.recv(65536):
        got += piece
    return got


def exchange(running: Running, *pieces: bytes) -> bytes:
    with connect(running) as connection:
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(0.01)
        return everything(connection)


def refusal_of(raw: bytes, status: int) -> dict[str, Any]:
    """The error object of an answer that ends its connection."""
    top, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = top.decode("latin-1").split("\r\n")
    assert first.split()[:2] == ["HTTP/1.1", str(status)], raw[:200]
    headers = dict(line.lower().split(": ", 1) for line in lines)
    assert headers["content-type"] == "application/json"
    assert headers["content-length"] == str(len(body))
    assert headers["connection"] == "close"
    assert re.fullmatch(r"req-[0-9a-f]{32}", headers["x-request-id"])
    error: dict[str, Any] = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


NOT_HTTP = {
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00secret\r\n\r\n",
    "no version": b"GET /health\r\n\r\n",
    "no host": head(),
    "two hosts": head("Host: a", "Host: b"),
    "space before colon": head("Host: a", "X : secret"),
    "bare newline in a value": head("Host: a", "X: sec\x00ret"),
    "negative length": head("Host: a", "Content-Length: -5"),
    "length of letters": head("Host: a", "Content-Length: secret"),
    "length with a sign": head("Host: a", "Content-Length: +5"),
    "two lengths": head("Host: a", "Content-Length: 5", "Content-Length: 6"),
    "length beyond reason": head("Host: a", "Content-Length: " + "9" * 40),
    "control character in the path": b"GET /hea\x01lth HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("name", NOT_HTTP)
def test_what_is_not_http_gets_an_error_object(running: Running, name: str) -> None:
    error = refusal_of(exchange(running, NOT_HTTP[name]), 400)
    assert error["code"] == "invalid_http"
    assert "secret" not in error["message"]


def test_a_transfer_encoding_that_nobody_knows_is_a_501(running: Running) -> None:
    refusal_of(exchange(running, head("Host: a", "Transfer-Encoding: gzip")), 501)


@pytest.mark.parametrize(
    "lines", [["X: " + "y" * 100_000], [f"X-{place}: y" for place in range(10_000)]], ids=["long", "many"]
)
def test_a_head_without_bound_is_a_431(running: Running, lines: list[str]) -> None:
    raw = head("Host: a", *lines)
    error = refusal_of(exchange(running, raw[:80_000]), 431)
    assert error["code"] == "head_too_large"


@pytest.mark.parametrize(
    "chunk", [b"zz\r\n", b"-1\r\n", b"5\r\nabc\r\n0\r\n\r\n", b"f" * 30 + b"\r\n", b"5;" + b"x" * 100_000]
)
def test_a_broken_chunk_is_refused_and_nothing_is_queued(running: Running, chunk: bytes) -> None:
    start = head("Host: a", "Transfer-Encoding: chunked")
    raw = exchange(running, start + b"1\r\n{\r\n", chunk)
    assert raw.split()[1] in (b"400", b"431")


def test_garbage_after_an_early_answer_only_closes(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """The application has refused the body as too large, and what follows of it is no chunk."""
    start = head("Host: a", "Transfer-Encoding: chunked")
    with caplog.at_level(logging.ERROR), connect(running) as connection:
        connection.sendall(start + b"200000\r\n" + b" " * 0x200000 + b"\r\n")
        got = connection.recv(65536)
        assert got.split()[1] == b"413"
        connection.sendall(b"zz\r\n")
        with contextlib.suppress(ConnectionError):
            everything(connection)
    assert caplog.records == []


def test_the_next_connection_is_served_after_all_of_it(running: Running) -> None:
    for raw in NOT_HTTP.values():
        exchange(running, raw)
    with httpx.Client(base_url=running.url, verify=False) as client:
        assert client.post(CHAT, content=GOOD).status_code == 200


@pytest.mark.parametrize("upgrade", ["h2c", "websocket"])
def test_an_upgrade_is_not_taken_and_not_warned_of(
    running: Running, upgrade: str, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"Connection": "Upgrade", "Upgrade": upgrade}
    with caplog.at_level(logging.WARNING), httpx.Client(base_url=running.url, verify=False) as client:
        assert client.post(CHAT, content=GOOD, headers=headers).status_code == 200
    assert caplog.records == []


def test_a_head_that_drips_is_a_408_and_a_silent_connection_is_closed(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.2)
    with connect(running) as silent, connect(running) as dripping, connect(running) as late:
        late.sendall(head("Host: a", method="GET", path="/health"))
        answer = b""
        while not answer.endswith(b"}"):
            answer += late.recv(65536)
        began = time.monotonic()
        late.sendall(b"POST ")
        while time.monotonic() - began < 0.15:
            dripping.sendall(b"G")
            time.sleep(0.02)
        assert refusal_of(everything(dripping), 408)["code"] == "request_timeout"
        assert everything(silent) == b""
        assert refusal_of(everything(late), 408)
        assert time.monotonic() - began < PATIENCE


def test_a_connection_that_waits_for_its_next_request_is_not_hurried(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.1)
    with httpx.Client(base_url=running.url, verify=False) as client:
        first = client.get("/health")
        time.sleep(0.3)
        second = client.get("/health")
        streams = {response.extensions["network_stream"] for response in (first, second)}
    assert len(streams) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_closes_its_half_has_left(stream: bool) -> None:
    """A half-closed socket looks the same as a closed one, so the slot is given back at once."""
    engine = FakeEngine(endless, pause=0.005)
    body = json.dumps({"messages": HI, "stream": stream}).encode()
    with serving(engine) as running, connect(running) as connection:
        connection.sendall(head("Host: a", f"Content-Length: {len(body)}") + body)
        deadline = time.monotonic() + PATIENCE
        while engine.live == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        connection.shutdown(socket.SHUT_WR)
        assert engine.wait_until_idle()
        assert engine.aborted == 1


def test_pipelined_requests_are_answered_in_order(running: Running) -> None:
    ask = head("Host: a", method="GET", path="/v1/models")
    last = head("Host: a", "Connection: close", method="GET", path="/nowhere")
    raw = exchange(running, ask * 3 + last)
    assert re.findall(rb"HTTP/1.1 (\d+)", raw) == [b"200", b"200", b"200", b"404"]


def test_a_smuggled_request_is_not_seen(running: Running) -> None:
    """Chunks count and a length beside them does not; what follows may be meant as a part of the body."""
    inner = head("Host: a", method="GET", path="/metrics")
    for before in (b"", head("Host: a", method="GET", path="/health")):
        start = head("Host: a", f"Content-Length: {5 + len(inner)}", "Transfer-Encoding: chunked")
        raw = exchange(running, before + start + b"0\r\n\r\n" + inner)
        assert re.findall(rb"HTTP/1.1 (\d+)", raw)[-1] == b"400"
        assert b"kaminari_up" not in raw


def test_a_stream_over_http_1_0_ends_with_its_connection(running: Running) -> None:
    body = json.dumps({"messages": HI, "stream": True}).encode()
    raw = exchange(running, head(f"Content-Length: {len(body)}", version="1.0") + body)
    top, _, text = raw.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in top.lower()
    assert events_of(text.decode())


def test_the_server_uses_this_protocol(running: Running) -> None:
    assert running.server.config.http_protocol_class is HttpProtocol
