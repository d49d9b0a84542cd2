"""The error object of the API: one shape, one class per status, for every way in which a request fails.

A message never repeats what the client sent beyond a field's name, and names no path, address or line of
the server.
"""

from __future__ import annotations

import math
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from kaminari.engine.errors import EngineUnavailable, QueueFull, RequestError
from kaminari.openai_api.responses import JsonResponse

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
INVALID_VALUE = "invalid_value"

QUEUE_RETRY_SECONDS = 1.0
LOADING_RETRY_SECONDS = 5.0


class ApiError(Exception):
    """A failure as the client will see it.

    status:       HTTP status
    type, code:   words for programs; `code` may be None
    param:        path of the offending field, such as `messages[0].content[1].image_url.url`, or None
    retry_after:  seconds after which a client may try again, or None
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """The error object."""
        detail = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": detail}

    def response(self) -> Response:
        headers = {}
        if self.retry_after is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after)))
        return JsonResponse(self.body(), status_code=self.status, headers=headers)


def invalid(message: str, *, param: str | None = None, code: str = INVALID_VALUE) -> ApiError:
    """A 400."""
    return ApiError(400, message, param=param, code=code)


def model_not_found(names: list[str]) -> ApiError:
    """A 404 that lists what is served; the name that was asked for is not repeated."""
    listed = ", ".join(f"`{name}`" for name in names)
    return ApiError(
        404,
        f"the requested model does not exist here; this server serves {listed}",
        param="model",
        code="model_not_found",
    )


def loading() -> ApiError:
    return ApiError(
        503,
        "the model is still loading; try again in a few seconds",
        type=SERVER_ERROR,
        code="model_loading",
        retry_after=LOADING_RETRY_SECONDS,
    )


def shutting_down() -> ApiError:
    return ApiError(
        503,
        "the server is shutting down",
        type=SERVER_ERROR,
        code="shutting_down",
        retry_after=LOADING_RETRY_SECONDS,
    )


def internal(request_id: str, message: str = "the server failed on this request") -> ApiError:
    """A 500. The request id is what leads to the fault in the server's log."""
    return ApiError(500, f"{message} (request id {request_id})", type=SERVER_ERROR, code="internal_error")


def from_engine(error: RequestError | QueueFull | EngineUnavailable) -> ApiError:
    """Say in the API's words why the engine refused a request."""
    if isinstance(error, RequestError):
        return invalid(error.message, param=error.field, code=error.code or INVALID_VALUE)
    if isinstance(error, QueueFull):
        return ApiError(
            503,
            "too many requests are waiting; try again shortly",
            type=SERVER_ERROR,
            code="queue_full",
            retry_after=QUEUE_RETRY_SECONDS,
        )
    return ApiError(
        503,
        "the engine is not running",
        type=SERVER_ERROR,
        code="engine_unavailable",
        retry_after=LOADING_RETRY_SECONDS,
    )


async def on_api_error(_: Request, error: Exception) -> Response:
    """Exception handler of `ApiError`."""
    assert isinstance(error, ApiError)
    return error.response()


async def on_engine_refusal(_: Request, error: Exception) -> Response:
    """Exception handler of what `Engine.prepare` and `Engine.submit` raise."""
    assert isinstance(error, RequestError | QueueFull | EngineUnavailable)
    return from_engine(error).response()


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Exception handler of what the router raises: an unknown path or a method that a path does not take."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        says = "there is nothing at this path; /openapi.json lists what there is"
        return ApiError(404, says, code="not_found").response()
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        refusal = ApiError(405, f"this path takes {allowed} only", code="method_not_allowed").response()
        refusal.headers["allow"] = allowed
        return refusal
    return ApiError(error.status_code, "the request cannot be served").response()
