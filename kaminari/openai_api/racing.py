"""Runs the work of a request only as long as somebody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from kaminari.openai_api import errors
from kaminari.openai_api.lifecycle import Lifecycle

ResultT = TypeVar("ResultT")


async def while_wanted(work: Coroutine[Any, Any, ResultT], request: Request, lifecycle: Lifecycle) -> ResultT:
    """Return what `work` returns, or raise what it raises.

    Cancels it and raises `ClientDisconnect` where the client leaves first, and a 503 where the grace of a
    shutdown ends first. The request's body must have been read: from then on only the leaving is heard of.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    closing = asyncio.ensure_future(lifecycle.grace_over.wait())
    everything: list[Awaitable[Any]] = [working, leaving, closing]
    try:
        await asyncio.wait((working, leaving, closing), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if leaving.done():
            raise ClientDisconnect
        raise errors.shutting_down()
    finally:
        for task in (working, leaving, closing):
            task.cancel()
        await asyncio.gather(*everything, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
