"""`GET /v1/models` and `/v1/models/{id}`: the served name. Answers at once, since chat UIs poll it."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from kaminari.engine.info import EngineInfo
from kaminari.openai_api.errors import model_not_found
from kaminari.openai_api.lifecycle import Lifecycle
from kaminari.openai_api.responses import JsonResponse


class Models:
    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._created = int(time.time())

    async def list(self, _: Request) -> Response:
        info = self._lifecycle.require_engine().info
        return JsonResponse({"object": "list", "data": [self._model(info)]})

    async def retrieve(self, http: Request) -> Response:
        info = self._lifecycle.require_engine().info
        if http.path_params["id"] != info.model:
            raise model_not_found([info.model])
        return JsonResponse(self._model(info))

    def _model(self, info: EngineInfo) -> dict[str, Any]:
        return {
            "id": info.model,
            "object": "model",
            "created": self._created,
            "owned_by": "kaminari",
            "max_model_len": info.context,
        }
