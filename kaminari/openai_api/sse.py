"""Server-sent events: chunks out, an error event where the engine fails, exactly one `[DONE]`, and care for
readers that leave or stop reading."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import anyio
import orjson
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Message, Receive, Scope, Send

from kaminari.openai_api.engine_protocol import AnswerStream
from kaminari.openai_api.lifecycle import Lifecycle

log = logging.getLogger("kaminari.http")

DONE = b"data: [DONE]\n\n"
WRITE_BYTES = 1 << 16
_AFTER_GRACE_SECONDS = 2.0


def data(value: dict[str, Any]) -> bytes:
    """One event, on one line."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def together(events: Iterable[bytes]) -> Iterator[bytes]:
    """Join events that wait already, so that one write sends them; a write of `WRITE_BYTES` is full."""
    waiting: list[bytes] = []
    size = 0
    for event in events:
        waiting.append(event)
        size += len(event)
        if size >= WRITE_BYTES:
            yield b"".join(waiting)
            waiting.clear()
            size = 0
    if waiting:
        yield b"".join(waiting)


class StreamResponse(EventSourceResponse):
    """Sends encoded events. The engine's stream is aborted when the response ends, however it ends.

    A server that stops lets the stream go on for the lifecycle's grace; the lifecycle then aborts it, and
    what is left of the body (an error event and `[DONE]`) still goes out.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        stream: AnswerStream,
        lifecycle: Lifecycle,
        *,
        send_timeout: float,
        keep_alive: float,
    ) -> None:
        """`send_timeout` and `keep_alive` (between two comments) are in seconds."""
        self._stream = stream
        self._lifecycle = lifecycle
        self._stopping = anyio.Event()
        self._patience = send_timeout
        self._sends: dict[int, float] = {}
        super().__init__(
            events,
            sep="\n",
            ping=keep_alive,
            ping_message_factory=_keep_alive,
            data_sender_callable=self._watch,
            shutdown_event=self._stopping,
            shutdown_grace_period=lifecycle.grace + _AFTER_GRACE_SECONDS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def timed(message: Message) -> None:
            """Send, and let `_watch` see for how long."""
            self._sends[id(message)] = time.monotonic()
            try:
                await send(message)
            finally:
                del self._sends[id(message)]

        # the lifecycle must know of the stream even if the body's iterator never starts
        with self._lifecycle.running(self._stream):
            try:
                await super().__call__(scope, receive, timed)
            except SendTimeoutError:
                log.warning("a client took nothing for %g s: its stream is dropped", self._patience)

    async def _watch(self) -> None:
        """Give a reader up who keeps a send waiting for too long, and pass a shutdown on.

        A server that is not ours (plain uvicorn) announces its end through this response only.
        """
        while True:
            now = time.monotonic()
            left = min(self._sends.values(), default=now) + self._patience - now
            if left <= 0:
                raise SendTimeoutError
            with anyio.move_on_after(left):
                await self._stopping.wait()
                self._lifecycle.begin_shutdown()
                await anyio.sleep_forever()

    async def _send_with_timeout(self, send: Send, message: Message) -> None:
        """The library's sets a timer for every event; here `_watch` is all that is needed."""
        await send(message)


def _keep_alive() -> ServerSentEvent:
    return ServerSentEvent(comment="keep-alive", sep="\n")
