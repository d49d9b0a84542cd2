"""`POST /tokenize` and `/detokenize`, as vLLM has them: what a prompt costs, and the way back from ids."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from kaminari.engine.prompt import PreparedPrompt
from kaminari.openai_api.completion import Json
from kaminari.openai_api.conversion import to_conversation
from kaminari.openai_api.engine_protocol import Engine
from kaminari.openai_api.intake import Intake, Prepare
from kaminari.openai_api.media import Media
from kaminari.openai_api.models import require_name
from kaminari.openai_api.responses import CLIENT_CLOSED_REQUEST, JsonResponse
from kaminari.openai_api.schemas.chat import ChatRequest
from kaminari.openai_api.schemas.parsing import parse
from kaminari.openai_api.schemas.tokenize import DetokenizeRequest, TokenizeRequest


class Tokenization:
    """Both endpoints. Nothing is queued for the engine."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    async def tokenize(self, http: Request) -> Response:
        return await self._answer(http, tokenized)

    async def detokenize(self, http: Request) -> Response:
        return await self._answer(http, detokenized)

    async def _answer(self, http: Request, prepare: Prepare[Json]) -> Response:
        engine = self._intake.lifecycle.require_engine()
        try:
            return JsonResponse(await self._intake.take(http, engine, prepare))
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)


def tokenized(body: bytes, engine: Engine, media: Media) -> Json:
    """The ids of a prompt with the placeholders of its pictures, counted."""
    request = parse(TokenizeRequest, body)
    require_name(request.model, engine.info)
    tokens = list(_prompt(request, engine, media).token_ids)
    return {
        "count": len(tokens),
        "max_model_len": engine.info.context,
        "tokens": tokens,
        "token_strs": engine.token_names(tokens) if request.return_token_strs else None,
    }


def _prompt(request: TokenizeRequest, engine: Engine, media: Media) -> PreparedPrompt:
    if request.prompt is not None:
        return engine.prepare_text(request.prompt)
    chat = ChatRequest.model_construct(
        messages=request.messages,
        tools=request.tools,
        tool_choice=request.tool_choice,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        chat_template_kwargs=request.chat_template_kwargs,
    )
    return engine.prepare(to_conversation(chat, media))


def detokenized(body: bytes, engine: Engine, _: Media) -> Json:
    """The text of ids."""
    request = parse(DetokenizeRequest, body)
    require_name(request.model, engine.info)
    return {"prompt": engine.decode(request.tokens)}
