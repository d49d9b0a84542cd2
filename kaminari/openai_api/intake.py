"""From an HTTP request to what an endpoint makes of its body, with every bound and off the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

from kaminari.config import ServerSettings
from kaminari.openai_api.body import Bodies, check_content_type, read_body
from kaminari.openai_api.engine_protocol import Engine
from kaminari.openai_api.lifecycle import Lifecycle
from kaminari.openai_api.media import Media, Preparation
from kaminari.openai_api.racing import while_wanted

ResultT = TypeVar("ResultT")

Prepare = Callable[[bytes, Engine, Media], ResultT]
"""Makes something of a body, on a worker thread. May raise `ApiError`, `RequestError` and `NotFetched`."""


BODIES = 8
"""As many bodies of the largest size may be in memory together, or more of smaller ones, with the pictures
that are fetched for them."""


class Intake:
    """Shared by all endpoints that take a body."""

    def __init__(self, lifecycle: Lifecycle, preparation: Preparation, settings: ServerSettings) -> None:
        self.lifecycle = lifecycle
        self._preparation = preparation
        self._max_body = int(settings.max_body)
        self._bodies = Bodies(BODIES * self._max_body)
        self._timeout = settings.send_timeout.total_seconds()

    async def take(self, http: Request, engine: Engine, prepare: Prepare[ResultT]) -> ResultT:
        """Read the body and prepare it.

        Raises what `prepare` raises, `ApiError`, `QueueFull` and `ClientDisconnect`.
        """
        check_content_type(http)
        with self._bodies.place() as place:
            body = await read_body(http, self._max_body, self._timeout, self.lifecycle, place)
            preparing = self._preparation.run(lambda media: prepare(body, engine, media), place)
            return await while_wanted(preparing, http, self.lifecycle)
