"""What a decode step costs beside the device, with the embedded demo behind HTTP, one server per setting.

    python -m benchmarks.host_time --clients 1 8 32 --depth 1 2

Streaming clients ask one after the other and stop for nothing. Host time per row is the wall time of a decode
step, minus that of the same step with nothing around it (measured first, in this process), over its rows. It
holds everything: scheduling, detokenizing, HTTP, the prompts between the steps, and whatever the clients take
from the cores that they share with the server. Servers take turns; figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, astuple, dataclass
from statistics import median

import torch

from kaminari.config import EngineSettings, Settings
from kaminari.engine.conversation import Conversation
from kaminari.engine.loading import load_model
from kaminari.engine.loop import EngineLoop
from kaminari.engine.params import SamplingParams
from kaminari.engine.requests import Request
from kaminari.engine.stream import EventStream

QUESTION = "What is the capital of France?"
TOKENS = 256
HOST_PARTS = ("plan", "prepare", "write", "publish")
START_SECONDS = 120
WARM_SECONDS = 0.3


@dataclass(frozen=True)
class Figures:
    """Of one server under one number of clients: rates per second, times in milliseconds.

    thread_ms:  of a step, what the engine's thread counts as its own host work
    """

    tokens_per_second: float
    rows_per_step: float
    step_ms: float
    thread_ms: float


class Server:
    """`kaminari serve` with the demo, in a process of its own."""

    def __init__(self, threads: str, slots: str, depth: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        given = {
            "KAMINARI_SERVER__PORT": str(self.port),
            "KAMINARI_SERVER__LOG_LEVEL": "warning",
            "KAMINARI_ENGINE__SLOTS": slots,
            "KAMINARI_ENGINE__THREADS": threads,
            "KAMINARI_ENGINE__PIPELINE_DEPTH": str(depth),
        }
        command = [sys.executable, "-m", "kaminari", "serve"]
        self._process = subprocess.Popen(
            command, env=os.environ | given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def __enter__(self) -> Server:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._process.poll() is None:
            try:
                self.get("/health")
                return self
            except OSError:
                time.sleep(0.2)
        self.__exit__()
        raise SystemExit("the server did not start")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def counts(self) -> dict[str, float]:
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith("kaminari_")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    async def load(self, clients: int, seconds: float) -> Figures:
        """Keep so many clients busy for so long."""
        tasks = [asyncio.create_task(self._client()) for _ in range(clients)]
        await asyncio.sleep(WARM_SECONDS)
        before, began = await asyncio.to_thread(self.counts), time.monotonic()
        await asyncio.sleep(seconds)
        wall, after = time.monotonic() - began, await asyncio.to_thread(self.counts)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(outcome, asyncio.CancelledError):
                raise SystemExit(f"a client broke off: {outcome!r}")
        spent = {name: after[name] - before.get(name, 0) for name in after}
        steps, rows = spent["kaminari_decode_steps_total"], spent["kaminari_decode_rows_total"]
        if not steps:
            raise SystemExit(f"no decode step in {seconds} s")
        host = sum(spent[f'kaminari_step_seconds_total{{part="{part}"}}'] for part in HOST_PARTS)
        return Figures(
            tokens_per_second=spent["kaminari_completion_tokens_total"] / wall,
            rows_per_step=rows / steps,
            step_ms=wall / steps * 1000,
            thread_ms=host / steps * 1000,
        )

    async def _client(self) -> None:
        """Ask again and again."""
        body = json.dumps(
            {
                "messages": [{"role": "user", "content": QUESTION}],
                "temperature": 0,
                "stream": True,
                "max_tokens": TOKENS,
                # the demo would stop after a word, and end tokens show no text
                "min_tokens": TOKENS,
            }
        ).encode()
        head = [
            "POST /v1/chat/completions HTTP/1.1",
            "Host: localhost",
            "Connection: close",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        request = "\r\n".join([*head, "", ""]).encode() + body
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(request)
                last = b""
                while data := await reader.read(1 << 16):
                    last = (last + data)[-64:]
            finally:
                writer.close()
            if b"[DONE]" not in last:
                raise RuntimeError(f"a stream ended in {last!r}")


def alone_ms(threads: str, slots: str, clients: Sequence[int]) -> dict[int, float]:
    """Milliseconds of forward pass and draw with the rows of so many clients, and nothing around them."""
    settings = Settings(engine=EngineSettings(threads=threads, slots=slots))
    found: dict[int, float] = {}
    with torch.inference_mode():
        loaded = load_model(settings)
        prompt = loaded.frontend.prepare(Conversation.ask(QUESTION))
        params = SamplingParams(temperature=0, max_tokens=TOKENS, min_tokens=TOKENS)
        for count in sorted({min(each, loaded.info.slots) for each in clients}):
            loop = EngineLoop(loaded, lambda _: None)
            loop.runner.warm_up()
            for number in range(count):
                stream = EventStream(on_abort=lambda: None)
                loop.accept(Request(number, prompt, params, TOKENS, 0, stream, time.monotonic()))
            while loop.clock.counts().rows < 3 * count:
                loop.step()
            before = loop.clock.counts()
            while not loop.idle:
                loop.step()
            after = loop.clock.counts()
            spent = sum(
                after.seconds[part] - before.seconds[part] for part in ("forward", "sample", "collect")
            )
            found[count] = spent / (after.steps - before.steps) * 1000
        return {each: found[min(each, loaded.info.slots)] for each in clients}


def measure(
    servers: dict[int, Server], clients: Sequence[int], rounds: int, seconds: float
) -> dict[tuple[int, int], Figures]:
    """Medians by (depth, clients)."""
    seen: dict[tuple[int, int], list[Figures]] = {}
    for server in servers.values():
        asyncio.run(server.load(2, 1.0))
    for _ in range(rounds):
        for count in clients:
            for depth, server in servers.items():
                seen.setdefault((depth, count), []).append(asyncio.run(server.load(count, seconds)))
    return {
        key: Figures(*(median(values) for values in zip(*map(astuple, figures), strict=True)))
        for key, figures in seen.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument(
        "--depth", type=int, nargs="+", default=[1], help="pipeline depths, a server for each"
    )
    parser.add_argument("--threads", default="auto")
    parser.add_argument("--slots", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3, help="of each load")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args()
    alone = alone_ms(args.threads, args.slots, args.clients)
    with ExitStack() as stack:
        servers = {
            depth: stack.enter_context(Server(args.threads, args.slots, depth)) for depth in args.depth
        }
        found = measure(servers, args.clients, args.rounds, args.seconds)
    results = []
    for (depth, clients), figures in found.items():
        device = alone[clients]
        host = (figures.step_ms - device) / figures.rows_per_step
        results.append(
            {
                "depth": depth,
                "clients": clients,
                **asdict(figures),
                "device_ms": device,
                "host_ms_per_row": host,
            }
        )
    if args.json:
        print(json.dumps(results, indent=2))
        return 0
    print("depth clients   tokens/s  rows/step   ms/step  device alone  host ms/row  engine thread ms/step")
    for result in results:
        print(
            "{depth:5} {clients:7} {tokens_per_second:10.0f} {rows_per_step:10.1f} {step_ms:9.2f} "
            "{device_ms:13.2f} {host_ms_per_row:12.3f} {thread_ms:22.2f}".format(**result)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
