"""What a chat costs while a chat page's own calls run beside it, with the embedded demo behind HTTP.

    python -m benchmarks.background_calls --rounds 15

Sends what Open WebUI sends for a new chat: the call for a title just before the first turn, and those for
follow-ups and tags, one after the other, once that turn's answer has ended. A second turn follows at once,
sooner than a person could ask. Each round does so with and without the three calls, so that both meet the
same machine. Their prompts are as long as Open WebUI's; figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from kaminari.bench.server_process import free_port, own_line, running

RECEIPT = Path(__file__).parents[1] / "examples" / "receipt.png"
CHAT = "/chat/completions"
TASKS = {"title": 1044, "follow_ups": 1437, "tags": 738}
"""Characters of each call's prompt."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Milliseconds: until the first piece of text, the longest wait between two, and until the end."""

    first: float
    gap: float
    whole: float


def turns() -> tuple[dict[str, Any], dict[str, Any]]:
    """A question about a picture, and one that goes on from its answer."""
    url = "data:image/png;base64," + base64.b64encode(RECEIPT.read_bytes()).decode()
    parts = [{"type": "text", "text": "Read the text."}, {"type": "image_url", "image_url": {"url": url}}]
    first = [{"role": "user", "content": parts}]
    second = [
        *first,
        {"role": "assistant", "content": "CAFE LUNA"},
        {"role": "user", "content": "Read the text."},
    ]
    return ask(first), ask(second)


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"messages": messages, "stream": True, "temperature": 0}


async def chat(http: httpx.AsyncClient, body: dict[str, Any]) -> Turn:
    began = time.perf_counter()
    pieces: list[tuple[float, bytes]] = []
    async with http.stream("POST", CHAT, json=body) as answer:
        answer.raise_for_status()
        async for piece in answer.aiter_raw():
            pieces.append((time.perf_counter(), piece))
    texts = [when for when, piece in pieces if b'"content":"' in piece.replace(b'"content":""', b"")]
    gaps = [after - before for before, after in itertools.pairwise(texts)]
    assert gaps, "a chat of one piece shows nothing"
    ended = pieces[-1][0]
    return Turn(*(1000 * seconds for seconds in (texts[0] - began, max(gaps), ended - began)))


async def task(http: httpx.AsyncClient, name: str) -> None:
    text = (f"### Task: {name}\nAnswer with one JSON object and nothing else.\n" * 40)[: TASKS[name]]
    answer = await http.post(CHAT, json={"messages": [{"role": "user", "content": text}]})
    answer.raise_for_status()


async def conversation(http: httpx.AsyncClient, beside: bool) -> tuple[Turn, Turn]:
    async def after() -> None:
        for name in ("follow_ups", "tags"):
            await task(http, name)

    calls = []
    if beside:
        calls.append(asyncio.create_task(task(http, "title")))
        await asyncio.sleep(0.002)
    one, two = turns()
    first = await chat(http, one)
    if beside:
        calls.append(asyncio.create_task(after()))
        await asyncio.sleep(0.002)
    second = await chat(http, two)
    await asyncio.gather(*calls)
    return first, second


async def measure(url: str, rounds: int) -> dict[bool, list[tuple[Turn, Turn]]]:
    seen: dict[bool, list[tuple[Turn, Turn]]] = {False: [], True: []}
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        for beside in (True, False):
            await conversation(http, beside)
        for _, beside in itertools.product(range(rounds), (False, True)):
            seen[beside].append(await conversation(http, beside))
            await asyncio.sleep(0.05)
    return seen


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args(argv).rounds
    environment = dict(os.environ)
    port = free_port()
    with running("kaminari", own_line(port), port, environment) as server:
        seen = asyncio.run(measure(server.url, rounds))
    names = [field.name for field in fields(Turn)]
    for place, turn in enumerate(("first turn", "second turn")):
        for beside, samples in seen.items():
            columns = zip(*(astuple(sample[place]) for sample in samples), strict=True)
            parts = [
                f"{name} {median(values):6.1f} ({min(values):.1f}..{max(values):.1f})"
                for name, values in zip(names, map(list, columns), strict=True)
            ]
            print(f"{turn:<12}{'with' if beside else 'without':<8}" + "   ".join(parts) + " ms")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
