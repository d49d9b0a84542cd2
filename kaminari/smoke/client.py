"""The few calls that the battery makes of an OpenAI-compatible server, each bounded in time and size."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

MOST_BYTES = 4 * 2**20
CONNECT_SECONDS = 10.0
SHOWN = 200

Message = dict[str, Any]


class ServerError(Exception):
    """The server gave no usable answer; the message is one line that says why."""


class Unreachable(ServerError):
    """Nothing answers at the address."""


def api_root(url: str) -> str:
    """The API's root of what a person typed: with `http://` in front, and `/v1` where there is no path.

    Raises ValueError for what is no HTTP address.
    """
    url = url if "://" in url else f"http://{url}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"not an HTTP address: {url}")
    _ = parts.port  # raises for a port that is none
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


class ChatClient:
    """Talks to one server. `timeout` bounds each call, in seconds."""

    def __init__(self, root: str, *, api_key: str | None, timeout: float) -> None:
        self.root = root
        self._timeout = timeout
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def first_model(self) -> str:
        """The id of the first model that the server lists. Raises `ServerError`."""
        body = self._call("GET", "/models")
        try:
            name = body["data"][0]["id"]
        except (KeyError, IndexError, TypeError) as error:
            raise ServerError("the server lists no model; name one with --model") from error
        return str(name)

    def answer(self, model: str, messages: Sequence[Message], max_tokens: int) -> str:
        """The text of a greedy answer. Raises `ServerError`."""
        body = self._call(
            "POST",
            "/chat/completions",
            {"model": model, "messages": list(messages), "temperature": 0, "max_tokens": max_tokens},
        )
        try:
            content = body["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise ServerError("the answer has no choices[0].message.content") from error
        if content is not None and not isinstance(content, str):
            raise ServerError("the answer's content is not a string")
        return content or ""

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send one request and parse its JSON. A server that dribbles is cut off as one that is silent."""
        deadline = time.monotonic() + self._timeout
        try:
            with self._http.stream(method, self.root + path, json=body) as response:
                data = b""
                for piece in response.iter_bytes():
                    data += piece
                    if time.monotonic() > deadline:
                        raise httpx.ReadTimeout("too slow")
                    if len(data) > MOST_BYTES:
                        raise ServerError(f"{path} answers with more than {MOST_BYTES} bytes")
        except httpx.TimeoutException as error:
            raise ServerError(f"no answer within {self._timeout:g} s") from error
        except httpx.ConnectError as error:
            raise Unreachable(f"nothing answers at {self.root}: {_one_line(str(error))}") from error
        except httpx.HTTPError as error:
            kind = type(error).__name__
            raise ServerError(f"the connection broke: {kind} {_one_line(str(error))}") from error
        if response.status_code != httpx.codes.OK:
            raise ServerError(f"{path} answers HTTP {response.status_code}: {_reason(data)}")
        try:
            return json.loads(data)
        except ValueError as error:
            raise ServerError(f"{path} answers with what is no JSON") from error


def _reason(data: bytes) -> str:
    """OpenAI's error message where there is one, else the beginning of the body."""
    try:
        message = json.loads(data)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = data.decode(errors="replace")
    return _one_line(str(message)) or "no reason given"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:SHOWN]
