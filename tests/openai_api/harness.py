"""Ways to reach the application: in process with httpx, as raw ASGI, and over a real socket."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.applications import Starlette

from kaminari.config import ServerSettings, Settings
from kaminari.openai_api.app import create_app
from kaminari.openai_api.engine_protocol import Engine
from kaminari.openai_api.lifecycle import Lifecycle
from kaminari.openai_api.server import Server, listen
from tests.patience import PATIENCE

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


def make_app(
    engine: Engine | None, settings: Settings | None = None, *, grace: float = 5.0
) -> tuple[Starlette, Lifecycle]:
    lifecycle = Lifecycle(grace=grace)
    if engine is not None:
        lifecycle.attach(engine)
    return create_app(lifecycle, settings or Settings()), lifecycle


def client_of(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://kaminari")


async def post(engine: Engine, /, **fields: Any) -> httpx.Response:
    """Send one chat request to a fresh application around an engine; `messages` has a default."""
    app, _ = make_app(engine)
    async with client_of(app) as client:
        return await client.post(CHAT, json={"messages": HI, **fields})


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object, after a check of its shape."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


def events_of(text: str) -> list[Any]:
    """The data of each event of a stream, decoded, after a check that exactly one `[DONE]` ends it."""
    data = [line[len("data: ") :] for line in text.split("\n") if line.startswith("data: ")]
    assert data.count("[DONE]") == 1
    assert data[-1] == "[DONE]"
    return [json.loads(item) for item in data[:-1]]


async def until(holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for a condition that another thread makes true."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def until_free(engine: Engine) -> None:
    """Wait for the slots of answers that are over: one may be in flight in a step that nobody needs."""
    await until(lambda: engine.status().free_slots == engine.info.slots)


@dataclass
class AsgiCall:
    """One request by hand, which can leave in the middle. `sent` is what the application sent."""

    app: Any
    body: bytes
    path: str = CHAT
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self._given = False

    async def receive(self) -> dict[str, Any]:
        if not self._given:
            self._given = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def run(self) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in self.headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        await self.app(scope, self.receive, self.send)


@dataclass(frozen=True)
class Running:
    """A server on a real socket; `url` has no path."""

    url: str
    server: Server
    lifecycle: Lifecycle
    thread: threading.Thread

    def stop(self, seconds: float = PATIENCE) -> None:
        self.server.should_exit = True
        self.thread.join(seconds)
        assert not self.thread.is_alive()


@contextmanager
def serving(engine: Engine | None, *, grace: float = 0.2, **server: Any) -> Iterator[Running]:
    """Serve an engine with uvicorn on a free port, on a thread of its own."""
    settings = Settings(server=ServerSettings(port=0, log_level="warning", **server))
    app, lifecycle = make_app(engine, settings, grace=grace)
    listener = listen(settings.server)
    port = listener.getsockname()[1]
    served = Server(app, lifecycle, settings.server)
    thread = threading.Thread(target=served.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    running = Running(f"http://127.0.0.1:{port}", served, lifecycle, thread)
    try:
        deadline = time.monotonic() + PATIENCE
        while not served.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield running
    finally:
        running.stop()
