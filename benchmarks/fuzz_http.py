"""Send random requests, made from its own OpenAPI document, to a running server, and report what came back.

    kaminari serve &
    python -m benchmarks.fuzz_http --requests 20000 --pid $!

Exits with 1 where a response was a 5xx other than 503, a request hung, or a slot was not free at the end.
With `--pid` the server's memory is shown along the way. `fuzz_openapi` does the same with schemathesis.
Talks to loopback only, and never starts or stops a server.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson
import psutil
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.openai_api.bodies import bodies

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HANG_SECONDS = 60.0
BATCH = 32
MOST_TOKENS = 4


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pid", type=int, help="the server's process, whose memory is shown")
    args = parser.parse_args()
    if urlsplit(args.url).hostname not in LOOPBACK:
        parser.error("the server must be on loopback")
    return asyncio.run(run(args.url, args.requests, args.seed, args.pid))


async def run(url: str, count: int, first_seed: int, pid: int | None) -> int:
    server = None if pid is None else psutil.Process(pid)
    began = time.monotonic()
    statuses: Counter[str] = Counter()
    faults: list[str] = []
    async with httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, trust_env=False) as client:
        document = (await client.get("/openapi.json")).json()
        sent = 0
        for round_seed in range(first_seed, sys.maxsize):
            if sent >= count:
                break
            # hypothesis draws on a thread, so that what is under way goes on meanwhile
            batch = await asyncio.to_thread(draw, document, min(2000, count - sent), round_seed)
            for start in range(0, len(batch), BATCH):
                part = batch[start : start + BATCH]
                await asyncio.gather(*(send(client, *request, statuses, faults) for request in part))
            sent += len(batch)
            memory = "" if server is None else f", {server.memory_info().rss / 2**20:.0f} MiB"
            print(f"{sent} requests, {time.monotonic() - began:.0f} s{memory}", file=sys.stderr)
        await asyncio.sleep(1)
        metrics = (await client.get("/metrics")).text
        health = (await client.get("/health")).status_code
    free, slots, running = (gauge(metrics, name) for name in ("slots_free", "slots", "requests_running"))
    print(f"{sent} requests in {time.monotonic() - began:.0f} s")
    for status, number in sorted(statuses.items()):
        print(f"  {status}: {number}")
    print(f"faults: {len(faults)}; health {health}; {free:g} of {slots:g} slots free, {running:g} running")
    for fault in faults[:20]:
        print(f"  {fault}")
    return int(bool(faults) or health != 200 or free != slots or running != 0)


def draw(document: dict[str, Any], count: int, with_seed: int) -> list[tuple[str, bytes]]:
    """Paths and bodies."""
    schemas = document["components"]["schemas"]
    posts = [
        (path, methods["post"]["requestBody"]["content"]["application/json"]["schema"])
        for path, methods in document["paths"].items()
        if "requestBody" in methods.get("post", {})
    ]
    made: list[tuple[str, bytes]] = []

    @seed(with_seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def collect(data: st.DataObject) -> None:
        path, schema = data.draw(st.sampled_from(posts))
        body = data.draw(bodies(schema, schemas))
        if isinstance(body, dict) and "max_completion_tokens" not in body and "max_tokens" not in body:
            body = {**body, "max_tokens": MOST_TOKENS}
        if isinstance(body, dict) and data.draw(st.integers(0, 2)) == 0:
            body = {**body, "stream": True}
        try:
            made.append((path, orjson.dumps(body)))
        except TypeError:
            made.append((path, repr(body).encode("utf-8", "replace")))

    collect()
    return made


async def send(
    client: httpx.AsyncClient, path: str, body: bytes, statuses: Counter[str], faults: list[str]
) -> None:
    try:
        response = await client.post(path, content=body)
    except httpx.HTTPError as error:
        statuses[type(error).__name__] += 1
        faults.append(f"{path} {type(error).__name__}: {body[:300]!r}")
        return
    code = ""
    if response.status_code != 200:
        code = f" {response.json()['error']['code']}"
    elif response.headers["content-type"].startswith("text/event-stream"):
        code = " stream"
        if response.text.count("data: [DONE]") != 1 or '"internal_error"' in response.text:
            faults.append(f"{path} stream: {body[:300]!r}")
    statuses[f"{response.status_code}{code}"] += 1
    if response.status_code >= 500 and response.status_code != 503:
        faults.append(f"{path} {response.status_code}: {body[:300]!r}")


def gauge(text: str, name: str) -> float:
    """A sample of the exposition by its name without the prefix; nan where there is none."""
    for line in text.splitlines():
        if line.startswith(f"kaminari_{name} "):
            return float(line.split()[1])
    return float("nan")


if __name__ == "__main__":
    sys.exit(main())
