"""Who may call: API keys, and the web pages of which origins (CORS). Pure ASGI.

A key is compared with every key of the settings in constant time, whichever matches, and is never logged or
repeated. `/health` and preflight requests need none.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kaminari.openai_api.boundary import REQUEST_ID
from kaminari.openai_api.errors import ApiError

OPEN_PATHS = frozenset({"/health"})
PREFLIGHT_SECONDS = 600

_BEARER = b"bearer "


class KeyRequired:
    """Answers 401 where a request brings none of the keys, before its body is read."""

    def __init__(self, app: ASGIApp, keys: Sequence[SecretStr]) -> None:
        self.app = app
        self._digests = [_digest(key.get_secret_value().encode("ascii")) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        open_to_all = scope["type"] != "http" or scope["method"] == "OPTIONS" or scope["path"] in OPEN_PATHS
        if open_to_all:
            await self.app(scope, receive, send)
            return
        brought = list(_brought(scope["headers"]))
        # every pair is compared, so that time tells nothing of which key matched or whether one did
        matches = [hmac.compare_digest(_digest(key), known) for key in brought for known in self._digests]
        if any(matches):
            await self.app(scope, receive, send)
            return
        response = _unauthorized(given=bool(brought)).response()
        response.headers["www-authenticate"] = "Bearer"
        await response(scope, receive, send)


class _Cors(CORSMiddleware):
    """Starlette's, with this API's error object for a page that may not call."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        refusal = ApiError(
            400, "web pages of this origin may not make this request; see KAMINARI_SERVER__CORS_ORIGINS"
        ).response()
        kept = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
        refusal.headers.update(kept)
        return refusal


def cors(origins: Sequence[str]) -> Middleware:
    """The layer that lets the web pages of `origins` call the API. It must stand outside all others, so that
    error replies carry its headers too. With "*" a browser sends no cookies and no credentials of its own;
    a key in `Authorization` is allowed either way, since the page itself puts it there.
    """
    everyone = "*" in origins
    return Middleware(
        _Cors,
        allow_origins=["*"] if everyone else list(origins),
        allow_credentials=not everyone,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=[REQUEST_ID, "retry-after"],
        max_age=PREFLIGHT_SECONDS,
    )


def _brought(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[bytes]:
    """The first key in each of the two headers that may hold one."""
    seen: set[bytes] = set()
    for name, value in headers:
        if name in seen:
            continue
        if name == b"authorization":
            seen.add(name)
            if value[: len(_BEARER)].lower() == _BEARER:
                yield value[len(_BEARER) :].strip()
        elif name == b"x-api-key":
            seen.add(name)
            yield value.strip()


def _digest(key: bytes) -> bytes:
    """Of one length for all keys, so that a comparison does not tell how long a key is."""
    return hashlib.sha256(key).digest()


def _unauthorized(*, given: bool) -> ApiError:
    if given:
        return ApiError(401, "the API key is not one of this server's", code="invalid_api_key")
    return ApiError(
        401,
        "an API key is required: send it as `Authorization: Bearer KEY` or `X-Api-Key: KEY`",
        code="invalid_api_key",
    )
