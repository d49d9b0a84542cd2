"""The decode suite: seconds per step by batch and context, for rows that grow towards the context.

All entrants stand at the same length and take turns of a few steps. A prompt is filled in once per context;
of its rows fewer and fewer go on.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any

import torch

from kaminari.bench.bench import Bench
from kaminari.bench.hf import Reference
from kaminari.bench.limits import Memory
from kaminari.bench.options import Options
from kaminari.bench.recorder import join_case
from kaminari.bench.result import OURS
from kaminari.bench.session import Session, random_prompt
from kaminari.bench.subject import CasesError
from kaminari.bench.timing import timed, turns
from kaminari.bench.work import step_floor
from kaminari.engine.prompt import PreparedPrompt

WARM_STEPS = 2
HF, DYNAMIC, STATIC = "hf", "hf, dynamic cache", "hf, static cache"
LLAMA = "llama.cpp"
READING_ALONE = "reading alone"
# a prompt leaves at least so many places, or an eighth of the context, for the steps
LEAST_ROOM = 64


class Decoder(ABC):
    """One entrant: opened with a prompt, then stepped; its rows may become fewer."""

    name: str

    @abstractmethod
    def open(self, rows: int) -> None:
        """Fill the prompt in, for `rows` rows that all go on from it."""

    @abstractmethod
    def narrow(self, rows: int) -> None:
        """Go on with the first `rows` rows only."""

    @abstractmethod
    def steps(self, count: int) -> list[float]:
        """Make tokens for every row; returns the seconds of `count` steps."""


class OwnDecoder(Decoder):
    name = OURS

    def __init__(
        self, bench: Bench, prompt: PreparedPrompt, rows: int, context: int, *, captured: bool = True
    ) -> None:
        chunk = bench.subject.loaded.info.prefill_chunk
        self._session = Session(bench.subject.loaded, rows, context, chunk, captured=captured)
        self._prompt = prompt

    def open(self, rows: int) -> None:
        self._session.prefill(self._prompt, rows)

    def narrow(self, rows: int) -> None:
        self._session.narrow(rows)

    @property
    def tokens(self) -> dict[int, list[int]]:
        """What each row has made."""
        return self._session.tokens

    def steps(self, count: int) -> list[float]:
        # as many as a peer, which makes one that it cannot time
        return self._session.steps(count + 1)[1:]


class Filled:
    """A prompt in the cache of `transformers`, filled once for both of its kinds of cache."""

    def __init__(self, reference: Reference, prompt: PreparedPrompt) -> None:
        self._reference = reference
        self.prompt = prompt
        self._cache: Any = None

    def fresh(self, capacity: int | None) -> Any:
        """A cache of one row: a dynamic one, or a static one of `capacity` tokens."""
        if self._cache is None:
            self._cache = self._reference.filled_cache(self.prompt.token_ids)
        if capacity is None:
            return self._reference.copy_of(self._cache)
        return self._reference.static_cache(self._cache, capacity)


class ReferenceDecoder(Decoder):
    """capacity:  of the static cache; None: the dynamic one"""

    def __init__(self, name: str, reference: Reference, filled: Filled, capacity: int | None = None) -> None:
        self.name = name
        self._reference = reference
        self._filled = filled
        self._capacity = capacity
        self._cache: Any = None
        self.ids = torch.empty(0)

    def open(self, rows: int) -> None:
        self._cache = self._filled.fresh(self._capacity)
        self._cache.reorder_cache(torch.zeros(rows, dtype=torch.int64))
        self.ids = torch.tensor([self._filled.prompt.token_ids] * rows, device=self._reference.device)

    def narrow(self, rows: int) -> None:
        self._cache.reorder_cache(torch.arange(rows))
        self.ids = self.ids[:rows]

    def steps(self, count: int) -> list[float]:
        self.ids, seconds = self._reference.steps(self.ids, self._cache, count)
        return seconds


class Reader(Decoder):
    """Reads as many bytes as a step moves, and no more: what memory gives in the turns of the others."""

    name = READING_ALONE

    def __init__(self, bench: Bench, length: int) -> None:
        self._work = bench.subject.work
        self._device = bench.subject.device
        self._length = length
        self._memory = Memory(self._device, bench.subject.plan.dtypes.decoder, self._work.weight_bytes)
        self._bytes = 0

    def open(self, rows: int) -> None:
        self._memory.best_seconds()
        self.narrow(rows)

    def narrow(self, rows: int) -> None:
        self._bytes = self._work.step_bytes(rows, self._length)

    def steps(self, count: int) -> list[float]:
        return [timed(lambda: self._memory.read(self._bytes), self._device) for _ in range(count)]


def run(bench: Bench) -> None:
    options = bench.options
    batches = sorted(set(options.batches), reverse=True)
    room = steps_of(options)
    for context in options.contexts:
        if context <= prompt_room(context, room):
            raise CasesError(f"{room} steps leave no room for a prompt in {context} tokens; make fewer")
    bench.recorder.expect(options.rounds * entrant_count(bench) * len(batches) * len(options.contexts))
    for context in options.contexts:
        measure_context(bench, context, batches)


def measure_context(bench: Bench, context: int, batches: list[int]) -> None:
    """All batch sizes at one context, the largest first."""
    options, recorder = bench.options, bench.recorder
    entrants = decoders(bench, context, batches[0])
    needed = steps_of(options)
    room = prompt_room(context, needed)
    used = room
    for batch in batches:
        case = {"batch": batch, "context": context}
        floor = step_floor(bench.subject.work, batch, context - room)
        fresh = used + needed > room
        bench.measure_limits()
        for entrant in entrants:
            recorder.starting(f"{entrant.name}: filling {context} tokens" if fresh else join_case(case))
            entrant.open(batch) if fresh else entrant.narrow(batch)
            entrant.steps(WARM_STEPS)
        used = needed if fresh else used + needed
        for entrant in turns(entrants, options.rounds):
            own = None if isinstance(entrant, Reader) else floor
            row = recorder.row(entrant.name, case, floor=own, amounts={"tokens": batch})
            row.samples += entrant.steps(options.tokens)
            recorder.done(join_case(case))
    if bench.llama_cpp is not None:
        recorder.starting(f"{LLAMA}: context {context}")
        work = dataclasses.replace(bench.subject.work, weight_bytes=bench.llama_cpp.weight_bytes)
        for batch, seconds in bench.llama_cpp.decode(context - room, room, batches).items():
            case = {"batch": batch, "context": context}
            floor = step_floor(work, batch, context - room)
            row = recorder.row(LLAMA, case, floor=floor, amounts={"tokens": batch})
            row.samples.append(seconds)


def decoders(bench: Bench, context: int, rows: int, *, captured: bool = True) -> list[Decoder]:
    """Every entrant, none of them opened.

    captured:  as in `Session`, for our own
    """
    length = context - prompt_room(context, steps_of(bench.options))
    prompt = random_prompt(bench.subject.loaded, length)
    entrants: list[Decoder] = [OwnDecoder(bench, prompt, rows, context, captured=captured)]
    reference = bench.reference
    if reference is not None:
        filled = Filled(reference, prompt)
        entrants.append(ReferenceDecoder(DYNAMIC, reference, filled))
        if reference.static_works:
            entrants.append(ReferenceDecoder(STATIC, reference, filled, context))
        else:
            bench.recorder.note("no static cache in transformers for layers with a recurrent state")
    if bench.options.reading:
        entrants.append(Reader(bench, length))
    return entrants


def entrant_count(bench: Bench) -> int:
    own = 1 + bench.options.reading
    if bench.reference is None:
        return own
    return own + (2 if bench.reference.static_works else 1)


def steps_of(options: Options) -> int:
    """Tokens that a row makes in one case, with the one that its prompt draws."""
    return 1 + WARM_STEPS + 1 + options.rounds * (options.tokens + 1)


def prompt_room(context: int, steps: int) -> int:
    """Places that a prompt leaves for steps, so that no step reads past the context."""
    return max(LEAST_ROOM, context // 8, steps)
