"""What happens in one tick: plan, run, hand tokens to writers, publish. Knows no thread and waits for nobody.

A fault ends the request (or the batch) that it struck, what that wrote is scrubbed, and the loop goes on.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from kaminari.engine.detokenizer import DetokenizerFactory
from kaminari.engine.drawn import Drawn
from kaminari.engine.events import Event, Failed
from kaminari.engine.loading import LoadedModel
from kaminari.engine.requests import Request
from kaminari.engine.runner import Runner
from kaminari.engine.scheduler import DecodeRow, EncodePicture, Job, Scheduler, WorkItem
from kaminari.engine.token_text import TokenText
from kaminari.engine.writer import ChoiceWriter

log = logging.getLogger("kaminari.engine")

FAULT = "the engine failed on this request"
NOT_FINITE = "the model's output for this request was not finite"

News = dict[int, list[Event]]


class EngineLoop:
    """The engine without its thread: requests that run, their scheduler and their runner.

    on_end is called with the id of every request that is over, in whatever way.
    """

    def __init__(self, loaded: LoadedModel, prefill_chunk: int, on_end: Callable[[int], None]) -> None:
        self.scheduler = Scheduler(loaded.info.slots, prefill_chunk)
        self.runner = Runner(loaded.model, loaded.info.slots, loaded.info.context, loaded.end_token_ids)
        self._detokenizers = DetokenizerFactory(loaded.frontend.tokenizer)
        self._token_text = TokenText(loaded.frontend.tokenizer)
        self._end_token_ids = loaded.end_token_ids
        self._requests: dict[int, Request] = {}
        self._on_end = on_end

    @property
    def idle(self) -> bool:
        return not self._requests

    def accept(self, request: Request) -> None:
        """Take a request in. It runs once a slot is free for each of its choices."""
        self._requests[request.id] = request
        try:
            request.writers = {choice: self._writer(request, choice) for choice in range(request.params.n)}
            constraints = [writer.constraint for writer in request.writers.values()]
            self.runner.add(request.id, request.prompt, request.params, request.seed, constraints)
            self.scheduler.add(
                Job(
                    request.id,
                    len(request.prompt.token_ids),
                    request.max_tokens,
                    request.params.n,
                    request.picture_extents(),
                )
            )
        except Exception:
            self._fail([request.id], FAULT)

    def abort(self, request_id: int) -> None:
        """Forget a request wherever it is; its slots are free at once. One that is over is no error."""
        if request_id in self._requests:
            self._drop(request_id)

    def fail_all(self, message: str) -> None:
        """End every request with a failure."""
        for request_id, request in list(self._requests.items()):
            self._drop(request_id)
            request.stream.publish([Failed(message)])

    def step(self) -> None:
        """Run one tick: at most one picture or chunk, then one token for every active row."""
        plan = self.scheduler.plan()
        news: News = defaultdict(list)
        if plan.work is not None:
            self._run_work(plan.work, news)
        if rows := [row for row in plan.decode if row.job in self._requests]:
            self._run_decode(rows, news)
        for request_id, events in news.items():
            if (request := self._requests.get(request_id)) is not None:
                self._publish(request, events)

    def _publish(self, request: Request, events: list[Event]) -> None:
        """Hand a tick's events to the reader; a request that is over is forgotten before its reader knows."""
        if request.written:
            try:
                events.append(request.finished(time.monotonic()))
            except Exception:
                self._fail([request.id], FAULT)
                return
            self._forget(request.id)
        request.stream.publish(events)

    def _writer(self, request: Request, choice: int) -> ChoiceWriter:
        grammar = request.prompt.grammar
        return ChoiceWriter(
            choice,
            self._detokenizers.new(),
            request.params,
            self._end_token_ids,
            request.max_tokens,
            self._token_text,
            None if grammar is None else grammar.new(),
            request.prompt.syntax,
        )

    def _run_work(self, work: WorkItem, news: News) -> None:
        request = self._requests[work.job]
        began = time.monotonic()
        request.started = request.started or began
        try:
            if isinstance(work, EncodePicture):
                self.runner.encode_picture(work)
                request.vision += time.monotonic() - began
            else:
                drawn = self.runner.prefill(work)
                request.prefill += time.monotonic() - began
                if drawn is not None:
                    self._commit(drawn, news)
        except Exception:
            self._fail([work.job], FAULT)

    def _run_decode(self, rows: Sequence[DecodeRow], news: News) -> None:
        try:
            self._commit(self.runner.decode(rows), news)
        except Exception:
            self._fail({row.job for row in rows}, FAULT)

    def _commit(self, drawn: Drawn, news: News) -> None:
        """Hand drawn tokens to their writers. Rows that ended while the step was in flight are dropped."""
        for row in drawn.collect():
            request = self._requests.get(row.job)
            if request is None or request.writers[row.choice].reason is not None:
                continue
            if row.token is None:
                constraint, grammar = request.writers[row.choice].constraint, request.prompt.grammar
                if constraint is not None and constraint.failed and grammar is not None:
                    self._fail([row.job], constraint.complaint, grammar.field)
                else:
                    self._fail([row.job], NOT_FINITE)
                continue
            request.first_token = request.first_token or time.monotonic()
            writer = request.writers[row.choice]
            try:
                news[row.job] += writer.push(row.token, row.logprobs)
                if writer.reason is not None:
                    self.scheduler.end(row.job, row.choice)
            except Exception:
                self._fail([row.job], FAULT)

    def _fail(self, jobs: Iterable[int], message: str, field: str | None = None) -> None:
        """End requests with a failure; what they wrote is overwritten before anyone else gets the slots.

        `field` is what is at fault in the request, where the engine is not.
        """
        log.error("%s (requests %s)", message, list(jobs), exc_info=message == FAULT)
        for job in jobs:
            if (request := self._requests.get(job)) is None:
                continue
            slots = self._drop(job)
            try:
                self.runner.scrub(slots)
            except Exception:
                log.exception("slots %s could not be scrubbed", slots)
            request.stream.publish([Failed(message, field)])

    def _drop(self, request_id: int) -> tuple[int, ...]:
        """Take a request that is not over out of everything. Returns the slots that it held."""
        slots = self.scheduler.drop(request_id)
        self._forget(request_id)
        return slots

    def _forget(self, request_id: int) -> None:
        del self._requests[request_id]
        self.runner.forget(request_id)
        self._on_end(request_id)
