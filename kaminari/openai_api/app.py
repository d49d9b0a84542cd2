"""The ASGI application: routes, exception handlers, and what they share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from kaminari.config import ServerSettings, Settings
from kaminari.config.cores import usable_cores
from kaminari.engine.errors import EngineUnavailable, QueueFull, RequestError
from kaminari.openai_api import errors
from kaminari.openai_api.boundary import Boundary
from kaminari.openai_api.chat import prepare_chat
from kaminari.openai_api.completions import prepare_completion
from kaminari.openai_api.generation import Generation
from kaminari.openai_api.health import Health
from kaminari.openai_api.intake import Intake
from kaminari.openai_api.lifecycle import Lifecycle
from kaminari.openai_api.media import Preparation
from kaminari.openai_api.metrics import CountResponses, Metrics
from kaminari.openai_api.models import Models
from kaminari.openai_api.openapi import OpenApi
from kaminari.openai_api.security import KeyRequired, cors
from kaminari.openai_api.tokenize import Tokenization
from kaminari.openai_api.workers import Workers

MOST_WORKERS = 8


def create_app(lifecycle: Lifecycle, settings: Settings) -> Starlette:
    """Build the application around an engine that is there already or still loads (`Lifecycle.attach`)."""
    workers = Workers(_threads(settings), waiting=settings.engine.queue_size)
    intake = Intake(lifecycle, Preparation(workers, settings), settings.server)
    chat = Generation(prepare_chat, intake, settings.server)
    completions = Generation(
        partial(prepare_completion, most_prompts=settings.engine.queue_size), intake, settings.server
    )
    tokenization = Tokenization(intake)
    models = Models(lifecycle)
    health = Health(lifecycle)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        lifecycle.work_left = workers.close()

    routes = [
        Route("/v1/chat/completions", chat.handle, methods=["POST"]),
        Route("/v1/completions", completions.handle, methods=["POST"]),
        Route("/tokenize", tokenization.tokenize, methods=["POST"]),
        Route("/detokenize", tokenization.detokenize, methods=["POST"]),
        Route("/v1/models", models.list, methods=["GET"]),
        Route("/v1/models/{id:path}", models.retrieve, methods=["GET"]),
        Route("/health", health.health, methods=["GET"]),
        Route("/version", health.version, methods=["GET"]),
        Route("/metrics", lifecycle.metrics.handle, methods=["GET"]),
        Route("/openapi.json", OpenApi(keys=bool(settings.server.api_keys)).handle, methods=["GET"]),
    ]
    app = Starlette(
        routes=routes,
        middleware=_layers(settings.server, lifecycle.metrics, [route.path for route in routes]),
        exception_handlers={
            errors.ApiError: errors.on_api_error,
            RequestError: errors.on_engine_refusal,
            QueueFull: errors.on_engine_refusal,
            EngineUnavailable: errors.on_engine_refusal,
            HTTPException: errors.on_http_exception,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def _layers(settings: ServerSettings, metrics: Metrics, paths: list[str]) -> list[Middleware]:
    """From the outermost on."""
    layers = [cors(settings.cors_origins)] if settings.cors_origins else []
    layers.append(Middleware(Boundary))
    layers.append(Middleware(CountResponses, metrics=metrics, paths=paths))
    if settings.api_keys:
        layers.append(Middleware(KeyRequired, keys=settings.api_keys))
    return layers


def _threads(settings: Settings) -> int:
    if settings.pictures.workers != "auto":
        return settings.pictures.workers
    return min(usable_cores(logical=True), MOST_WORKERS)
