"""Threads for the slow half of a request: parsing, decoding pictures, templating, tokenizing.

Bounded twice: so many threads, and so many jobs that may wait for one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kaminari.engine.errors import QueueFull

ResultT = TypeVar("ResultT")


class Workers:
    """A pool that refuses work instead of piling it up."""

    def __init__(self, threads: int, waiting: int) -> None:
        """`waiting` jobs may wait beside the `threads` that run."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kaminari-worker")
        self._most = threads + waiting
        self._jobs = 0
        self._running = 0
        self._lock = threading.Lock()

    async def run(self, job: Callable[[], ResultT]) -> ResultT:
        """Run a job and return its result, or raise what it raises. Raises `QueueFull`.

        Cancelling drops a job that waits; one that runs goes on in its thread, and its result is dropped.
        """
        if self._jobs >= self._most:
            raise QueueFull(f"{self._most} requests are being prepared already")
        self._jobs += 1
        future = self._pool.submit(self._count, job)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: self._done(loop))
        return await asyncio.wrap_future(future)

    def _count(self, job: Callable[[], ResultT]) -> ResultT:
        with self._lock:
            self._running += 1
        try:
            return job()
        finally:
            with self._lock:
                self._running -= 1

    def _done(self, loop: asyncio.AbstractEventLoop) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._forget_one)

    def _forget_one(self) -> None:
        self._jobs -= 1

    def close(self) -> bool:
        """Drop what waits. What runs is not waited for; True where something still does."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            return self._running > 0
