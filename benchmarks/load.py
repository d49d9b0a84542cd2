"""Load a running server with many clients for a while, and report whether it stayed right, quick and lean.

    kaminari serve &
    python -m benchmarks.load --clients 64 --seconds 300 --pid $!

Of each client's requests a tenth leaves in the middle and a tenth is wrong; the others ask what was asked
alone at first, and must get the same answer. `/health` is polled. With `--pid` the resident memory of the
server is sampled, and what it holds (threads, files, sockets) is counted before and after. Exits with 1 where
an answer was wrong, `/health` was slow, memory grew after the first minute, or something was not given back.
Talks to loopback only, and never starts or stops a server.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

CHAT = "/v1/chat/completions"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
HANG_SECONDS = 60.0
QUESTIONS = ["What is the capital of France?", "hi", *(f"What is {n}+{n + 1}?" for n in range(8))]
WRONG: list[dict[str, Any]] = [
    {"messages": []},
    {"messages": [{"role": "robot", "content": "x"}]},
    {"messages": [{"role": "user", "content": "x"}], "max_tokens": 0},
    {"messages": [{"role": "user", "content": "x"}], "nonsense": 1},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "data:,x"}]}]},
]


SLOW_HEALTH_SECONDS = 0.2
GROWTH = 1.05


@dataclass(frozen=True)
class Held:
    """What a process holds: threads, open files and sockets of any kind, and connections that are open."""

    threads: int
    descriptors: int
    connections: int

    @staticmethod
    def by(process: psutil.Process) -> Held:
        connections = [c for c in process.net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED]
        return Held(process.num_threads(), process.num_fds(), len(connections))


@dataclass
class Seen:
    """outcomes:  of requests;  waits:  seconds of each /health;  memory:  (seconds, bytes) of the server;
    before, after:  what the server held, without this program's own connections
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    before: Held | None = None
    after: Held | None = None


def ask(question: str, **fields: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 32,
        **fields,
    }


async def client(
    http: httpx.AsyncClient, right: dict[str, str], until: float, seen: Seen, place: int
) -> None:
    """Ask until the time is over."""
    chance = random.Random(place)
    while time.monotonic() < until:
        luck = chance.random()
        question = chance.choice(QUESTIONS)
        try:
            if luck < 0.1:
                seen.outcomes[await leave(http, question, chance.random() / 5)] += 1
            elif luck < 0.2:
                answer = await http.post(CHAT, json=chance.choice(WRONG))
                seen.outcomes["refused" if answer.status_code == 400 else "FAULT: not refused"] += 1
            else:
                seen.outcomes[await good(http, question, right[question])] += 1
        except httpx.HTTPError as error:
            seen.outcomes[f"FAULT: {type(error).__name__}"] += 1


async def leave(http: httpx.AsyncClient, question: str, after: float) -> str:
    """Begin a long stream and go away."""
    body = ask(question, stream=True, ignore_eos=True, max_tokens=500)
    async with http.stream("POST", CHAT, json=body) as answer:
        if answer.status_code != 200:
            return "queue full" if answer.status_code == 503 else "FAULT: no stream"
        await asyncio.sleep(after)
    return "left"


async def good(http: httpx.AsyncClient, question: str, right: str) -> str:
    answer = await http.post(CHAT, json=ask(question))
    if answer.status_code == 503:
        await asyncio.sleep(float(answer.headers["retry-after"]))
        return "queue full"
    if answer.status_code != 200:
        return f"FAULT: {answer.status_code}"
    said = answer.json()["choices"][0]["message"]["content"]
    return "right" if said == right else "FAULT: another answer"


async def poll(http: httpx.AsyncClient, until: float, seen: Seen) -> None:
    while time.monotonic() < until:
        began = time.monotonic()
        answer = await http.get("/health")
        seen.waits.append(time.monotonic() - began)
        if answer.status_code != 200:
            seen.outcomes[f"FAULT: health {answer.status_code}"] += 1
        await asyncio.sleep(0.05)


async def sample(process: psutil.Process, until: float, seen: Seen) -> None:
    began = time.monotonic()
    while time.monotonic() < until:
        seen.memory.append((time.monotonic() - began, process.memory_info().rss))
        await asyncio.sleep(1)


async def run(url: str, clients: int, seconds: float, pid: int | None) -> int:
    seen = Seen()
    process = None if pid is None else psutil.Process(pid)
    async with httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, trust_env=False) as http:
        # all at once first, so that every worker thread has been started when they are counted
        await asyncio.gather(*(http.post(CHAT, json=ask(question)) for question in QUESTIONS))
        right = {}
        for question in QUESTIONS:
            answer = (await http.post(CHAT, json=ask(question))).json()
            right[question] = answer["choices"][0]["message"]["content"]
    if process is not None:
        await asyncio.sleep(1)
        seen.before = Held.by(process)
    limits = httpx.Limits(max_connections=clients + 4, max_keepalive_connections=clients)
    async with (
        httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, trust_env=False, limits=limits) as http,
        httpx.AsyncClient(base_url=url, timeout=HANG_SECONDS, trust_env=False) as watcher,
    ):
        until = time.monotonic() + seconds
        work = [client(http, right, until, seen, place) for place in range(clients)]
        work.append(poll(watcher, until, seen))
        if process is not None:
            work.append(sample(process, until, seen))
        await asyncio.gather(*work)
        await asyncio.sleep(1)
        figures = (await watcher.get("/metrics")).text
    if process is not None:
        await asyncio.sleep(1)
        seen.after = Held.by(process)
    return report(seen, figures)


def report(seen: Seen, figures: str) -> int:
    faults = [
        f"{number} {outcome}" for outcome, number in seen.outcomes.items() if outcome.startswith("FAULT")
    ]
    print(f"{sum(seen.outcomes.values())} requests")
    for outcome, number in seen.outcomes.most_common():
        print(f"  {outcome}: {number}")
    waits = sorted(seen.waits)
    middle, late = waits[len(waits) // 2], waits[int(len(waits) * 0.99)]
    print(f"/health: {len(waits)} polls, median {middle * 1000:.1f} ms, p99 {late * 1000:.1f} ms")
    if late > SLOW_HEALTH_SECONDS:
        faults.append("/health was slow")
    minutes = means_by_minute(seen.memory)
    if minutes:
        print("resident memory, mean of each minute in MiB: " + ", ".join(f"{mean:.0f}" for mean in minutes))
        if len(minutes) > 2 and minutes[-1] > minutes[1] * GROWTH:
            faults.append("memory grew after the first minute")
    if seen.before is not None and seen.after is not None:
        print(f"before: {seen.before}\nafter:  {seen.after}")
        if seen.after != seen.before:
            faults.append("something was not given back")
    names = ("kaminari_slots", "kaminari_requests_")
    lines = [line for line in figures.splitlines() if line.startswith(names) and "created" not in line]
    print("\n".join(lines))
    gauges = dict(line.split() for line in lines)
    if gauges["kaminari_slots_free"] != gauges["kaminari_slots"]:
        faults.append("slots were not free at the end")
    print("faults: " + ("; ".join(faults) or "none"))
    return int(bool(faults))


def means_by_minute(memory: list[tuple[float, int]]) -> list[float]:
    """MiB; what is left of the last minute counts as one if it is half a minute or more."""
    minutes: dict[int, list[int]] = {}
    for second, size in memory:
        minutes.setdefault(int(second // 60), []).append(size)
    return [sum(sizes) / len(sizes) / 2**20 for sizes in minutes.values() if len(sizes) >= 30]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--pid", type=int, help="the server's process, whose memory is sampled")
    args = parser.parse_args()
    if urlsplit(args.url).hostname not in LOOPBACK:
        parser.error("the server must be on loopback")
    return asyncio.run(run(args.url, args.clients, args.seconds, args.pid))


if __name__ == "__main__":
    sys.exit(main())
