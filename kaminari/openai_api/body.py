"""Reads the bodies of requests with bounds while reading: on each, and on all together. Never parses them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, contextmanager

from starlette.requests import Request

from kaminari.engine.errors import QueueFull
from kaminari.openai_api import errors
from kaminari.openai_api.errors import ApiError
from kaminari.openai_api.lifecycle import Lifecycle

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
    """Raise a 415 for a body that says of itself that it is not JSON. No type at all is fine, but not from a
    web page: a browser asks nobody before it sends plain text, or what has no type, to any server it reaches.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(415, "compressed bodies are not supported", code="unsupported_media_type")
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    unasked = media_type in ("", "text/plain") and "origin" in request.headers
    if unasked or media_type in _NOT_JSON or media_type.startswith(_NOT_JSON_TYPES):
        raise ApiError(
            415,
            "the body must be JSON, sent with the header `Content-Type: application/json`",
            code="unsupported_media_type",
        )


class Bodies:
    """How much the bodies that are in memory may take together, of requests and of pictures."""

    def __init__(self, total: int) -> None:
        """`total` is in bytes."""
        self._left = total

    @contextmanager
    def place(self) -> Iterator[Place]:
        """Room for one request, given back at the end of the block."""
        place = Place(self)
        try:
            yield place
        finally:
            self._left += place.taken

    def take(self, count: int) -> None:
        if count > self._left:
            raise QueueFull("the bodies of requests take all the memory that they may")
        self._left -= count


class Place:
    """The room of one request's bodies. `taken` is in bytes."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self.taken = 0

    def take(self, count: int) -> None:
        """Raises `QueueFull`."""
        self._bodies.take(count)
        self.taken += count


async def read_body(
    request: Request, limit: int, patience: float, lifecycle: Lifecycle, place: Place
) -> bytes:
    """Return the body of at most `limit` bytes.

    Raises a 413 as soon as the body is known to be longer, a 408 where nothing of it came for `patience`
    seconds, a 503 where the grace of a shutdown ends first, `QueueFull` where other bodies take all the
    memory, and `ClientDisconnect`.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > limit):
        raise _too_large(limit)
    reading = asyncio.ensure_future(_read(request, limit, patience, place))
    closing = asyncio.ensure_future(lifecycle.grace_over.wait())
    try:
        await asyncio.wait((reading, closing), return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            return reading.result()
        raise errors.shutting_down()
    finally:
        reading.cancel()
        closing.cancel()
        await asyncio.gather(reading, closing, return_exceptions=True)


async def _read(request: Request, limit: int, patience: float, place: Place) -> bytes:
    body = bytearray()
    try:
        async with aclosing(request.stream()) as chunks, asyncio.timeout(patience) as timer:
            async for chunk in chunks:
                timer.reschedule(asyncio.get_running_loop().time() + patience)
                if len(body) + len(chunk) > limit:
                    raise _too_large(limit)
                place.take(len(chunk))
                body += chunk
    except TimeoutError as error:
        raise ApiError(
            408, f"nothing of the body came for {patience:g} seconds", code="request_timeout"
        ) from error
    return bytes(body)


def _too_large(limit: int) -> ApiError:
    return ApiError(
        413, f"the body is larger than this server takes ({limit} bytes)", code="request_too_large"
    )
