"""A client's connection: uvicorn's, with the API's manners where a request never reaches the application.

What is not HTTP gets an error object too, and a request's head must arrive in time. Never looks into a body.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from uuid import uuid4

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from kaminari.openai_api.boundary import REQUEST_ID
from kaminari.openai_api.errors import ApiError

HEAD_SECONDS = 30.0
"""From a connection, or from a later request's first byte, to the end of the request's head."""

_REFUSALS = {
    400: ApiError(
        400,
        "the request is not valid HTTP/1.1: check its first line, Host, Content-Length and Transfer-Encoding",
        code="invalid_http",
    ),
    408: ApiError(
        408, f"the request's head did not arrive within {HEAD_SECONDS:g} seconds", code="request_timeout"
    ),
    431: ApiError(431, "the request's head is larger than this server takes", code="head_too_large"),
    501: ApiError(501, "this server knows no transfer encoding but chunked", code="invalid_http"),
}


def _is_framed_twice(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a body has both a length and chunks. Chunks count; a proxy may have thought otherwise, so that
    what follows must not be read as a request (RFC 9112, 6.1).
    """
    return {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}


class HttpProtocol(H11Protocol):
    """One connection."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        self._watch_head()
        if self.cycle is not None and _is_framed_twice(self.headers):
            self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        """Refuse what h11 cannot read; uvicorn calls this while it handles h11's exception."""
        fault = sys.exc_info()[1]
        self._refuse(fault.error_status_hint if isinstance(fault, h11.RemoteProtocolError) else 400)

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade that is not taken is no event: HTTP/1.1 goes on. Some clients ask each time."""

    def _watch_head(self) -> None:
        begun, _ = self.conn.trailing_data
        due = self.conn.their_state is h11.IDLE and (self.cycle is None or bool(begun))
        if not due or self.transport.is_closing():
            self._forget_head()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        begun, _ = self.conn.trailing_data
        if begun:
            self._refuse(408)
        else:
            self.transport.close()

    def _refuse(self, status: int) -> None:
        """Answer in place of the application, and close. Where it has begun to answer, only close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = _REFUSALS.get(status, _REFUSALS[400]).response()
            headers = [
                *self.server_state.default_headers,
                *response.raw_headers,
                (REQUEST_ID.encode(), f"req-{uuid4().hex}".encode()),
                (b"connection", b"close"),
            ]
            for event in (
                h11.Response(
                    status_code=response.status_code,
                    headers=headers,
                    reason=STATUS_PHRASES[response.status_code],
                ),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
