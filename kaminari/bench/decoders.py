"""The entrants of the decode suite: each is opened with a prompt and then stepped, its rows fewer and fewer.

All of them stand at the same length and decode one prompt that their rows share. Nobody takes turns here.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any

import torch

from kaminari.bench.bench import Bench
from kaminari.bench.hf import Reference
from kaminari.bench.limits import Memory
from kaminari.bench.llama_cpp import LlamaCpp
from kaminari.bench.options import Options
from kaminari.bench.result import OURS
from kaminari.bench.session import Session, random_prompt
from kaminari.bench.timing import timed
from kaminari.bench.work import DecoderWork
from kaminari.engine.prompt import PreparedPrompt

WARM_STEPS = 2
HF, DYNAMIC, STATIC = "hf", "hf, dynamic cache", "hf, static cache"
LLAMA = "llama.cpp"
READING_ALONE = "reading alone"
# a prompt leaves at least so many places, or an eighth of the context, for the steps
LEAST_ROOM = 64
# of a turn of llama.cpp, so that its first step behind the prompt does not weigh much
LEAST_LLAMA_STEPS = 8


class Decoder(ABC):
    """One entrant: opened with a prompt, then stepped; its rows may become fewer.

    work:  what a step of it needs, from which its floor follows; None where there is no floor
    """

    name: str
    work: DecoderWork | None

    @abstractmethod
    def open(self, rows: int) -> None:
        """Fill the prompt in, for `rows` rows that all go on from it."""

    @abstractmethod
    def narrow(self, rows: int) -> None:
        """Go on with the first `rows` rows only."""

    def warm_up(self) -> None:
        """Make the steps that do not count."""
        self.steps(WARM_STEPS)

    @abstractmethod
    def steps(self, count: int) -> list[float]:
        """Make `count` tokens for every row; returns the seconds of each step, or what stands for them."""


class OwnDecoder(Decoder):
    name = OURS

    def __init__(
        self, bench: Bench, prompt: PreparedPrompt, rows: int, context: int, *, captured: bool = True
    ) -> None:
        self.work = bench.subject.work
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

    def __init__(
        self, name: str, work: DecoderWork, reference: Reference, filled: Filled, capacity: int | None = None
    ) -> None:
        self.name = name
        self.work = work
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
    work = None

    def __init__(self, bench: Bench, length: int) -> None:
        self._step = bench.subject.work
        self._device = bench.subject.device
        self._length = length
        self._memory = Memory(self._device, bench.subject.plan.dtypes.decoder, self._step.weight_bytes)
        self._bytes = 0

    def open(self, rows: int) -> None:
        self._memory.best_seconds()
        self.narrow(rows)

    def narrow(self, rows: int) -> None:
        self._bytes = self._step.step_bytes(rows, self._length)

    def steps(self, count: int) -> list[float]:
        return [timed(lambda: self._memory.read(self._bytes), self._device) for _ in range(count)]


class LlamaDecoder(Decoder):
    """llama.cpp: a process in each turn, which loads the model, fills the prompt in and times its steps."""

    name = LLAMA

    def __init__(self, bench: Bench, peer: LlamaCpp, length: int) -> None:
        self.work = dataclasses.replace(bench.subject.work, weight_bytes=peer.weight_bytes)
        self._peer = peer
        self._length = length
        self._rows = 0

    def open(self, rows: int) -> None:
        self._rows = rows

    def narrow(self, rows: int) -> None:
        self._rows = rows

    def warm_up(self) -> None:
        """Nothing stays warm from one process to the next."""

    def steps(self, count: int) -> list[float]:
        """The mean alone: a process tells no more."""
        return [self._peer.decode(self._length, max(count, LEAST_LLAMA_STEPS), self._rows)]


def decoders(bench: Bench, context: int, rows: int, *, captured: bool = True) -> list[Decoder]:
    """Every entrant, none of them opened.

    captured:  as in `Session`, for our own
    """
    length = context - prompt_room(context, steps_of(bench.options))
    prompt = random_prompt(bench.subject.loaded, length)
    entrants: list[Decoder] = [OwnDecoder(bench, prompt, rows, context, captured=captured)]
    reference = bench.reference
    if reference is not None:
        filled, work = Filled(reference, prompt), bench.subject.work
        entrants.append(ReferenceDecoder(DYNAMIC, work, reference, filled))
        if reference.static_works:
            entrants.append(ReferenceDecoder(STATIC, work, reference, filled, context))
        else:
            bench.recorder.note("no static cache in transformers for layers with a recurrent state")
    if bench.options.reading:
        entrants.append(Reader(bench, length))
    if bench.llama_cpp is not None:
        entrants.append(LlamaDecoder(bench, bench.llama_cpp, length))
    return entrants


def steps_of(options: Options) -> int:
    """Tokens that a row makes in one case, with the one that its prompt draws."""
    return 1 + WARM_STEPS + 1 + options.rounds * (options.tokens + 1)


def prompt_room(context: int, steps: int) -> int:
    """Places that a prompt leaves for steps, so that no step reads past the context."""
    return max(LEAST_ROOM, context // 8, steps)
