"""The reader's end of a request: events leave the engine's thread here, once per step.

One stream has one reader, which iterates either blocking (`for`) or asynchronously: event by event
(`async for`), or by all that has gathered since its last look (`batches`), so that a reader who is late
catches up at once. The engine's thread only appends; it never waits for a reader.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass

from kaminari.engine.events import Event, Failed, Finished


@dataclass(frozen=True, slots=True)
class _Reader:
    """An asynchronous reader: its event loop, and what wakes it there."""

    loop: asyncio.AbstractEventLoop
    arrived: asyncio.Event


class EventStream:
    """Events of one request, ended by `Finished` or `Failed` (or by nothing more after `abort`)."""

    def __init__(self, on_abort: Callable[[], None]) -> None:
        self._on_abort = on_abort
        self._events: deque[Event] = deque()
        self._ready = threading.Condition()
        self._reader: _Reader | None = None
        self._ended = False
        self._aborted = False
        self._has_reader = False

    def publish(self, events: Iterable[Event]) -> None:
        """Append events and wake the reader once. Called by the engine's thread."""
        publish_all([(self, events)])

    def _append(self, events: Iterable[Event]) -> _Reader | None:
        """Append events; return the reader that is to be woken on its event loop."""
        with self._ready:
            for event in events:
                self._events.append(event)
                self._ended = self._ended or isinstance(event, Finished | Failed)
            self._ready.notify()
            return self._reader

    def abort(self) -> None:
        """Stop the request: its slots are free within one engine step. Safe at any time, and again."""
        with self._ready:
            if self._ended or self._aborted:
                return
            self._aborted = True
        self._on_abort()
        with self._ready:
            self._ready.notify()
            reader = self._reader
        if reader is not None:
            _wake([reader])

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
                self._reader = None
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
        async with aclosing(self.batches()) as batches:
            async for events in batches:
                for event in events:
                    yield event

    async def batches(self) -> AsyncGenerator[list[Event], None]:
        """What has gathered, in order and never empty, as soon as there is anything."""
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        with self._reading():
            with self._ready:
                self._reader = _Reader(loop, arrived)
            over = False
            while not over:
                arrived.clear()
                with self._ready:
                    events, over = self._take()
                if events:
                    yield events
                if not over:
                    await arrived.wait()


def publish_all(news: Iterable[tuple[EventStream, Iterable[Event]]]) -> None:
    """Append events to their streams; the readers of one event loop are woken together, by one call."""
    readers = [reader for stream, events in news if (reader := stream._append(events)) is not None]
    if readers:
        _wake(readers)


def _wake(readers: Sequence[_Reader]) -> None:
    for loop in {reader.loop for reader in readers}:
        arrived = [reader.arrived for reader in readers if reader.loop is loop]
        with suppress(RuntimeError):  # the loop is closed, and its readers with it
            loop.call_soon_threadsafe(_set_all, arrived)


def _set_all(arrived: Iterable[asyncio.Event]) -> None:
    for event in arrived:
        event.set()
