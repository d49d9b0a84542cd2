"""Load on a server over HTTP: streamed chat requests in a closed or an open loop, and when their pieces came.

What arrives is stamped and kept as bytes; it is parsed when the load is over, so that a client costs the
server's machine as little as it can.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

TIMEOUT = 600.0
DATA = b"data: "
DONE = b"[DONE]"


class LoadError(Exception):
    """A request that the server did not answer in full; the message is one line."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request body, and how many pictures it holds."""

    body: bytes
    pictures: int


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. Seconds count from the request; `gaps` are those between pieces of text.

    finished:  on the performance counter
    """

    first: float
    whole: float
    gaps: tuple[float, ...]
    prompt_tokens: int
    tokens: int
    pictures: int
    finished: float


@dataclass(frozen=True, slots=True)
class Load:
    """Answers in any order, the seconds of the whole, and the client's share of a core."""

    answers: tuple[Answer, ...]
    seconds: float
    client: float


def closed_loop(url: str, asks: Sequence[Ask], clients: int) -> Load:
    """`clients` clients, each of which asks again as soon as it is answered. Raises `LoadError`."""

    async def run(http: httpx.AsyncClient) -> list[_Heard]:
        left = list(reversed(asks))

        async def client() -> list[_Heard]:
            heard = []
            while left:
                heard.append(await _ask(http, left.pop()))
            return heard

        parts = await asyncio.gather(*(client() for _ in range(clients)))
        return [each for part in parts for each in part]

    return _measure(url, run, clients)


def open_loop(url: str, asks: Sequence[Ask], rate: float, seed: int = 0) -> Load:
    """Requests that come at `rate` per second at random (a Poisson process), whatever is still running."""

    async def run(http: httpx.AsyncClient) -> list[_Heard]:
        chance = random.Random(seed)

        async def later(delay: float, ask: Ask) -> _Heard:
            await asyncio.sleep(delay)
            return await _ask(http, ask)

        at = 0.0
        waiting = []
        for ask in asks:
            waiting.append(later(at, ask))
            at += chance.expovariate(rate)
        return list(await asyncio.gather(*waiting))

    return _measure(url, run, len(asks))


@dataclass(frozen=True, slots=True)
class _Heard:
    """What came back, unread: (when, bytes) of each piece."""

    began: float
    pieces: list[tuple[float, bytes]]
    pictures: int


def _measure(url: str, run: Any, connections: int) -> Load:
    async def whole() -> tuple[list[_Heard], float, float]:
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT, trust_env=False, limits=limits) as http:
            began, busy = time.perf_counter(), time.process_time()
            heard = await run(http)
            return heard, time.perf_counter() - began, time.process_time() - busy

    try:
        heard, seconds, busy = asyncio.run(whole())
    except httpx.HTTPError as error:
        raise LoadError(f"the server failed under load: {type(error).__name__} {error}".strip()) from error
    return Load(tuple(_read(each) for each in heard), seconds, busy / seconds)


async def _ask(http: httpx.AsyncClient, ask: Ask) -> _Heard:
    began = time.perf_counter()
    headers = {"Content-Type": "application/json"}
    async with http.stream("POST", "/chat/completions", content=ask.body, headers=headers) as response:
        pieces = [(time.perf_counter(), piece) async for piece in response.aiter_raw()]
        if response.status_code != httpx.codes.OK:
            said = b"".join(piece for _, piece in pieces).decode(errors="replace")
            raise LoadError(f"the server answers HTTP {response.status_code}: {' '.join(said.split())[:200]}")
    return _Heard(began, pieces, ask.pictures)


def _read(heard: _Heard) -> Answer:
    """Parse a whole stream of events, each as old as the piece that completed it."""
    texts: list[float] = []
    usage: dict[str, Any] = {}
    rest = b""
    ended = False
    for when, piece in heard.pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if not line.startswith(DATA):
                continue
            if line.strip().endswith(DONE):
                ended = True
                continue
            event = json.loads(line[len(DATA) :])
            if "error" in event:
                raise LoadError(f"the server failed in a stream: {event['error']}"[:200])
            usage = event.get("usage") or usage
            choices = event.get("choices") or [{}]
            if (choices[0].get("delta") or {}).get("content"):
                texts.append(when)
    if not ended or not usage:
        raise LoadError("a stream ended early")
    finished = heard.pieces[-1][0]
    texts = texts or [finished]
    return Answer(
        first=texts[0] - heard.began,
        whole=finished - heard.began,
        gaps=tuple(after - before for before, after in itertools.pairwise(texts)),
        prompt_tokens=int(usage.get("prompt_tokens", 0)),
        tokens=int(usage.get("completion_tokens", 0)),
        pictures=heard.pictures,
        finished=finished,
    )
