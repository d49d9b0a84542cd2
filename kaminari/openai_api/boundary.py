"""The outermost layer: every response carries a request id, and no exception leaves without a 500.

Pure ASGI, so that a stream passes through untouched.
"""

from __future__ import annotations

import logging
import re
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kaminari.openai_api.errors import internal

log = logging.getLogger("kaminari.http")

REQUEST_ID = "x-request-id"
_SANE = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def request_id(scope: Scope) -> str:
    """The id of the request that `Boundary` let in."""
    value: str = scope["state"]["request_id"]
    return value


class Boundary:
    """Names each request (the client's own `x-request-id` where it is sane) and catches what escapes."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        asked = Headers(scope=scope).get(REQUEST_ID, "")
        name = asked if _SANE.fullmatch(asked) else f"req-{uuid4().hex}"
        scope.setdefault("state", {})["request_id"] = name
        started = False

        async def send_named(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)[REQUEST_ID] = name
            await send(message)

        try:
            await self.app(scope, receive, send_named)
        except Exception:
            log.exception("request %s failed", name)
            if started:
                raise
            await internal(name).response()(scope, receive, send_named)
