"""Reads a request's body with a bound while reading. Never parses it."""

from __future__ import annotations

from contextlib import aclosing

from starlette.requests import Request

from kaminari.openai_api.errors import ApiError

_NOT_JSON_TYPES = ("multipart/", "image/", "audio/", "video/", "font/", "model/")
_NOT_JSON = {
    "application/x-www-form-urlencoded",
    "application/xml",
    "text/xml",
    "text/html",
    "text/csv",
    "application/pdf",
    "application/zip",
}


def check_content_type(request: Request) -> None:
    """Raise a 415 for a body that says of itself that it is not JSON. No type at all is fine."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(415, "compressed bodies are not supported", code="unsupported_media_type")
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type in _NOT_JSON or media_type.startswith(_NOT_JSON_TYPES):
        raise ApiError(
            415,
            "the body must be JSON, sent with the header `Content-Type: application/json`",
            code="unsupported_media_type",
        )


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body of at most `limit` bytes.

    Raises a 413 as soon as the body is known to be longer, and `ClientDisconnect`.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limit):
        raise _too_large(limit)
    body = bytearray()
    async with aclosing(request.stream()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413, f"the body is larger than this server takes ({limit} bytes)", code="request_too_large"
    )
