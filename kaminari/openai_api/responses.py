"""JSON responses, written by orjson: strict JSON, never NaN."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response

CLIENT_CLOSED_REQUEST = 499
"""What is logged for a client that has left; nobody reads it."""


class JsonResponse(Response):
    """A body of plain dicts, lists, strings and numbers."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)
