"""The battery's client against servers that misbehave, over real sockets."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kaminari.smoke.client import MOST_BYTES, ChatClient, ServerError, Unreachable, api_root


@contextmanager
def answering(*pieces: bytes, status: int = 200, pause: float = 0.0) -> Iterator[str]:
    """A server that answers everything with the same bytes, in pieces; yields its API root."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.end_headers()
            try:
                for piece in pieces:
                    self.wfile.write(piece)
                    time.sleep(pause)
            except OSError:  # the client has seen enough
                pass

        do_POST = do_GET

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def said(content: Any) -> bytes:
    return json.dumps({"choices": [{"message": {"content": content}}]}).encode()


def ask(root: str, timeout: float = 5.0) -> str:
    with ChatClient(root, api_key=None, timeout=timeout) as client:
        return client.answer("m", [{"role": "user", "content": "hi"}], 8)


@pytest.mark.parametrize(
    ("typed", "root"),
    [
        ("http://host:8000", "http://host:8000/v1"),
        ("host:8000/", "http://host:8000/v1"),
        ("https://host/v1/", "https://host/v1"),
        ("http://host/api/v3", "http://host/api/v3"),
        ("http://host/v1/chat/completions", "http://host/v1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_the_root_of_what_is_typed(typed: str, root: str) -> None:
    assert api_root(typed) == root


@pytest.mark.parametrize("typed", ["", "http://", "ftp://host", "http://host:port", "http://host/?a=b"])
def test_what_is_no_address_is_refused(typed: str) -> None:
    with pytest.raises(ValueError, match=r"not an HTTP address|[Pp]ort"):
        api_root(typed)


def test_an_answer_and_a_silent_one() -> None:
    with answering(said("hello")) as root:
        assert ask(root) == "hello"
    with answering(said(None)) as root:
        assert ask(root) == ""


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"<html>", "no JSON"),
        (b"[]", "no choices"),
        (b'{"choices": []}', "no choices"),
        (said(["a"]), "not a string"),
        (b"x" * (MOST_BYTES + 1), "more than"),
    ],
)
def test_an_answer_in_another_shape_is_named(body: bytes, problem: str) -> None:
    with answering(body) as root, pytest.raises(ServerError, match=problem):
        ask(root)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"error": {"message": "no such\\nmodel"}}', "no such model"),
        (b"", "no reason given"),
        (b'"a"', '"a"'),
    ],
)
def test_a_refusal_gives_the_servers_reason_in_one_line(body: bytes, reason: str) -> None:
    with answering(body, status=404) as root, pytest.raises(ServerError, match=f"HTTP 404: {reason}$"):
        ask(root)


def test_a_server_that_dribbles_is_cut_off() -> None:
    """Its answer would end well, long after what the client waits."""
    pieces = [b" "] * 400
    with (
        answering(*pieces, said("late"), pause=0.1) as root,
        pytest.raises(ServerError, match=r"within 0\.3 s"),
    ):
        ask(root, timeout=0.3)


def test_nobody_there() -> None:
    with answering() as root:
        gone = root
    with pytest.raises(Unreachable, match="nothing answers at"):
        ask(gone)


@pytest.mark.parametrize("body", [b'{"data": []}', b"{}", b"3"])
def test_a_server_without_models_asks_for_a_name(body: bytes) -> None:
    with (
        answering(body) as root,
        ChatClient(root, api_key=None, timeout=5) as client,
        pytest.raises(ServerError, match="--model"),
    ):
        client.first_model()
