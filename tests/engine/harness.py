"""Engines for tests: a real tiny model, stepped by hand, and one that can be sabotaged."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
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
from kaminari.engine.runner import Runner
from kaminari.engine.step_block import Block
from kaminari.engine.step_graphs import Launched
from kaminari.engine.stream import EventStream
from kaminari.model.batch import StepBatch
from kaminari.model.cache import SlotCache
from kaminari.model.family import VisionLanguageModel, VisionRows
from kaminari.model.picture import Picture


@dataclass(frozen=True, slots=True)
class Mode:
    """How an engine runs its steps.

    depth:     of the pipeline
    compiled:  decode steps run compiled
    captured:  decode steps are captured before the first request and replayed, where that can be
    """

    depth: int = 1
    compiled: bool = False
    captured: bool = False


EAGER = Mode()
MODES = {
    "eager at depth 1": EAGER,
    "compiled at depth 2": Mode(depth=2, compiled=True, captured=True),
    "captured at depth 2": Mode(depth=2, captured=True),
}
"""Compiled steps are captured on CUDA alone: a program of native calls holds no compiled code."""

MODE = EAGER
"""Of engines for which a test names none; the fixtures `mode` and `depth` set it."""

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


def settings(
    folder: Path, *, slots: int = 4, context: int = 512, chunk: int = 64, mode: Mode | None = None
) -> Settings:
    mode = mode or MODE
    compiled = CompileChoice.ON if mode.compiled else CompileChoice.AUTO
    return Settings(
        model=ModelSettings(source=Folder(folder), dtype=DtypeChoice.FLOAT32, compile=compiled),
        engine=EngineSettings(
            slots=slots, context=context, prefill_chunk=chunk, threads=1, pipeline_depth=mode.depth
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
    mode: Mode | None = None,
) -> HandLoop:
    mode = mode or MODE
    with torch.inference_mode():
        loaded = load_model(settings(folder, slots=slots, context=context, chunk=chunk, mode=mode))
        if wrap is not None:
            loaded = replace(loaded, model=wrap(loaded.model))
        engine = HandLoop(loaded)
        if mode.captured:
            engine.loop.runner.capture()
        if isinstance(loaded.model, Sabotaged):
            loaded.model.watch(engine.loop.runner)
        return engine


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

    def watch(self, runner: Runner) -> None:
        """Do harm in captured steps too, and forget those that were run to capture them."""
        self.finish = runner._graphs.finish
        runner._graphs.run = partial(self.replay, runner._graphs.run)  # type: ignore[method-assign]
        self.decode_batches.clear()

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
        self._strike()
        slots = batch.host.slots
        if set(batch.host.q_lens) == {1}:
            self.decode_batches.append(len(slots))
        hidden = self.model.forward(batch, cache)
        for row in (row for row, slot in enumerate(slots) if slot in self.nan_slots):
            first = sum(batch.host.q_lens[:row])
            hidden[first : first + batch.host.q_lens[row]] = torch.nan
            poison(cache, [slots[row]])
        return hidden

    def replay(self, run: Callable[[Block], Launched], block: Block) -> Launched:
        """Run a captured step, which calls nothing of the model: NaN comes from what the slot holds."""
        self._strike()
        slots = block[0].tolist()
        self.decode_batches.append(len(slots))
        if struck := self.nan_slots.intersection(slots):
            self.finish()
            poison(self.cache, sorted(struck))
        return run(block)

    def _strike(self) -> None:
        error, self.fail_next = self.fail_next, None
        if error is not None:
            raise error

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
