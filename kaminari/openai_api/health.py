"""`GET /health` and `GET /version`: what a supervisor asks. Neither waits for anything."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from kaminari import __version__
from kaminari.openai_api.lifecycle import Lifecycle
from kaminari.openai_api.responses import JsonResponse


class Health:
    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def health(self, _: Request) -> Response:
        """200 while the engine makes progress; 503 while loading, dead, or stalled with work waiting."""
        status = self._status()
        return JsonResponse({"status": status}, status_code=200 if status == "ok" else 503)

    def _status(self) -> str:
        engine = self._lifecycle.engine
        if engine is None:
            return "loading"
        status = engine.status()
        if not status.alive:
            return "dead"
        return "stalled" if status.stalled else "ok"

    async def version(self, _: Request) -> Response:
        """The model's part is null while it is still loading."""
        engine = self._lifecycle.engine
        info = None if engine is None else engine.info
        return JsonResponse(
            {
                "version": __version__,
                "model": None if info is None else info.model,
                "device": None if info is None else info.device,
                "dtype": None if info is None else info.dtype,
                "quantization": None if info is None else info.quantization,
            }
        )
