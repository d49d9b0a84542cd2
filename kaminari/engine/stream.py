"""The reader's end of a request: events leave the engine's thread here, once per step.

One stream has one reader, which iterates either blocking (`for`) or asynchronously (`async for`). The
engine's thread only appends; it never waits for a reader.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from kaminari.engine.events import Event, Failed, Finished


class EventStream:
    """Events of one request, ended by `Finished` or `Failed` (or by nothing more after `abort`)."""

    def __init__(self, on_abort: Callable[[], None]) -> None:
        self._on_abort = on_abort
        self._events: deque[Event] = deque()
        self._ready = threading.Condition()
        self._wake: Callable[[], None] | None = None
        self._ended = False
        self._aborted = False
        self._has_reader = False

    def publish(self, events: Iterable[Event]) -> None:
        """Append events and wake the reader once. Called by the engine's thread."""
        with self._ready:
            for event in events:
                self._events.append(event)
                self._ended = self._ended or isinstance(event, Finished | Failed)
            self._ready.notify()
            wake = self._wake
        if wake is not None:
            wake()

    def abort(self) -> None:
        """Stop the request: its slots are free within one engine step. Safe at any time, and again."""
        with self._ready:
            if self._ended or self._aborted:
                return
            self._aborted = True
        self._on_abort()
        with self._ready:
            self._ready.notify()
            wake = self._wake
        if wake is not None:
            wake()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Be the reader; the request ends with it. Raises `RuntimeError` for a second one beside it."""
        with self._ready:
            if self._has_reader:
                raise RuntimeError("a stream of events has one reader")
            self._has_reader = True
        try:
            yield
        finally:
            with self._ready:
                self._has_reader = False
                self._wake = None
            self.abort()

    def _take(self) -> tuple[list[Event], bool]:
        """Return what has arrived, and whether that is all there will be. Call with the lock held."""
        events = list(self._events)
        self._events.clear()
        return events, self._ended or self._aborted

    def __iter__(self) -> Iterator[Event]:
        with self._reading():
            over = False
            while not over:
                with self._ready:
                    self._ready.wait_for(lambda: self._events or self._ended or self._aborted)
                    events, over = self._take()
                yield from events

    async def __aiter__(self) -> AsyncIterator[Event]:
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed, and its reader with it
                loop.call_soon_threadsafe(arrived.set)

        with self._reading():
            with self._ready:
                self._wake = wake
            over = False
            while not over:
                arrived.clear()
                with self._ready:
                    events, over = self._take()
                for event in events:
                    yield event
                if not over:
                    await arrived.wait()
