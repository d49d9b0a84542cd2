"""What happens in one tick: plan, run, hand tokens to writers, publish. Knows no thread and no tensor.

A fault ends the request (or the batch) that it struck, what that wrote is scrubbed, and the loop goes on.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection

from kaminari.engine.detokenizer import DetokenizerFactory
from kaminari.engine.drawn import DrawnToken
from kaminari.engine.events import Event, Failed
from kaminari.engine.loading import LoadedModel
from kaminari.engine.pipeline import Pipeline
from kaminari.engine.requests import Request
from kaminari.engine.runner import Runner
from kaminari.engine.scheduler import DecodeStep, EncodePicture, Job, Scheduler, WorkItem
from kaminari.engine.step_clock import StepClock
from kaminari.engine.stream import EventStream, publish_all
from kaminari.engine.token_text import TokenText
from kaminari.engine.writer import ChoiceWriter

log = logging.getLogger("kaminari.engine")

FAULT = "the engine failed on this request"
NOT_FINITE = "the model's output for this request was not finite"


class EngineLoop:
    """The engine without its thread: requests that run, their scheduler, their runner, the pipeline between.

    on_end is called with the id of every request that is over, in whatever way.

    expecting:  a watched request is about to come; prompts that nobody watches give way to it already
    held:       the last tick ran nothing, and what there is to do gives way
    """

    def __init__(self, loaded: LoadedModel, on_end: Callable[[int], None]) -> None:
        info = loaded.info
        self.clock = StepClock()
        self.scheduler = Scheduler(info.slots, info.prefill_chunk)
        self.runner = Runner(
            loaded.model,
            info.slots,
            info.context,
            loaded.end_token_ids,
            self.clock,
            overlap=info.pipeline_depth > 1,
        )
        self.pipeline = Pipeline(self.scheduler, self.runner, self, info.pipeline_depth, self.clock)
        self._detokenizers = DetokenizerFactory(loaded.frontend.tokenizer)
        self._token_text = TokenText(loaded.frontend.tokenizer)
        self._end_token_ids = loaded.end_token_ids
        self._requests: dict[int, Request] = {}
        self._news: dict[int, list[Event]] = defaultdict(list)
        self._on_end = on_end
        self.expecting = False
        self.held = False

    @property
    def idle(self) -> bool:
        return not self._requests and not self.pipeline.in_flight

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
                    watched=request.watched,
                )
            )
        except Exception:
            self.fail([request.id])

    def abort(self, request_id: int) -> None:
        """Forget a request wherever it is. Its slots are free once nothing on them is in flight.

        One that is over is no error.
        """
        if request_id in self._requests:
            self._drop(request_id)

    def fail_all(self, message: str) -> None:
        """End every request with a failure."""
        for request_id, request in list(self._requests.items()):
            self._drop(request_id)
            request.stream.publish([Failed(message)])

    def step(self) -> None:
        """Run one tick: at most one picture or chunk, then one token for every active row."""
        self.clock.start()
        plan = self.scheduler.plan(expecting=self.expecting)
        self.held = not plan and not self.pipeline.in_flight
        self.clock.lap("plan")
        if plan.work is not None:
            request = self._requests[plan.work.job]
            request.started = request.started or time.monotonic()
            self.pipeline.advance(plan.work)
        if plan.decode:
            self.pipeline.advance(DecodeStep(plan.decode))
        if not plan:
            self.pipeline.drain()

    def commit(self, token: DrawnToken) -> None:
        """Hand a drawn token to its writer."""
        request = self._requests[token.job]
        writer = request.writers[token.choice]
        if token.token is None:
            constraint, grammar = writer.constraint, request.prompt.grammar
            if constraint is not None and constraint.failed and grammar is not None:
                self._fail([token.job], constraint.complaint, grammar.field)
            else:
                self._fail([token.job], NOT_FINITE)
            return
        request.first_token = request.first_token or time.monotonic()
        try:
            self._news[token.job] += writer.push(token.token, token.logprobs)
            if writer.reason is not None:
                self.scheduler.end(token.job, token.choice)
        except Exception:
            self.fail([token.job])

    def fail(self, jobs: Collection[int]) -> None:
        """End requests because of the exception that is being handled."""
        self._fail(jobs, FAULT)

    def worked(self, item: WorkItem, seconds: float) -> None:
        """Count the time that an item of a request took."""
        if (request := self._requests.get(item.job)) is not None:
            if isinstance(item, EncodePicture):
                request.vision += seconds
            else:
                request.prefill += seconds

    def committed(self) -> None:
        """Hand an item's events to their readers; a request that is over is forgotten before that."""
        news, self._news = self._news, defaultdict(list)
        ready: list[tuple[EventStream, list[Event]]] = []
        for request_id, events in news.items():
            if (request := self._requests.get(request_id)) is None:
                continue
            if request.written:
                try:
                    events.append(request.finished(time.monotonic()))
                except Exception:
                    self.fail([request.id])
                    continue
                self._forget(request.id)
            ready.append((request.stream, events))
        publish_all(ready)
        self.clock.lap("publish")

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

    def _fail(self, jobs: Collection[int], message: str, field: str | None = None) -> None:
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
