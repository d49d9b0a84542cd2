"""The engine's door and its thread: requests in, events out.

    submit()  --inbox-->  thread: EngineLoop  --streams-->  readers

One thread owns the device, loads the model and runs the loop. Everything asynchronous stays outside: requests
reach it over a bounded inbox, events leave it once per step.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch

from kaminari.config import Settings
from kaminari.engine.conversation import Conversation
from kaminari.engine.errors import ContextLengthExceeded, EngineUnavailable, QueueFull, RequestError
from kaminari.engine.events import Failed
from kaminari.engine.heap import IdleHeap, trimmer
from kaminari.engine.info import EngineInfo, EngineStatus
from kaminari.engine.loading import LoadedModel, Progress, load_model
from kaminari.engine.loop import EngineLoop
from kaminari.engine.params import SamplingParams
from kaminari.engine.prompt import PreparedPrompt
from kaminari.engine.requests import Request
from kaminari.engine.stream import EventStream

log = logging.getLogger("kaminari.engine")

CLOSING = "the server is shutting down"
DEAD = "the engine has stopped"
ARRIVAL_SECONDS = 0.02
"""From a prepared prompt to its submission, at most, as far as others give way to it."""
HELD_SECONDS = 0.005
"""A tick in which nothing runs, since all that could gives way."""


@dataclass(frozen=True, slots=True)
class _Abort:
    request: int


@dataclass(frozen=True, slots=True)
class _Close:
    pass


class Engine:
    """A loaded model that answers requests. Made by `Engine.load`; close it, or use it in a `with` block.

    >>> with Engine.load() as engine:
    ...     prompt = engine.prepare(Conversation.ask("What is 3+4?"))
    ...     for event in engine.submit(prompt, SamplingParams(temperature=0)):
    ...         print(event)
    """

    def __init__(self, build: Callable[[], LoadedModel], *, queue_size: int, stall_after: float) -> None:
        """Start the thread and wait until `build`, called on it, has made the model.

        Whatever `build` raises is raised here. `stall_after` is in seconds.
        """
        self._queue_size = queue_size
        self._stall_after = stall_after
        self._inbox: queue.SimpleQueue[Request | _Abort | _Close] = queue.SimpleQueue()
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._open: dict[int, Request] = {}
        self._accepting = True
        self._expected = 0
        self._expected_until = 0.0
        self._last_progress = time.monotonic()
        outcome: queue.SimpleQueue[tuple[LoadedModel, EngineLoop] | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._main, args=(build, outcome), name="kaminari-engine", daemon=True
        )
        self._thread.start()
        made = outcome.get()
        if isinstance(made, BaseException):
            self._thread.join()
            raise made
        loaded, self._loop = made
        self.info: EngineInfo = loaded.info
        self.frontend = loaded.frontend
        # a thread that is inside torch when the interpreter goes takes the process down with it
        atexit.register(self.close)

    @classmethod
    def load(cls, settings: Settings | None = None, progress: Progress | None = None) -> Self:
        """Load the model that the settings name (by default the embedded demo) and start the engine.

        `progress` is called with (bytes loaded, bytes in all). Raises `CheckpointError` for a checkpoint that
        cannot be served, `CapacityError` where it does not fit and `PlacementError` for a missing device.
        """
        settings = settings or Settings()
        return cls(
            lambda: load_model(settings, progress),
            queue_size=settings.engine.queue_size,
            stall_after=settings.engine.stall_after.total_seconds(),
        )

    def prepare(self, conversation: Conversation) -> PreparedPrompt:
        """Decode, resize, render and tokenize. Slow: call it from a worker thread. Raises `RequestError`."""
        return self.frontend.prepare(conversation)

    def prepare_text(self, prompt: str | Sequence[int], field: str = "prompt") -> PreparedPrompt:
        """Make a prompt of plain text or of token ids, without the chat template. Raises `RequestError`."""
        if not isinstance(prompt, str):
            self._check_ids(prompt, field)
        return self.frontend.texts.prepare(prompt, field)

    def decode(self, token_ids: Sequence[int], field: str = "tokens") -> str:
        """The text of token ids, control tokens spelled out. Raises `RequestError`."""
        self._check_ids(token_ids, field)
        return self.frontend.texts.decode(token_ids)

    def token_names(self, token_ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary has it."""
        return self.frontend.texts.names(token_ids)

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Hold while a prompt is prepared whose answer will be watched: those that are not give way to it
        as if it ran. Any thread.
        """
        with self._lock:
            self._expected += 1
        try:
            yield
        finally:
            with self._lock:
                self._expected -= 1
                self._expected_until = time.monotonic() + ARRIVAL_SECONDS

    def submit(self, prompt: PreparedPrompt, params: SamplingParams, *, watched: bool = True) -> EventStream:
        """Queue a request and return its events. Never blocks.

        One that is not watched (nobody reads its events before the last) gives way to those that are.

        Raises `RequestError` for what cannot run here, `QueueFull` and `EngineUnavailable`.
        """
        tokens = len(prompt.token_ids)
        if tokens >= self.info.context:
            raise ContextLengthExceeded(tokens, self.info.context)
        params.check_vocabulary(self.info.vocab_size)
        if params.n > self.info.choices:
            raise RequestError(f"n must be at most {self.info.choices}", field="n")
        room = self.info.context - tokens
        request_id = next(self._ids)
        request = Request(
            request_id,
            prompt,
            params,
            max_tokens=min(room, params.max_tokens or room),
            seed=secrets.randbits(63) if params.seed is None else params.seed,
            stream=EventStream(on_abort=lambda: self._inbox.put(_Abort(request_id))),
            submitted=time.monotonic(),
            watched=watched,
        )
        if not self._thread.is_alive():  # nor is it in a fork of the process
            raise EngineUnavailable(DEAD)
        with self._lock:
            if not self._accepting:
                raise EngineUnavailable(DEAD)
            if self._waiting() >= self._queue_size:
                raise QueueFull(f"{self._queue_size} requests are waiting already")
            if not self._open:
                self._last_progress = request.submitted
            if watched:
                self._expected_until = 0.0
            self._open[request_id] = request
            self._inbox.put(request)
        return request.stream

    def status(self) -> EngineStatus:
        """A glance at the engine from any thread."""
        alive = self._thread.is_alive()
        with self._lock:
            waiting, in_all = self._waiting(), len(self._open)
            silence = time.monotonic() - self._last_progress
        return EngineStatus(
            alive=alive,
            stalled=alive and in_all > 0 and silence > self._stall_after,
            waiting=waiting,
            running=in_all - waiting,
            free_slots=self._loop.scheduler.slots.free,
            counts=self._loop.clock.counts(),
        )

    def close(self) -> None:
        """End all requests with a failure and stop the thread. Safe to call again."""
        atexit.unregister(self.close)
        self._inbox.put(_Close())
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_ids(self, token_ids: Sequence[int], field: str) -> None:
        size = self.info.vocab_size
        if not all(0 <= token < size for token in token_ids):
            raise RequestError(f"{field} must be made of token ids from 0 to {size - 1}", field=field)

    def _waiting(self) -> int:
        """Requests that have not started. Call with the lock held."""
        return sum(not request.started for request in self._open.values())

    def _main(
        self,
        build: Callable[[], LoadedModel],
        outcome: queue.SimpleQueue[tuple[LoadedModel, EngineLoop] | BaseException],
    ) -> None:
        """The engine's thread."""
        with torch.inference_mode():
            try:
                loaded = build()
                loop = EngineLoop(loaded, self._ended)
                loop.runner.warm_up()
                heap = IdleHeap(trimmer(loaded.model.device))
            except BaseException as error:
                outcome.put(error)
                return
            outcome.put((loaded, loop))
            message = DEAD
            try:
                while self._receive(loop, heap):
                    loop.expecting = self._expected > 0 or time.monotonic() < self._expected_until
                    loop.step()
                    heap.worked()
                    self._last_progress = time.monotonic()
                message = CLOSING
            except Exception:
                log.exception("the engine's loop ended")
            finally:
                self._refuse_all(message)

    def _receive(self, loop: EngineLoop, heap: IdleHeap) -> bool:
        """Take in what has arrived, waiting for it where there is nothing to do. False once closed."""
        held = loop.held
        while True:
            idle = loop.idle
            try:
                item = self._inbox.get(idle or held, heap.due if idle else HELD_SECONDS)
                held = False
            except queue.Empty:
                if not idle:
                    return True
                heap.idle()
                continue
            if isinstance(item, _Close):
                return False
            if isinstance(item, _Abort):
                loop.abort(item.request)
            else:
                loop.accept(item)

    def _ended(self, request_id: int) -> None:
        with self._lock:
            del self._open[request_id]

    def _refuse_all(self, message: str) -> None:
        """Take no more requests, and fail those that are here. Also after the loop itself broke."""
        with self._lock:
            self._accepting = False
            left = list(self._open.values())
            self._open.clear()
        for request in left:
            request.stream.publish([Failed(message)])
