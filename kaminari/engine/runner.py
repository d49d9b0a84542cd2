"""Runs the scheduler's items on the device. Owns the cache and every per-slot tensor; decides nothing.

A forward pass and its draw are apart, and neither waits for the device: the token that a step draws stays
there, in `_last_tokens`, where the next step finds it. Only `Drawn.collect` waits. A step draws itself where
every row does so by its logits and numbers alone: then the next one can be launched while it runs. On a CPU
only captured steps run beside the host: all else waits for them first, as does the draw of a step that does
not draw itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from kaminari.engine.constraints import Constraint
from kaminari.engine.drawn import Drawn, DrawRow, Undrawn
from kaminari.engine.logit_table import LogitRules, LogitTable
from kaminari.engine.noise import uniform
from kaminari.engine.params import SamplingParams
from kaminari.engine.prompt import PreparedPrompt
from kaminari.engine.sampler import sample
from kaminari.engine.sampling_table import SamplingTable
from kaminari.engine.scheduler import DecodeRow, DecodeStep, EncodePicture, Item, PrefillChunk
from kaminari.engine.step_block import Draw, Orders, StepInputs, step_block
from kaminari.engine.step_clock import StepClock
from kaminari.engine.step_graphs import Launched, StepGraphs, recorder_for
from kaminari.engine.token_mask import token_mask
from kaminari.engine.transfer import HostCopy, mark, to_device
from kaminari.model.batch import FeatureRows, RowLengths, StepBatch
from kaminari.model.family import VisionLanguageModel, VisionRows
from kaminari.model.operators import choose, chooses, leave, narrow, pick


class VisionRowsMismatch(Exception):
    """The tower returned another number of rows than the prompt has placeholders."""


@dataclass(slots=True)
class _RunnerJob:
    """A prompt on the device: tokens [T], positions [3, T], what is done to its logits, what holds each
    choice, whether a step may draw for it itself, and the rows of its pictures so far."""

    prompt: PreparedPrompt
    params: SamplingParams
    seed: int
    tokens: Tensor
    positions: Tensor
    rules: LogitRules
    constraints: Sequence[Constraint | None]
    itself: bool
    vision: dict[int, VisionRows] = field(default_factory=dict)


class Runner:
    """The device side of the engine: one model, one cache of `slots` slots of `context` tokens."""

    def __init__(
        self,
        model: VisionLanguageModel,
        slots: int,
        context: int,
        end_token_ids: AbstractSet[int],
        clock: StepClock | None = None,
        *,
        overlap: bool = False,
    ) -> None:
        """`overlap`: decode steps may run while the host does something else, where the device can."""
        self.model = model
        self._end_token_ids = end_token_ids
        self._overlap = overlap
        self._clock = clock or StepClock()
        self.cache = model.new_cache(slots, context)
        self._sampling = SamplingTable(slots, model.vocab_size, model.device)
        self._logits = LogitTable(slots, model.vocab_size, len(end_token_ids), model.device)
        self._last_tokens = torch.zeros(slots, dtype=torch.int64, device=model.device)
        self._numbers = torch.arange(slots, device=model.device)
        self._ones = torch.ones(slots, dtype=torch.int32, device=model.device)
        self._jobs: dict[int, _RunnerJob] = {}
        # else all that a step chooses is the largest of a row's logits
        self._chooses = chooses(torch.empty(0, dtype=model.dtype, device=model.device))
        recorder = recorder_for(self.cache, model.device, overlap, partial(self._clock.add, "forward"))
        self._graphs = StepGraphs(self._captured_step, model.device, recorder)

    def add(
        self,
        job: int,
        prompt: PreparedPrompt,
        params: SamplingParams,
        seed: int,
        constraints: Sequence[Constraint | None],
    ) -> None:
        """Bring a prompt to the device. `constraints` holds one of each choice, or None."""
        rules = self._logits.bring(params, prompt.text_ids, params.ending(self._end_token_ids))
        free = params.logprobs is None and all(each is None for each in constraints)
        self._jobs[job] = _RunnerJob(
            prompt,
            params,
            seed,
            self._tensor(prompt.token_ids),
            to_device(torch.from_numpy(prompt.positions), torch.int64, self._device),
            rules,
            constraints,
            itself=free and (self._chooses or (params.greedy and not rules.edits)),
        )

    def warm_up(self) -> None:
        """Run a prompt and a decode step once, so that the first request finds every kernel built; then
        `capture`."""
        job, slot = -1, 0
        prompt = PreparedPrompt((0, 0), np.tile(np.arange(2), (3, 1)), 0)
        self.add(job, prompt, SamplingParams(temperature=1.0), seed=0, constraints=[None])
        for undrawn in (
            self.prefill(PrefillChunk(job, (slot,), 0, 2, last=True)),
            self.decode([DecodeRow(job, 0, slot, cached=2, index=1)]),
        ):
            if undrawn is not None:
                self.draw(undrawn, undrawn.rows).collect()
        self.forget(job)
        self.capture()
        self.scrub(range(self.cache.slots))

    def capture(self) -> None:
        """Capture the decode steps, where that is possible. No slot may be in use."""
        self._graphs.capture(self.cache)

    def forget(self, job: int) -> None:
        """Drop what the device holds of a job, apart from its slots. An unknown job is no error."""
        self._jobs.pop(job, None)

    def scrub(self, slots: Sequence[int]) -> None:
        """Overwrite slots with zeros after a fault."""
        self._graphs.finish()
        for slot in slots:
            self.cache.scrub(slot)

    def encode_picture(self, item: EncodePicture) -> None:
        """Run the vision tower over one picture. Raises `VisionRowsMismatch`."""
        self._graphs.finish()
        job = self._jobs[item.job]
        picture = job.prompt.pictures[item.picture]
        rows = self.model.encode_picture(picture)
        self._clock.lap("forward")
        if rows.embeddings.shape[0] != picture.tokens:
            raise VisionRowsMismatch(
                f"the vision tower returned {rows.embeddings.shape[0]} rows for {picture.tokens} placeholders"
            )
        job.vision[item.picture] = rows

    def mark(self) -> Callable[[], None] | None:
        """What waits for all that was launched; None where nothing runs beside the host."""
        if self._device.type == "cuda":
            return mark(self._device)
        return self._graphs.finish if self._overlap else None

    def overlaps(self, item: Item) -> bool:
        """Whether launching an item leaves the host free; on a CPU only captured steps do."""
        if self._device.type == "cuda":
            return True
        return self._overlap and isinstance(item, DecodeStep) and len(item.rows) in self._graphs

    def prefill(self, item: PrefillChunk) -> Undrawn | None:
        """Run one chunk. The last chunk of a prompt leaves the first token of every choice to draw."""
        self._graphs.finish()
        job = self._jobs[item.job]
        first = item.slots[0]
        if item.start == 0:
            self.cache.claim(first)
        length = item.stop - item.start
        layout = self._tensor([first, length, item.stop])
        batch = StepBatch(
            tokens=job.tokens[item.start : item.stop],
            positions=job.positions[:, item.start : item.stop],
            slots=layout[:1],
            q_lens=layout[1:2].int(),
            kv_lens=layout[2:].int(),
            logit_rows=layout[1:2] - 1 if item.last else layout[:0],
            host=RowLengths((first,), (length,), (item.stop,)),
            features=self._features(job, item.start, item.stop),
        )
        self._clock.lap("prepare")
        hidden = self.model.forward(batch, self.cache)
        self._drop_used_rows(job, item.stop)
        if not item.last:
            self._clock.lap("forward")
            return None
        for slot in item.slots[1:]:
            self.cache.claim(slot)
            self.cache.copy(first, slot, item.stop)
        for slot in item.slots:
            self._sampling.set(slot, job.params)
            self._logits.claim(slot, job.rules)
        logits = self.model.head(hidden.index_select(0, batch.logit_rows)).expand(len(item.slots), -1)
        self._clock.lap("forward")
        rows = tuple(DrawRow(item.job, choice, slot, 0) for choice, slot in enumerate(item.slots))
        return Undrawn(logits, rows)

    def decode(self, rows: Sequence[DecodeRow]) -> Undrawn:
        """Run one decode step: feed every row its last token.

        Raises ValueError for rows whose slots are none, or do not go on there.
        """
        slots = tuple(row.slot for row in rows)
        lengths = tuple(row.cached + 1 for row in rows)
        host = RowLengths(slots, (1,) * len(rows), lengths)
        self.cache.check_rows(host)
        jobs = [self._jobs[row.job] for row in rows]
        positions = [row.cached + job.prompt.position_offset for row, job in zip(rows, jobs, strict=True)]
        itself = all(job.itself for job in jobs)
        wishes = [self._wish(row, job) for row, job in zip(rows, jobs, strict=True)] if itself else None
        block = step_block(slots, lengths, positions, wishes)
        if len(rows) in self._graphs:
            self._clock.lap("prepare")
            launched = self._graphs.run(block)
            self.cache.advance(slots)
        else:
            self._graphs.finish()
            on_device = to_device(torch.from_numpy(block), torch.int64, self._device)
            self._clock.lap("prepare")
            logits, chosen = self._step(on_device, host)
            launched = Launched(logits, chosen, HostCopy(chosen))
        self._clock.lap("forward")
        self._clock.steps += 1
        self._clock.rows += len(rows)
        drawing = tuple(DrawRow(row.job, row.choice, row.slot, row.index) for row in rows)
        if itself:
            return Undrawn(launched.logits, drawing, launched.ids)
        return Undrawn(launched.logits, drawing, likeliest=launched.chosen, ready=launched.ready)

    def _wish(self, row: DecodeRow, job: _RunnerJob) -> tuple[Orders, Draw]:
        """What a step does for a row that it draws for itself."""
        noise = 0.0 if job.params.greedy else uniform(job.seed, row.choice, row.index)
        return self._logits.orders(row.slot, row.index), Draw(*self._sampling.line(row.slot), noise)

    def _step(self, block: Tensor, host: RowLengths) -> tuple[Tensor, Tensor]:
        """Logits [R, vocab] of a decode step and the ids [R] that it chose, by a block on the device."""
        inputs = StepInputs.of(block)
        rows = block.shape[1]
        batch = StepBatch(
            tokens=pick(self._last_tokens, inputs.slots),
            positions=inputs.positions.expand(3, -1),
            slots=inputs.slots,
            q_lens=self._ones[:rows],
            kv_lens=narrow(inputs.lengths),
            logit_rows=self._numbers[:rows],
            host=host,
        )
        logits = self.model.head(self.model.forward(batch, self.cache))
        chosen = choose(logits, inputs.slots, inputs.orders, inputs.draws, self._logits.tables)
        leave(self._last_tokens, inputs.slots, chosen)
        return logits, chosen

    def _captured_step(self, block: Tensor) -> tuple[Tensor, Tensor]:
        """`_step` for rows of any slots and lengths. CUDA makes room by the host's copy of the lengths: to it
        every row is as long as a slot. On a CPU the rows are what they are while they are captured."""
        rows = block.shape[1]
        length = self.cache.capacity if self._device.type == "cuda" else 1
        for slot in range(rows):
            self.cache.assume(slot, length - 1)
        return self._step(block, RowLengths(tuple(range(rows)), (1,) * rows, (length,) * rows))

    def draw(self, undrawn: Undrawn, rows: Sequence[DrawRow]) -> Drawn:
        """Draw one token for each of these rows of `undrawn`, and leave it where the next step finds it."""
        rows = tuple(rows)
        places = None
        if rows != undrawn.rows:
            numbers = {row: place for place, row in enumerate(undrawn.rows)}
            places = [numbers[row] for row in rows]
        if undrawn.ids is not None:
            return Drawn(rows, undrawn.ids, places=places)
        return self._sample(undrawn, rows, places)

    def _sample(
        self,
        undrawn: Undrawn,
        rows: tuple[DrawRow, ...],
        places: Sequence[int] | None,
    ) -> Drawn:
        """`draw` for rows whose step could not: those at `places`, or all."""
        jobs = [self._jobs[row.job] for row in rows]
        slots = tuple(row.slot for row in rows)
        indices = [row.index for row in rows]
        index = self._tensor(slots)
        params = self._sampling.rows(slots, index)
        noise = None
        if not params.all_greedy:
            uniforms = [uniform(job.seed, row.choice, row.index) for job, row in zip(jobs, rows, strict=True)]
            noise = to_device(uniforms, torch.float64, self._device)
        tops = tuple(job.params.logprobs for job in jobs)
        asked = [top for top in tops if top is not None]
        edits = self._logits.rows(slots, index, indices)
        constraints = [job.constraints[row.choice] for job, row in zip(jobs, rows, strict=True)]
        mask = token_mask(constraints, self.model.vocab_size, self._device)
        top = min(max(asked, default=0), self.model.vocab_size)
        at = None if places is None else self._tensor(places)
        self._clock.lap("prepare")
        if undrawn.ready is not None:
            undrawn.ready()
        logits, likeliest = undrawn.logits, undrawn.likeliest
        if at is not None:
            logits = logits.index_select(0, at)
            likeliest = None if likeliest is None else likeliest.index_select(0, at)
        sampled = sample(
            logits, params, mask, noise, edits, likeliest=likeliest, logprobs=bool(asked), top=top
        )
        self._logits.record(slots, index, sampled.ids)
        self._last_tokens.index_copy_(0, index, sampled.ids)
        drawn = Drawn.sampled(rows, sampled, tops)
        self._clock.lap("sample")
        return drawn

    def _features(self, job: _RunnerJob, start: int, stop: int) -> FeatureRows | None:
        """Vision rows of the placeholders among prompt tokens [start, stop)."""
        index, embeddings, deepstack = [], [], []
        for span in job.prompt.spans:
            low, high = max(span.start, start), min(span.stop, stop)
            if low < high:
                rows = job.vision[span.picture]
                taken = slice(span.first_row + low - span.start, span.first_row + high - span.start)
                index.append(torch.arange(low - start, high - start, device=self._device))
                embeddings.append(rows.embeddings[taken])
                deepstack.append(rows.deepstack[:, taken])
        if not index:
            return None
        return FeatureRows(torch.cat(index), torch.cat(embeddings), torch.cat(deepstack, dim=1))

    def _drop_used_rows(self, job: _RunnerJob, stop: int) -> None:
        """Free the rows of every picture whose placeholders all lie before prompt token `stop`."""
        needed = {span.picture for span in job.prompt.spans if span.stop > stop}
        job.vision = {picture: rows for picture, rows in job.vision.items() if picture in needed}

    @property
    def _device(self) -> torch.device:
        return self.model.device

    def _tensor(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return to_device(values, torch.int64, self._device)
