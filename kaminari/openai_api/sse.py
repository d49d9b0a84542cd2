"""Server-sent events: chunks out, an error event where the engine fails, exactly one `[DONE]`, and care for
readers that leave or stop reading."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import anyio
import orjson
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from kaminari.openai_api.engine_protocol import AnswerStream
from kaminari.openai_api.lifecycle import Lifecycle

log = logging.getLogger("kaminari.http")

DONE = b"data: [DONE]\n\n"
_AFTER_GRACE_SECONDS = 2.0


def data(value: dict[str, Any]) -> bytes:
    """One event, on one line."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


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
        super().__init__(
            events,
            sep="\n",
            ping=keep_alive,
            ping_message_factory=_keep_alive,
            send_timeout=send_timeout,
            data_sender_callable=self._pass_on_shutdown,
            shutdown_event=self._stopping,
            shutdown_grace_period=lifecycle.grace + _AFTER_GRACE_SECONDS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # the lifecycle must know of the stream even if the body's iterator never starts
        with self._lifecycle.running(self._stream):
            try:
                await super().__call__(scope, receive, send)
            except SendTimeoutError:
                log.warning("a client took nothing for %g s: its stream is dropped", self.send_timeout)

    async def _pass_on_shutdown(self) -> None:
        """A server that is not ours (plain uvicorn) announces its end through this response only."""
        await self._stopping.wait()
        self._lifecycle.begin_shutdown()


def _keep_alive() -> ServerSentEvent:
    return ServerSentEvent(comment="keep-alive", sep="\n")
