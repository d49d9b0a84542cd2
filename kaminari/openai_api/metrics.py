"""`GET /metrics`: what Prometheus scrapes. Each application has a registry of its own; nothing is global.

Figures of the engine's present state are read when they are asked for; the rest is counted as events and
responses pass. No label holds what a client sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kaminari.engine.events import ChoiceFinished, Delta, Event, Failed, Finished
from kaminari.engine.info import EngineInfo, EngineStatus

_LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)

Glance = Callable[[], tuple[EngineInfo, EngineStatus] | None]


class Metrics:
    """Counters and histograms of one application. Times are in seconds."""

    def __init__(self, glance: Glance) -> None:
        """`glance` tells how the engine stands, or None while there is none."""
        self._registry = CollectorRegistry()
        self._registry.register(_EngineState(glance))
        self._http = self._counter("http_requests", "Responses by path and status.", "path", "status")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens of finished requests.")
        self._image = self._counter("image_tokens", "Those of them that stand for pictures.")
        self._cached = self._counter("cached_tokens", "Those of them that came from a cache.")
        self._completion = self._counter("completion_tokens", "Tokens made.")
        self._finished = self._counter("choices_finished", "Choices that ended, by reason.", "reason")
        self._failures = self._counter("request_failures", "Requests that a fault of the engine ended.")
        self._preprocess = self._histogram("preprocess_seconds", "Decoding, templating, tokenizing.")
        self._queue = self._histogram("queue_seconds", "From submission to a slot.")
        self._prefill = self._histogram("prefill_seconds", "Reading the prompt.")
        self._first = self._histogram("time_to_first_token_seconds", "From submission to the first token.")
        self._gap = self._histogram("inter_token_seconds", "Between two tokens of a choice.", _SHORT)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(f"kaminari_{name}", about, labels, registry=self._registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...] = _LONG) -> Histogram:
        return Histogram(f"kaminari_{name}", about, buckets=buckets, registry=self._registry)

    def responded(self, path: str, status: int) -> None:
        """Count a response. `path` is a route of the application, so that labels stay few."""
        self._http.labels(path, str(status)).inc()

    def meter(self) -> Meter:
        """What measures one request's events."""
        return Meter(self)

    async def handle(self, _: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


class Meter:
    """Sees the events of one request as they pass."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._last: dict[int, float] = {}

    def saw(self, event: Event) -> None:
        metrics = self._metrics
        if isinstance(event, Delta):
            self._tokens(event.choice, len(event.token_ids))
        elif isinstance(event, ChoiceFinished):
            metrics._finished.labels(event.reason.value).inc()
        elif isinstance(event, Failed):
            metrics._failures.inc()
        elif isinstance(event, Finished):
            metrics._prompt.inc(event.usage.prompt_tokens)
            metrics._image.inc(event.usage.image_tokens)
            metrics._cached.inc(event.usage.cached_tokens)
            metrics._preprocess.observe(event.timings.preprocess)
            metrics._queue.observe(event.timings.queue)
            metrics._prefill.observe(event.timings.prefill)
            metrics._first.observe(event.timings.first_token)

    def _tokens(self, choice: int, count: int) -> None:
        """Several tokens that arrive together share the time since the last ones."""
        if not count:
            return
        now = time.monotonic()
        before = self._last.get(choice)
        self._last[choice] = now
        self._metrics._completion.inc(count)
        if before is not None:
            for _ in range(count):
                self._metrics._gap.observe((now - before) / count)


class CountResponses:
    """Counts every response by its route and status. Pure ASGI."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self.app = app
        self._metrics = metrics
        self._paths = frozenset(path for path in paths if "{" not in path)
        self._families = {path.partition("{")[0]: path for path in paths if "{" in path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = self._route(scope["path"])
        counted = False

        async def count(message: Message) -> None:
            nonlocal counted
            if message["type"] == "http.response.start":
                counted = True
                self._metrics.responded(path, message["status"])
            await send(message)

        try:
            await self.app(scope, receive, count)
        except Exception:
            if not counted:
                self._metrics.responded(path, 500)
            raise

    def _route(self, path: str) -> str:
        if path in self._paths:
            return path
        return next((route for start, route in self._families.items() if path.startswith(start)), "other")


class _EngineState(Collector):
    """What is read from the engine at each scrape."""

    def __init__(self, glance: Glance) -> None:
        self._glance = glance

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        seen = self._glance()
        up = seen is not None and seen[1].alive and not seen[1].stalled
        yield GaugeMetricFamily("kaminari_up", "1 while the engine makes progress.", value=up)
        if seen is None:
            return
        info, status = seen
        values = {
            "kaminari_requests_waiting": ("Requests that wait for a slot.", status.waiting),
            "kaminari_requests_running": ("Requests that run.", status.running),
            "kaminari_slots": ("Slots in all.", info.slots),
            "kaminari_slots_free": ("Slots that no request holds.", status.free_slots),
            "kaminari_context_tokens": ("Tokens per slot.", info.context),
        }
        for name, (about, value) in values.items():
            yield GaugeMetricFamily(name, about, value=value)
        about = "What the engine's thread spent its time on; forward and sample are the device's on a CPU."
        seconds = CounterMetricFamily("kaminari_step_seconds", about, labels=["part"])
        for part, spent in status.counts.seconds.items():
            seconds.add_metric([part], spent)
        yield seconds
        yield CounterMetricFamily("kaminari_decode_steps", "Decode steps.", value=status.counts.steps)
        yield CounterMetricFamily("kaminari_decode_rows", "Tokens they drew.", value=status.counts.rows)
