"""The engine: requests in, events out. One thread owns the device and runs the loop.

    submit()  --inbox-->  [ scheduler.plan -> runner -> writers -> scheduler.end ]  --streams-->  readers

Everything asynchronous stays outside. Requests reach the loop over a bounded inbox, and events leave it
once per step. A fault ends the request (or the batch) that it struck, and the loop goes on.
"""

from __future__ import annotations

import itertools
import logging
import queue
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import torch

from kaminari.config import Settings
from kaminari.engine.conversation import Conversation
from kaminari.engine.errors import ContextLengthExceeded, EngineUnavailable, QueueFull, RequestError
from kaminari.engine.events import Event, Failed, Finished, Timings, Usage
from kaminari.engine.frontend import Frontend
from kaminari.engine.info import EngineInfo, EngineStatus
from kaminari.engine.loading import LoadedModel, Progress, load_model
from kaminari.engine.params import SamplingParams
from kaminari.engine.prompt import PreparedPrompt
from kaminari.engine.runner import Drawn, Runner
from kaminari.engine.scheduler import EncodePicture, Job, PrefillChunk, Scheduler, StepPlan, WorkItem
from kaminari.engine.stream import EventStream
from kaminari.engine.writer import ChoiceWriter

log = logging.getLogger("kaminari.engine")

FAULT = "the engine failed on this request"
NOT_FINITE = "the model produced values that are not finite for this request"
CLOSING = "the server is shutting down"
DEAD = "the engine has stopped"


@dataclass(slots=True)
class _Request:
    """A request inside the loop, and the clock of what happened to it (seconds, monotonic)."""

    id: int
    prompt: PreparedPrompt
    params: SamplingParams
    max_tokens: int
    stream: EventStream
    submitted: float
    writers: dict[int, ChoiceWriter] = field(default_factory=dict)
    started: float = 0.0
    vision: float = 0.0
    prefill: float = 0.0
    first_token: float = 0.0

    def finished(self, now: float) -> Finished:
        usage = Usage(
            prompt_tokens=len(self.prompt.token_ids),
            completion_tokens=sum(writer.tokens for writer in self.writers.values()),
            image_tokens=self.prompt.image_tokens,
        )
        timings = Timings(
            preprocess=self.prompt.preprocess_seconds,
            queue=self.started - self.submitted,
            vision=self.vision,
            prefill=self.prefill,
            first_token=self.first_token - self.submitted,
            decode=now - self.first_token,
        )
        return Finished(usage, timings)


@dataclass(frozen=True, slots=True)
class _Abort:
    request: int


@dataclass(frozen=True, slots=True)
class _Close:
    pass


class Engine:
    """A loaded model that answers requests. Use `Engine.load`; close it, or use it in a `with` block.

    >>> with Engine.load() as engine:
    ...     prompt = engine.prepare(Conversation.ask("What is 3+4?"))
    ...     for event in engine.submit(prompt, SamplingParams(temperature=0)):
    ...         print(event)
    """

    info: EngineInfo

    def __init__(
        self, build: Callable[[], LoadedModel], *, prefill_chunk: int, queue_size: int, stall_after: float
    ) -> None:
        """Start the engine's thread and wait until `build`, called on it, has made the model.

        Whatever `build` raises is raised here. `stall_after` is in seconds.
        """
        self._queue_size = queue_size
        self._stall_after = stall_after
        self._prefill_chunk = prefill_chunk
        self._inbox: queue.SimpleQueue[_Request | _Abort | _Close] = queue.SimpleQueue()
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._unstarted = 0
        self._accepting = False
        self._requests: dict[int, _Request] = {}
        self._last_progress = time.monotonic()
        self._loaded: queue.SimpleQueue[LoadedModel | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, args=(build,), name="kaminari-engine", daemon=True)
        self._thread.start()
        outcome = self._loaded.get()
        if isinstance(outcome, BaseException):
            self._thread.join()
            raise outcome
        self.info = outcome.info
        self.frontend: Frontend = outcome.frontend

    @classmethod
    def load(cls, settings: Settings | None = None, progress: Progress | None = None) -> Self:
        """Load the model that the settings name and start the engine.

        Raises `CheckpointError` for a checkpoint that cannot be served and `CapacityError` where it does
        not fit. `progress` is called with (bytes loaded, bytes in all).
        """
        settings = settings or Settings()
        return cls(
            lambda: load_model(settings, progress),
            prefill_chunk=settings.engine.prefill_chunk,
            queue_size=settings.engine.queue_size,
            stall_after=settings.engine.stall_after.total_seconds(),
        )

    def prepare(self, conversation: Conversation) -> PreparedPrompt:
        """Decode, resize, render and tokenize. Slow: call it from a worker thread. Raises `RequestError`."""
        return self.frontend.prepare(conversation)

    def submit(self, prompt: PreparedPrompt, params: SamplingParams) -> EventStream:
        """Queue a request. Raises `RequestError`, `QueueFull` or `EngineUnavailable`; never blocks."""
        tokens = len(prompt.token_ids)
        if tokens >= self.info.context:
            raise ContextLengthExceeded(tokens, self.info.context)
        if params.n > self.info.choices:
            raise RequestError(f"n must be at most {self.info.choices}", field="n")
        room = self.info.context - tokens
        request_id = next(self._ids)
        stream = EventStream(on_abort=lambda: self._inbox.put(_Abort(request_id)))
        request = _Request(
            request_id,
            prompt,
            params,
            max_tokens=min(room, params.max_tokens or room),
            stream=stream,
            submitted=time.monotonic(),
        )
        with self._lock:
            if not self._accepting:
                raise EngineUnavailable(DEAD)
            if self._unstarted >= self._queue_size:
                raise QueueFull(f"{self._queue_size} requests are waiting already")
            if not self._unstarted and not self._requests:
                self._last_progress = request.submitted
            self._unstarted += 1
            self._inbox.put(request)
        return stream

    def status(self) -> EngineStatus:
        """A glance at the engine from any thread."""
        with self._lock:
            waiting, requests = self._unstarted, len(self._requests)
        alive = self._thread.is_alive()
        idle_for = time.monotonic() - self._last_progress
        return EngineStatus(
            alive=alive,
            stalled=alive and waiting + requests > 0 and idle_for > self._stall_after,
            waiting=waiting,
            running=self._scheduler.running,
            free_slots=self._scheduler.slots.free,
        )

    def close(self) -> None:
        """End all requests with a failure and stop the thread. Safe to call again."""
        self._inbox.put(_Close())
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _main(self, build: Callable[[], LoadedModel]) -> None:
        """The engine's thread: load, then run until closed."""
        with torch.inference_mode():
            try:
                loaded = build()
                self._end_token_ids = loaded.end_token_ids
                self._tokenizer = loaded.frontend.tokenizer
                self._scheduler = Scheduler(loaded.info.slots, self._prefill_chunk)
                self._runner = Runner(loaded.model, loaded.info.slots, loaded.info.context)
            except BaseException as error:
                self._loaded.put(error)
                return
            self._accepting = True
            self._loaded.put(loaded)
            message = DEAD
            try:
                while self._receive():
                    self._step()
                message = CLOSING
            except Exception:
                log.exception("the engine's loop ended")
            finally:
                self._end_all(message)

    def _receive(self) -> bool:
        """Take what has arrived; wait for something where there is nothing to do. False once closed."""
        while True:
            idle = not self._requests
            if idle:
                self._last_progress = time.monotonic()
            try:
                item = self._inbox.get(block=idle)
            except queue.Empty:
                return True
            if idle:
                self._last_progress = time.monotonic()
            if isinstance(item, _Close):
                return False
            if isinstance(item, _Abort):
                self._end_request(item.request)
            else:
                self._accept(item)

    def _accept(self, request: _Request) -> None:
        seed = request.params.seed if request.params.seed is not None else secrets.randbits(63)
        request.writers = {
            choice: ChoiceWriter(
                choice, self._tokenizer, request.params, self._end_token_ids, request.max_tokens
            )
            for choice in range(request.params.n)
        }
        with self._lock:
            self._requests[request.id] = request
        try:
            self._runner.add(request.id, request.prompt, request.params, seed)
        except Exception:
            self._fault([request.id], FAULT)
            return
        self._scheduler.add(
            Job(
                request.id,
                len(request.prompt.token_ids),
                request.max_tokens,
                request.params.n,
                pictures=picture_extents(request.prompt),
            )
        )

    def _step(self) -> None:
        plan = self._scheduler.plan()
        if not plan:
            return
        events: dict[int, list[Event]] = defaultdict(list)
        if plan.work is not None:
            self._run_work(plan.work, events)
        self._run_decode(plan, events)
        for request_id, news in events.items():
            request = self._requests.get(request_id)
            if request is None:
                continue
            if all(writer.reason is not None for writer in request.writers.values()):
                news.append(request.finished(time.monotonic()))
                self._forget(request_id)
            request.stream.publish(news)
        self._last_progress = time.monotonic()

    def _run_work(self, work: WorkItem, events: dict[int, list[Event]]) -> None:
        request = self._requests[work.job]
        began = time.monotonic()
        if not request.started:
            request.started = began
            with self._lock:
                self._unstarted -= 1
        try:
            if isinstance(work, EncodePicture):
                self._runner.encode_picture(work)
                request.vision += time.monotonic() - began
                return
            drawn = self._runner.prefill(work)
            if drawn is not None:
                self._commit(drawn, events)
            request.prefill += time.monotonic() - began
        except Exception:
            self._fault([work.job], FAULT, held=work.slots if isinstance(work, PrefillChunk) else ())

    def _run_decode(self, plan: StepPlan, events: dict[int, list[Event]]) -> None:
        rows = [row for row in plan.decode if row.job in self._requests]
        if not rows:
            return
        try:
            self._commit(self._runner.decode(rows), events)
        except Exception:
            self._fault({row.job for row in rows}, FAULT, held=[row.slot for row in rows])

    def _commit(self, drawn: Drawn, events: dict[int, list[Event]]) -> None:
        """Hand the drawn tokens to their writers. Rows that ended while in flight are dropped."""
        for token in drawn.collect():
            request = self._requests.get(token.job)
            if request is None or request.writers[token.choice].reason is not None:
                continue
            if token.token is None:
                self._fault([token.job], NOT_FINITE)
                continue
            if not request.first_token:
                request.first_token = time.monotonic()
            writer = request.writers[token.choice]
            events[token.job] += writer.push(token.token)
            if writer.reason is not None:
                self._scheduler.end(token.job, token.choice)

    def _fault(self, jobs: Iterable[int], message: str, held: Sequence[int] = ()) -> None:
        """End requests with a failure; what they wrote is scrubbed and their slots are free."""
        log.error("%s", message, exc_info=message == FAULT)
        for job in jobs:
            request = self._requests.get(job)
            freed = self._end_request(job)
            try:
                self._runner.scrub({*freed, *held})
            except Exception:
                log.exception("slots could not be scrubbed")
            if request is not None:
                request.stream.publish([Failed(message)])

    def _end_request(self, request_id: int) -> tuple[int, ...]:
        """Forget a request wherever it is. Returns the slots that it held."""
        if request_id not in self._requests:
            return ()
        freed = self._scheduler.drop(request_id)
        self._forget(request_id)
        return freed

    def _forget(self, request_id: int) -> None:
        with self._lock:
            request = self._requests.pop(request_id)
            if not request.started:
                self._unstarted -= 1
        self._runner.forget(request_id)

    def _end_all(self, message: str) -> None:
        """Refuse what comes, and fail what is there."""
        with self._lock:
            self._accepting = False
        left = list(self._requests.values())
        while True:
            try:
                item = self._inbox.get(block=False)
            except queue.Empty:
                break
            if isinstance(item, _Request):
                left.append(item)
        for request in left:
            request.stream.publish([Failed(message)])
        self._requests.clear()


def picture_extents(prompt: PreparedPrompt) -> tuple[tuple[int, int], ...]:
    """(first, last + 1) prompt index of each picture's placeholders."""
    spans = [
        [span for span in prompt.spans if span.picture == index] for index in range(len(prompt.pictures))
    ]
    return tuple((min(s.start for s in own), max(s.stop for s in own)) for own in spans)
