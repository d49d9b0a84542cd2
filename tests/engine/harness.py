"""Engines for tests: a real tiny model, stepped by hand, and one that can be sabotaged."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from kaminari.config import CompileChoice, DtypeChoice, EngineSettings, Folder, ModelSettings, Settings
from kaminari.engine.answer import Answer, AnswerBuilder
from kaminari.engine.conversation import Conversation
from kaminari.engine.events import Event
from kaminari.engine.loading import LoadedModel, load_model
from kaminari.engine.loop import EngineLoop
from kaminari.engine.params import SamplingParams
from kaminari.engine.prompt import PreparedPrompt
from kaminari.engine.requests import Request
from kaminari.engine.stream import EventStream
from kaminari.model.batch import StepBatch
from kaminari.model.cache import SlotCache
from kaminari.model.family import VisionLanguageModel, VisionRows
from kaminari.model.picture import Picture

DEPTH = 1
"""How deep the pipeline of an engine with these `settings` is; the fixture `depth` sets it."""

COMPILE = CompileChoice.AUTO
"""Whether an engine with these `settings` compiles its decode steps."""

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


def settings(folder: Path, *, slots: int = 4, context: int = 512, chunk: int = 64) -> Settings:
    return Settings(
        model=ModelSettings(source=Folder(folder), dtype=DtypeChoice.FLOAT32, compile=COMPILE),
        engine=EngineSettings(
            slots=slots, context=context, prefill_chunk=chunk, threads=1, pipeline_depth=DEPTH
        ),
    )


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture of smooth random colours: distinct for every seed, and the same under any resize filter."""
    rng = np.random.default_rng(seed)
    cells = rng.integers(0, 256, size=(5, 5, 3), dtype=np.uint8)
    return Image.fromarray(cells).resize((width, height), Image.Resampling.BICUBIC)


@dataclass(slots=True)
class Running:
    """A request in a loop that a test steps, and the events that it has had so far."""

    id: int
    stream: EventStream
    events: list[Event] = field(default_factory=list)

    def drain(self) -> list[Event]:
        """Move what has been published into `events`."""
        with self.stream._ready:
            news, _ = self.stream._take()
        self.events += news
        return news

    def answer(self) -> Answer:
        self.drain()
        builder = AnswerBuilder()
        for event in self.events:
            builder.add(event)
        return builder.answer()

    def token_ids(self) -> tuple[int, ...]:
        return tuple(self.answer().choices[0].token_ids)


class HandLoop:
    """An `EngineLoop` that a test drives tick by tick, without a thread."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.ended: list[int] = []
        self.loop = EngineLoop(loaded, self.ended.append)
        self._ids = itertools.count(1)

    def submit(self, prompt: PreparedPrompt | Conversation, params: SamplingParams = GREEDY) -> Running:
        if isinstance(prompt, Conversation):
            prompt = self.loaded.frontend.prepare(prompt)
        room = self.loaded.info.context - len(prompt.token_ids)
        request_id = next(self._ids)
        stream = EventStream(on_abort=lambda: self.loop.abort(request_id))
        tokens = min(room, params.max_tokens or room)
        self.loop.accept(
            Request(request_id, prompt, params, tokens, params.seed or 0, stream, submitted=time.monotonic())
        )
        return Running(request_id, stream)

    def step(self, ticks: int = 1) -> None:
        with torch.inference_mode():
            for _ in range(ticks):
                self.loop.step()
                self.loop.scheduler.check()

    def run(self, limit: int = 5000) -> None:
        """Step until nothing is left. Fails where that takes more than `limit` ticks."""
        for _ in range(limit):
            if self.loop.idle:
                return
            self.step()
        raise AssertionError(f"not idle after {limit} ticks")

    def is_clean(self) -> bool:
        """Every slot is free and nothing of any request is left, once what is in flight has settled."""
        if self.loop.pipeline.in_flight and not self.loop._requests:
            self.step()
        scheduler = self.loop.scheduler
        scheduler.check()
        free = scheduler.slots.free == scheduler.slots.slots
        return free and not scheduler.waiting and not scheduler.running and not self.loop.runner._jobs


def hand_loop(
    folder: Path,
    *,
    slots: int = 4,
    context: int = 512,
    chunk: int = 64,
    wrap: Callable[[VisionLanguageModel], VisionLanguageModel] | None = None,
) -> HandLoop:
    with torch.inference_mode():
        loaded = load_model(settings(folder, slots=slots, context=context, chunk=chunk))
        if wrap is not None:
            loaded = replace(loaded, model=wrap(loaded.model))
        return HandLoop(loaded)


class Sabotaged(VisionLanguageModel):
    """A model that does harm where a test asks for it.

    nan_slots:     slots whose logits are NaN (and whose keys and values are made NaN with them)
    fail_next:     exception to raise from the next forward pass
    fail_picture:  exception to raise from the next picture
    drop_row:      the next picture comes back one row short
    """

    def __init__(self, model: VisionLanguageModel) -> None:
        self.model = model
        self.device, self.dtype, self.vocab_size = model.device, model.dtype, model.vocab_size
        self.nan_slots: set[int] = set()
        self.fail_next: Exception | None = None
        self.fail_picture: Exception | None = None
        self.drop_row = False
        self.decode_batches: list[int] = []
        self._rows: list[bool] = []

    def new_cache(self, slots: int, capacity: int) -> SlotCache:
        self.cache = self.model.new_cache(slots, capacity)
        return self.cache

    def encode_picture(self, picture: Picture) -> VisionRows:
        error, self.fail_picture = self.fail_picture, None
        if error is not None:
            raise error
        rows = self.model.encode_picture(picture)
        if self.drop_row:
            self.drop_row = False
            rows = VisionRows(rows.embeddings[1:], rows.deepstack[:, 1:])
        return rows

    def forward(self, batch: StepBatch, cache: SlotCache) -> Tensor:
        error, self.fail_next = self.fail_next, None
        if error is not None:
            raise error
        if set(batch.host.q_lens) == {1}:
            self.decode_batches.append(len(batch.host.slots))
        hidden = self.model.forward(batch, cache)
        row_of = torch.repeat_interleave(
            torch.arange(len(batch.host.slots), device=self.device), batch.q_lens.long()
        )
        for row, slot in enumerate(batch.host.slots):
            if slot in self.nan_slots:
                hidden = torch.where((row_of == row)[:, None], torch.nan, hidden)
                poison(cache, [slot])
        return hidden

    def head(self, hidden: Tensor) -> Tensor:
        return self.model.head(hidden)


@torch.inference_mode()
def poison(cache: SlotCache, slots: Sequence[int] | None = None) -> None:
    """Fill what slots hold (by default all of them) with NaN."""
    for tensor in cache_tensors(cache):
        for slot in range(cache.slots) if slots is None else slots:
            tensor[slot].fill_(torch.nan)


def cache_tensors(cache: SlotCache) -> list[Tensor]:
    """All that the layers hold of their slots, whatever kind they are: tensors [slots, ...]."""
    return [each for layer in cache.layers for each in vars(layer).values() if isinstance(each, Tensor)]


@contextmanager
def quiet(logger: str) -> Iterator[None]:
    """Silence a logger for faults that a test makes on purpose."""
    import logging

    target = logging.getLogger(logger)
    target.disabled = True
    try:
        yield
    finally:
        target.disabled = False
