"""`scripts/test --clients open-webui`: Open WebUI in front of kaminari, driven as its page drives it.

Runs in Open WebUI's own environment, against the server of `OPENAI_BASE_URL`. It talks to Open WebUI's HTTP
API and socket, never to its inside. It prints what it sees and ends with 1 at the first thing that is wrong.
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import socketio
from slots import Slots

MODEL = "kaminari-demo"
RECEIPT = Path(__file__).parents[2] / "examples" / "receipt.png"
QUESTION = "Read the text."
START_SECONDS = 300
TURN_SECONDS = 60
TURNS = 7
BACKGROUND = {"title_generation": True, "tags_generation": True, "follow_up_generation": True}
# the tools that Open WebUI builds in take 18,745 of the demo's tokens, and its context has 2,048
WITHOUT_TOOLS = {"function_calling": "legacy", "temperature": 0}


def picture_url() -> str:
    return "data:image/png;base64," + base64.b64encode(RECEIPT.read_bytes()).decode()


class Page:
    """What a browser's tab does: sends turns over HTTP, gets everything else over the socket."""

    def __init__(self, http: httpx.AsyncClient, sio: socketio.AsyncClient) -> None:
        self.http = http
        self._sio = sio
        self._events: dict[str, list[tuple[float, dict[str, Any]]]] = {}
        self._changed = asyncio.Condition()
        sio.on("events", self._on_event)

    async def _on_event(self, event: dict[str, Any]) -> None:
        async with self._changed:
            self._events.setdefault(event["chat_id"], []).append((time.monotonic(), event["data"]))
            self._changed.notify_all()

    async def send(self, picture: bool = True, tasks: bool = True, **params: Any) -> str:
        """Start a chat with one turn; return its id."""
        text = QUESTION if picture else "hello"
        files = [{"type": "image", "url": picture_url()}] if picture else []
        turn = {
            "stream": True,
            "model": MODEL,
            "messages": [{"role": "user", "content": text}],
            "params": {**WITHOUT_TOOLS, **params},
            "session_id": self._sio.sid,
            "parent_id": None,
            "id": str(uuid.uuid4()),
            "user_message": {
                "id": str(uuid.uuid4()),
                "parentId": None,
                "role": "user",
                "content": text,
                "files": files,
                "timestamp": int(time.time()),
                "models": [MODEL],
            },
            "background_tasks": BACKGROUND if tasks else {},
        }
        answer = await self.http.post("/api/chat/completions", json=turn)
        answer.raise_for_status()
        chat: str = answer.json()["chat_id"]
        return chat

    async def wait(self, chat: str, kind: str, **holds: Any) -> float:
        """Wait for an event of a chat and return when it came. Raises `AssertionError` on an error event."""

        def found() -> float | None:
            for at, event in self._events.get(chat, []):
                assert event["type"] != "chat:message:error", event
                data = event.get("data")
                if event["type"] == kind and (not holds or holds.items() <= dict(data).items()):
                    return at
            return None

        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(lambda: found() is not None), TURN_SECONDS)
        at = found()
        assert at is not None
        return at

    def of(self, chat: str, kind: str) -> list[Any]:
        return [event.get("data") for _, event in self._events.get(chat, []) if event["type"] == kind]

    async def turn(self, tasks: bool) -> float:
        """Seconds from sending a chat's first turn to the end of its answer."""
        began = time.monotonic()
        chat = await self.send(tasks=tasks)
        seconds = await self.wait(chat, "chat:completion", done=True) - began
        await self.wait(chat, "chat:active", active=False)
        return seconds


@contextmanager
def serving(kaminari: str) -> Iterator[str]:
    """Run Open WebUI in front of a server, without accounts or anything to fetch; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "DATA_DIR": folder,
            "WEBUI_AUTH": "False",
            "WEBUI_SECRET_KEY": secrets.token_hex(32),
            "OPENAI_API_BASE_URL": kaminari,
            "OPENAI_API_KEY": "none",
            "ENABLE_OLLAMA_API": "False",
            "OFFLINE_MODE": "True",
            "HF_HUB_OFFLINE": "1",
            "RAG_EMBEDDING_ENGINE": "openai",
            "ANONYMIZED_TELEMETRY": "False",
            "GLOBAL_LOG_LEVEL": "ERROR",
        }
        program = Path(sys.executable).with_name("open-webui")
        command = [str(program), "serve", "--host", "127.0.0.1", "--port", str(port)]
        with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL) as server:
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                server.terminate()


@asynccontextmanager
async def page(address: str) -> AsyncIterator[Page]:
    """A tab of a signed-in user."""
    async with httpx.AsyncClient(base_url=address, timeout=60) as http:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if (await http.get("/health")).is_success:
                    break
            except httpx.TransportError:
                assert time.monotonic() < deadline, "Open WebUI did not start"
            await asyncio.sleep(0.5)
        signed_in = await http.post("/api/v1/auths/signin", json={"email": "", "password": ""})
        token = signed_in.raise_for_status().json()["token"]
        http.headers["Authorization"] = f"Bearer {token}"
        sio = socketio.AsyncClient()
        await sio.connect(
            address, socketio_path="/ws/socket.io", transports=["websocket"], auth={"token": token}
        )
        try:
            tab = Page(http, sio)
            await sio.call("user-join", {"auth": {"token": token}})
            yield tab
        finally:
            await sio.disconnect()


async def whole_answer(kaminari: str) -> str:
    """What the server says to the same question without Open WebUI."""
    picture = {"type": "image_url", "image_url": {"url": picture_url()}}
    parts = [{"type": "text", "text": QUESTION}, picture]
    body = {"messages": [{"role": "user", "content": parts}], "temperature": 0}
    async with httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(f"{kaminari}/chat/completions", json=body)
    text: str = answer.raise_for_status().json()["choices"][0]["message"]["content"]
    return text


async def lists_the_model(tab: Page) -> None:
    models = (await tab.http.get("/api/models")).raise_for_status().json()["data"]
    assert [model["id"] for model in models] == [MODEL]
    print("lists the model")


async def streams_a_chat_and_titles_it(tab: Page, slots: Slots, kaminari: str) -> None:
    expected = await whole_answer(kaminari)
    _, before = slots.figures()
    chat = await tab.send()
    await tab.wait(chat, "chat:completion", done=True)
    await tab.wait(chat, "chat:active", active=False)
    stored = (await tab.http.get(f"/api/v1/chats/{chat}")).raise_for_status().json()
    history = stored["chat"]["history"]
    answer = history["messages"][history["currentId"]]
    assert answer["content"] == expected, answer
    pieces = [
        data
        for data in tab.of(chat, "response:completion")
        if data.get("type") == "response.output_text.delta"
    ]
    assert "".join(piece["delta"] for piece in pieces) == expected, pieces
    assert len(pieces) > 1
    _, after = slots.figures()
    assert after - before == 4, "the turn, its title, its tags and its follow-ups"
    (title,) = tab.of(chat, "chat:title")
    assert stored["title"] == title
    print(f"streams a chat with a picture in {len(pieces)} pieces: {expected!r}")
    print(f"titles it {title!r}; title, tags and follow-ups were one answered request each")


async def the_stop_button_frees_the_slot(tab: Page, slots: Slots) -> None:
    delays = []
    for _ in range(TURNS):
        chat = await tab.send(picture=False, tasks=False, custom_params={"ignore_eos": True})
        await tab.wait(chat, "response:completion")
        assert slots.figures()[0] == 1
        with slots.freed():
            began = time.monotonic()
            (await tab.http.post(f"/api/tasks/chat/{chat}/stop")).raise_for_status()
            await asyncio.to_thread(slots.wait_until_free)
            delays.append(time.monotonic() - began)
        await tab.wait(chat, "chat:active", active=False)
    print(
        f"the stop button frees the slot: median {1000 * statistics.median(delays):.0f} ms, "
        f"worst {1000 * max(delays):.0f} ms of {TURNS}"
    )


async def background_calls_do_not_slow_the_chat(tab: Page) -> None:
    """The same turn with and without its background calls, by turns, so that both meet the same machine."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(TURNS):
        for tasks in (False, True):
            seconds[tasks].append(await tab.turn(tasks))
    without, beside = statistics.median(seconds[False]), statistics.median(seconds[True])
    print(f"a turn takes {1000 * without:.0f} ms alone and {1000 * beside:.0f} ms with its background calls")


async def main() -> None:
    kaminari = os.environ["OPENAI_BASE_URL"]
    slots = Slots(kaminari)
    with serving(kaminari) as address:
        async with page(address) as tab:
            print("Open WebUI", (await tab.http.get("/api/version")).json()["version"])
            await lists_the_model(tab)
            await streams_a_chat_and_titles_it(tab, slots, kaminari)
            await the_stop_button_frees_the_slot(tab, slots)
            await background_calls_do_not_slow_the_chat(tab)


if __name__ == "__main__":
    asyncio.run(main())
