"""`POST /v1/chat/completions`: parse, hand over, format."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from kaminari.config import ServerSettings
from kaminari.engine.answer import AnswerBuilder
from kaminari.engine.events import ChoiceFinished, Event, Failed, Finished, FinishReason
from kaminari.engine.params import SamplingParams
from kaminari.engine.prompt import PreparedPrompt
from kaminari.engine.stream import EventStream
from kaminari.openai_api import errors
from kaminari.openai_api.body import check_content_type, read_body
from kaminari.openai_api.boundary import request_id
from kaminari.openai_api.completion import ChunkFormatter, Envelope, completion_object
from kaminari.openai_api.conversion import to_conversation, to_params
from kaminari.openai_api.engine_protocol import Engine
from kaminari.openai_api.errors import ApiError
from kaminari.openai_api.lifecycle import Lifecycle
from kaminari.openai_api.media import Media, Preparation
from kaminari.openai_api.models import require_name
from kaminari.openai_api.racing import while_wanted
from kaminari.openai_api.responses import JsonResponse
from kaminari.openai_api.schemas.chat import ChatRequest
from kaminari.openai_api.schemas.parsing import parse
from kaminari.openai_api.sse import DONE, StreamResponse, data

log = logging.getLogger("kaminari.http")

CLIENT_CLOSED_REQUEST = 499


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A request that may be queued."""

    request: ChatRequest
    prompt: PreparedPrompt
    params: SamplingParams


def prepare_chat(body: bytes, engine: Engine, media: Media) -> PreparedChat:
    """All that is slow: run it by `Preparation`. Raises `ApiError`, `RequestError` and `NotFetched`."""
    request = parse(ChatRequest, body)
    require_name(request.model, engine.info)
    params = to_params(request, choices=engine.info.choices)
    return PreparedChat(request, engine.prepare(to_conversation(request, media)), params)


class ChatCompletions:
    """The endpoint. Nothing slow runs on the event loop, and nothing runs on for a client that has left."""

    def __init__(self, lifecycle: Lifecycle, preparation: Preparation, settings: ServerSettings) -> None:
        self._lifecycle = lifecycle
        self._preparation = preparation
        self._max_body = int(settings.max_body)
        self._send_timeout = settings.send_timeout.total_seconds()
        self._keep_alive = settings.keep_alive.total_seconds()

    async def handle(self, http: Request) -> Response:
        engine = self._lifecycle.require_engine()
        check_content_type(http)
        try:
            body = await read_body(http, self._max_body, self._send_timeout, self._lifecycle)
            preparing = self._preparation.run(lambda media: prepare_chat(body, engine, media))
            chat = await while_wanted(preparing, http, self._lifecycle)
            stream = engine.submit(chat.prompt, chat.params)
            answer = AnswerWriter(
                chat, Envelope.new(engine.info), stream, self._lifecycle, request_id(http.scope)
            )
            if chat.request.stream:
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
        chat: PreparedChat,
        envelope: Envelope,
        stream: EventStream,
        lifecycle: Lifecycle,
        request_id: str,
    ) -> None:
        self._chat = chat
        self._envelope = envelope
        self._stream = stream
        self._lifecycle = lifecycle
        self._request_id = request_id

    async def whole(self) -> Response:
        """The answer in one body. Raises `ApiError`."""
        builder = AnswerBuilder()
        async with aclosing(self._until_finished()) as events:
            async for event in events:
                builder.add(event)
        body = completion_object(self._envelope, self._chat.request, self._chat.prompt, builder.answer())
        return JsonResponse(body)

    async def events(self) -> AsyncIterator[bytes]:
        """The answer in server-sent events; after a failure an error event, and `[DONE]` in any case."""
        formatter = ChunkFormatter(self._envelope, self._chat.request, self._chat.prompt)
        try:
            for chunk in formatter.begin():
                yield data(chunk)
            async with aclosing(self._until_finished()) as events:
                async for event in events:
                    for chunk in formatter.chunks(event):
                        yield data(chunk)
        except ApiError as error:
            yield data(error.body())
        except Exception:
            log.exception("request %s failed while it was streamed", self._request_id)
            yield data(errors.internal(self._request_id).body())
        yield DONE

    async def _until_finished(self) -> AsyncGenerator[Event, None]:
        """Events up to and with `Finished`. Raises `ApiError` where the engine failed or was stopped."""
        meter = self._lifecycle.metrics.meter()
        async for event in self._stream:
            meter.saw(event)
            if isinstance(event, Failed):
                log.error("request %s: %s", self._request_id, event.message)
                raise errors.internal(self._request_id, event.message)
            if isinstance(event, ChoiceFinished) and event.reason is FinishReason.ABORT:
                break
            yield event
            if isinstance(event, Finished):
                return
        if self._lifecycle.stopping:
            raise errors.shutting_down()
        raise errors.internal(self._request_id, "the request was aborted")
