"""`GET /v1/models` and `/v1/models/{id}`: the served name and its aliases. At once: chat UIs poll it."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from kaminari.engine.info import EngineInfo
from kaminari.openai_api.errors import model_not_found
from kaminari.openai_api.lifecycle import Lifecycle
from kaminari.openai_api.responses import JsonResponse


def require_name(name: str | None, info: EngineInfo) -> None:
    """Raise a 404 for a model that is not served. No name at all means the one that is."""
    if name is not None and name not in info.names:
        raise model_not_found(list(info.names))


class Models:
    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._created = int(time.time())

    async def list(self, _: Request) -> Response:
        info = self._lifecycle.require_engine().info
        return JsonResponse({"object": "list", "data": [self._model(info, name) for name in info.names]})

    async def retrieve(self, http: Request) -> Response:
        info = self._lifecycle.require_engine().info
        name: str = http.path_params["id"]
        require_name(name, info)
        return JsonResponse(self._model(info, name))

    def _model(self, info: EngineInfo, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "kaminari",
            "max_model_len": info.context,
        }
