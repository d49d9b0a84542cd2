"""What every endpoint that makes text does: prepare on a worker, submit, and answer whole or as a stream.

Nothing slow runs on the event loop, and nothing runs on for a client that has left. What a body means and how
an answer is worded is the endpoint's own business.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import takewhile

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from kaminari.config import ServerSettings
from kaminari.engine.answer import AnswerBuilder
from kaminari.engine.events import ChoiceFinished, Event, Failed, Finished, FinishReason
from kaminari.engine.params import SamplingParams
from kaminari.engine.prompt import PreparedPrompt
from kaminari.openai_api import errors
from kaminari.openai_api.batch import submit_all
from kaminari.openai_api.boundary import request_id
from kaminari.openai_api.completion import ChunkFormatter, Envelope, Wording, whole_answer
from kaminari.openai_api.engine_protocol import AnswerStream
from kaminari.openai_api.errors import ApiError
from kaminari.openai_api.intake import Intake, Prepare
from kaminari.openai_api.lifecycle import Lifecycle
from kaminari.openai_api.racing import while_wanted
from kaminari.openai_api.responses import CLIENT_CLOSED_REQUEST, JsonResponse
from kaminari.openai_api.schemas.generation import GenerationFields
from kaminari.openai_api.sse import DONE, StreamResponse, data, together

log = logging.getLogger("kaminari.http")


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that may be queued; each of its prompts has `params.n` choices."""

    request: GenerationFields
    prompts: tuple[PreparedPrompt, ...]
    params: SamplingParams
    wording: Wording


class Generation:
    """An endpoint that makes text."""

    def __init__(self, prepare: Prepare[PreparedRequest], intake: Intake, settings: ServerSettings) -> None:
        self._prepare = prepare
        self._intake = intake
        self._lifecycle = intake.lifecycle
        self._send_timeout = settings.send_timeout.total_seconds()
        self._keep_alive = settings.keep_alive.total_seconds()

    async def handle(self, http: Request) -> Response:
        engine = self._lifecycle.require_engine()
        try:
            prepared = await self._intake.take(http, engine, self._prepare)
            streamed = prepared.request.stream
            stream = submit_all(engine, prepared.prompts, prepared.params, watched=streamed)
            envelope = Envelope.new(engine.info, prepared.wording.id_prefix)
            answer = AnswerWriter(prepared, envelope, stream, self._lifecycle, request_id(http.scope))
            if streamed:
                return StreamResponse(
                    answer.events(),
                    stream,
                    self._lifecycle,
                    send_timeout=self._send_timeout,
                    keep_alive=self._keep_alive,
                )
            with self._lifecycle.running(stream):
                return await while_wanted(answer.whole(), http, self._lifecycle)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)


class AnswerWriter:
    """Reads one stream of the engine and writes the answer, whole or in events."""

    def __init__(
        self,
        prepared: PreparedRequest,
        envelope: Envelope,
        stream: AnswerStream,
        lifecycle: Lifecycle,
        request_id: str,
    ) -> None:
        self._prepared = prepared
        self._envelope = envelope
        self._stream = stream
        self._lifecycle = lifecycle
        self._request_id = request_id

    async def whole(self) -> Response:
        """The answer in one body. Raises `ApiError`."""
        builder = AnswerBuilder()
        async with aclosing(self._until_finished()) as batches:
            async for events in batches:
                for event in events:
                    builder.add(event)
        prepared = self._prepared
        body = whole_answer(self._envelope, prepared.request, prepared.wording, builder.answer())
        return JsonResponse(body)

    async def events(self) -> AsyncIterator[bytes]:
        """The answer in server-sent events; after a failure an error event, and `[DONE]` in any case."""
        prepared = self._prepared
        formatter = ChunkFormatter(self._envelope, prepared.request, prepared.wording, prepared.prompts)
        try:
            for body in together(map(data, formatter.begin())):
                yield body
            async with aclosing(self._until_finished()) as batches:
                async for events in batches:
                    chunks = (chunk for event in events for chunk in formatter.chunks(event))
                    for body in together(map(data, chunks)):
                        yield body
        except ApiError as error:
            yield data(error.body())
        except Exception:
            log.exception("request %s failed while it was streamed", self._request_id)
            yield data(errors.internal(self._request_id).body())
        yield DONE

    async def _until_finished(self) -> AsyncGenerator[list[Event], None]:
        """Events as they gather, up to and with `Finished`.

        Raises `ApiError` where the engine failed or was stopped, behind what came before that.
        """
        meter = self._lifecycle.metrics.meter()
        async with aclosing(self._stream.batches()) as batches:
            async for events in batches:
                for event in events:
                    meter.saw(event)
                good = list(takewhile(_goes_on, events))
                if good:
                    yield good
                if len(good) < len(events):
                    raise self._end(events[len(good)])
                if isinstance(good[-1], Finished):
                    return
        raise self._end(None)

    def _end(self, event: Event | None) -> ApiError:
        """Why an answer ends early: the engine's failure, or that it was stopped."""
        if isinstance(event, Failed) and event.field is not None:
            return errors.invalid(event.message, param=event.field, code="grammar_failed")
        if isinstance(event, Failed):
            log.error("request %s: %s", self._request_id, event.message)
            return errors.internal(self._request_id, event.message)
        if self._lifecycle.stopping:
            return errors.shutting_down()
        return errors.internal(self._request_id, "the request was aborted")


def _goes_on(event: Event) -> bool:
    """Whether an answer may still be whole behind this event."""
    aborted = isinstance(event, ChoiceFinished) and event.reason is FinishReason.ABORT
    return not aborted and not isinstance(event, Failed)
