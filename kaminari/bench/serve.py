"""The serve suite: what clients see of a server over HTTP, from one client to many, text and pictures mixed.

The limit beside the tokens per second is what the whole load needs at the machine's limits: every prompt's
and picture's operations, and decode steps that are as full as the clients and the slots let them be.
"""

from __future__ import annotations

import json

import httpx
import numpy as np

from kaminari.bench.bench import Bench
from kaminari.bench.decoders import LLAMA
from kaminari.bench.load import Ask, Load, closed_loop, open_loop
from kaminari.bench.recorder import Case
from kaminari.bench.result import OURS, Share
from kaminari.bench.server_process import RunningServer, free_port, own_environment, own_line, running
from kaminari.bench.step_counts import Steps, read_counts
from kaminari.bench.vision import NO_BUDGET
from kaminari.bench.work import count_operations, operations_floor, prompt_floor, step_floor
from kaminari.smoke.pictures import data_url, line

PERCENTILES = (50, 95)
# of what the closed loop reached: an open loop at all of it would only show its own queue
OPEN_SHARE = 0.7
ABOUT = "What does it say?"
STORY = "Count from one to twenty in words, and then say which of them is the longest and why that is so."
MODEL_SECONDS = 60.0


def run(bench: Bench) -> None:
    """Measure kaminari's server, and after it the peer's with the same load."""
    options, subject = bench.options, bench.subject
    floors = _Floors(bench)
    port = free_port()
    entrants = [(OURS, own_line(port), own_environment(subject.settings))]
    if bench.llama_cpp is not None:
        capacity = subject.plan.capacity
        theirs = bench.llama_cpp.server_line(port, capacity.slots, capacity.context)
        entrants.append((LLAMA, theirs, own_environment(subject.settings)))
    bench.recorder.expect((len(options.clients) + 1) * len(entrants))
    rate = options.rate
    for name, line_, environment in entrants:
        bench.recorder.starting(f"starting {name}")
        with running(name, line_, port, environment) as server:
            reached = _closed(bench, name, server, floors)
            rate = rate or OPEN_SHARE * reached
            _open(bench, name, server, rate)


def _closed(bench: Bench, name: str, server: RunningServer, floors: _Floors) -> float:
    """Every level of the closed loop; returns the most requests per second."""
    model = _model(server.url)
    reached = 0.0
    # connections, worker threads and the picture side are warm before anything counts
    closed_loop(server.url, asks(bench, name, model, 2, 0), 1)
    for clients in sorted(bench.options.clients):
        case: Case = {"loop": "closed", "clients": clients}
        bench.recorder.starting(f"{name}: {clients} clients")
        made = asks(bench, name, model, bench.options.requests * clients, clients)
        counts = read_counts(server.url) if bench.options.profile and name == OURS else None
        load = closed_loop(server.url, made, clients)
        record(bench, name, case, load)
        if counts is not None:
            _attribute(bench, case, Steps.between(counts, read_counts(server.url), load.seconds))
        bench.recorder.row(name, case).values["limit_tokens_per_second"] = floors.tokens_per_second(
            load, clients
        )
        reached = max(reached, len(load.answers) / load.seconds)
        bench.recorder.done(f"{name}: {clients} clients")
    return reached


def _attribute(bench: Bench, case: Case, steps: Steps | None) -> None:
    """Keep where the time of a level's steps went."""
    if steps is None:
        bench.recorder.note("answers of one token need no decode step: there was no time to attribute")
        return
    bench.recorder.shares += [
        Share(case=case, component=part, seconds=seconds) for part, seconds in steps.parts.items()
    ]
    bench.recorder.row(OURS, case).values.update(steps.values)


def _open(bench: Bench, name: str, server: RunningServer, rate: float) -> None:
    case: Case = {"loop": "open", "rate": round(rate, 3)}
    bench.recorder.starting(f"{name}: {rate:.2f} requests per second")
    count = bench.options.requests * max(1, max(bench.options.clients) // 2)
    load = open_loop(server.url, asks(bench, name, _model(server.url), count, 10_000), rate)
    record(bench, name, case, load)
    bench.recorder.done(f"{name}: open loop")


def asks(bench: Bench, name: str, model: str, count: int, seed: int) -> list[Ask]:
    """`count` requests to an entrant, no two of them alike; pictures are spread evenly among them.

    Every answer has as many tokens, and no end among them, which would show no text: the peer's `ignore_eos`
    does not draw them either, ours would go on behind them.
    """
    endless = {"ignore_eos": True} if name == LLAMA else {"min_tokens": bench.options.tokens}
    share, tokens = bench.options.pictures_share, bench.options.tokens
    made = []
    for number in range(count):
        pictured = int((number + 1) * share) > int(number * share)
        label = f"{seed}-{number}"
        content: object = f"({label}) {STORY}"
        if pictured:
            picture = data_url(line(label))
            content = [
                {"type": "image_url", "image_url": {"url": picture}},
                {"type": "text", "text": ABOUT},
            ]
        body = {
            "model": model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": tokens,
            **endless,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        made.append(Ask(json.dumps(body).encode(), int(pictured)))
    return made


def record(bench: Bench, name: str, case: Case, load: Load) -> None:
    """A level's figures: seconds of whole answers, percentiles, and rates."""
    answers = load.answers
    row = bench.recorder.row(name, case)
    row.samples += [answer.whole for answer in answers]
    gaps = [gap for answer in answers for gap in answer.gaps]
    for label, samples in (
        ("first", [answer.first for answer in answers]),
        ("gap", gaps),
        ("whole", row.samples),
    ):
        for percentile in PERCENTILES if samples else ():
            row.values[f"{label}_p{percentile}"] = float(np.percentile(samples, percentile))
    row.values |= {
        "tokens_per_second": sum(answer.tokens for answer in answers) / load.seconds,
        "pictures_per_second": sum(answer.pictures for answer in answers) / load.seconds,
        "requests_per_second": len(answers) / load.seconds,
        "client_cores": load.client,
    }


class _Floors:
    """What a load needs at the machine's limits, counted on the loaded model."""

    def __init__(self, bench: Bench) -> None:
        self._limits, self._work = bench.limits, bench.subject.work
        self._slots = bench.subject.plan.capacity.slots
        picture = bench.subject.plan.prompt_format.prepare_picture(line("0-0"), NO_BUDGET)
        operations = count_operations(lambda: bench.subject.loaded.model.encode_picture(picture))
        self._picture = operations_floor(operations)(self._limits) or 0.0

    def tokens_per_second(self, load: Load, clients: int) -> float:
        rows = min(clients, self._slots)
        seconds = 0.0
        for answer in load.answers:
            step = step_floor(self._work, rows, answer.prompt_tokens)(self._limits) or 0.0
            seconds += prompt_floor(self._work, answer.prompt_tokens)(self._limits) or 0.0
            seconds += answer.pictures * self._picture + (answer.tokens - 1) * step / rows
        return sum(answer.tokens for answer in load.answers) / seconds


def _model(url: str) -> str:
    answer = httpx.get(f"{url}/models", timeout=MODEL_SECONDS, trust_env=False)
    answer.raise_for_status()
    name: str = answer.json()["data"][0]["id"]
    return name
