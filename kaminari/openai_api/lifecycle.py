"""Where the server stands: loading, ready, or on its way out. Holds the engine once there is one.

A shutdown has two moments. It begins: nothing new is taken, and what runs goes on. Its grace ends: what
still runs is aborted, and each reader learns that the server is going.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from kaminari.engine.info import EngineInfo, EngineStatus
from kaminari.openai_api import errors
from kaminari.openai_api.engine_protocol import AnswerStream, Engine
from kaminari.openai_api.metrics import Metrics


class Lifecycle:
    """Shared by the server and its handlers. Event-loop only, except `attach` and `hurry`.

    work_left:  the application has ended, and a worker is still in the middle of something that cannot be
                stopped, such as a large picture
    """

    def __init__(self, *, grace: float) -> None:
        """`grace` is in seconds."""
        self.grace = grace
        self.engine: Engine | None = None
        self.metrics = Metrics(self._glance)
        self.stopping = False
        self.work_left = False
        self.grace_over = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._streams: set[AnswerStream] = set()

    def attach(self, engine: Engine) -> None:
        """The engine is loaded: requests are served from now on. Safe from any thread."""
        self.engine = engine

    def _glance(self) -> tuple[EngineInfo, EngineStatus] | None:
        return None if self.engine is None else (self.engine.info, self.engine.status())

    def require_engine(self) -> Engine:
        """The engine, or an `ApiError` 503 while there is none to take a request."""
        if self.stopping:
            raise errors.shutting_down()
        if self.engine is None:
            raise errors.loading()
        return self.engine

    @contextmanager
    def running(self, stream: AnswerStream) -> Iterator[None]:
        """The stream is aborted when the block is left, however that happens, or when the grace ends."""
        self._streams.add(stream)
        try:
            if self.grace_over.is_set():
                stream.abort()
            yield
        finally:
            self._streams.discard(stream)
            stream.abort()

    def begin_shutdown(self) -> None:
        """Take nothing new, and abort what still runs after the grace. Safe to call again."""
        if self.stopping:
            return
        self.stopping = True
        self._loop = asyncio.get_running_loop()
        self._loop.call_later(self.grace, self._end_grace)

    def hurry(self) -> None:
        """End the grace of a shutdown that has begun, or is about to. Safe from a signal handler."""
        self.grace = 0.0
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end_grace)

    def _end_grace(self) -> None:
        self.grace_over.set()
        for stream in tuple(self._streams):
            stream.abort()
