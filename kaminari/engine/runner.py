"""Runs the scheduler's items on the device. Owns the cache and every per-slot tensor; decides nothing.

A forward pass and its draw are apart, and neither waits for the device: the token that a step draws stays
there, in `_last_tokens`, where the next step finds it. Only `Drawn.collect` waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

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
from kaminari.engine.step_clock import StepClock
from kaminari.engine.step_graphs import StepGraphs, recorder_for
from kaminari.engine.token_mask import token_mask
from kaminari.engine.transfer import mark, to_device
from kaminari.model.batch import FeatureRows, RowLengths, StepBatch
from kaminari.model.family import VisionLanguageModel, VisionRows
from kaminari.model.operators import greedy, leave, narrow, pick


class VisionRowsMismatch(Exception):
    """The tower returned another number of rows than the prompt has placeholders."""


@dataclass(slots=True)
class _RunnerJob:
    """A prompt on the device: tokens [T], positions [3, T], what is done to its logits, what holds each
    choice, whether it only takes the largest of its logits, and the rows of its pictures so far."""

    prompt: PreparedPrompt
    params: SamplingParams
    seed: int
    tokens: Tensor
    positions: Tensor
    rules: LogitRules
    constraints: Sequence[Constraint | None]
    plain: bool
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
        self._fault: Exception | None = None
        recorder = recorder_for(self.cache, model.device, overlap)
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
            plain=params.greedy and free and not rules.edits,
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
        self._wait()
        for slot in slots:
            self.cache.scrub(slot)

    def encode_picture(self, item: EncodePicture) -> None:
        """Run the vision tower over one picture. Raises `VisionRowsMismatch`."""
        self._begin()
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
        """What waits for all that was launched None on a CPU, where pictures and chunks keep the host."""
        return mark(self._device)

    def overlaps(self, item: Item) -> bool:
        """Whether launching an item leaves the host free; on a CPU only captured steps do."""
        if self._device.type == "cuda":
            return True
        return self._overlap and isinstance(item, DecodeStep) and len(item.rows) in self._graphs

    def prefill(self, item: PrefillChunk) -> Undrawn | None:
        """Run one chunk. The last chunk of a prompt leaves the first token of every choice to draw."""
        self._begin()
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
        """Run one decode step: feed every row its last token."""
        self._begin()
        slots = tuple(row.slot for row in rows)
        lengths = tuple(row.cached + 1 for row in rows)
        positions = [row.cached + self._jobs[row.job].prompt.position_offset for row in rows]
        layout = (slots, lengths, positions)
        host = RowLengths(slots, (1,) * len(rows), lengths)
        if len(rows) in self._graphs:
            self.cache.check_rows(host)
            self._clock.lap("prepare")
            logits, likeliest = self._graphs.run(layout)
            self.cache.advance(slots)
        else:
            on_device = self._tensor(layout)
            self._clock.lap("prepare")
            logits, likeliest = self._step(on_device, host)
        self._clock.lap("forward")
        self._clock.steps += 1
        self._clock.rows += len(rows)
        drawing = tuple(DrawRow(row.job, row.choice, row.slot, row.index) for row in rows)
        return Undrawn(logits, drawing, likeliest)

    def _step(self, layout: Tensor, host: RowLengths) -> tuple[Tensor, Tensor]:
        """Logits [R, vocab] of a decode step and the likeliest ids [R], as `Undrawn` has them: layout [3, R]
        holds slots, lengths and positions."""
        rows = layout.shape[1]
        batch = StepBatch(
            tokens=pick(self._last_tokens, layout[0]),
            positions=layout[2].expand(3, -1),
            slots=layout[0],
            q_lens=self._ones[:rows],
            kv_lens=narrow(layout[1]),
            logit_rows=self._numbers[:rows],
            host=host,
        )
        logits = self.model.head(self.model.forward(batch, self.cache))
        likeliest = greedy(logits)
        leave(self._last_tokens, layout[0], likeliest)
        return logits, likeliest

    def _captured_step(self, layout: Tensor) -> tuple[Tensor, Tensor]:
        """`_step` for rows of any slots and lengths. CUDA makes room by the host's copy of the lengths: to it
        every row is as long as a slot. On a CPU the rows are what they are while they are captured."""
        rows = layout.shape[1]
        length = self.cache.capacity if self._device.type == "cuda" else 1
        for slot in range(rows):
            self.cache.assume(slot, length - 1)
        return self._step(layout, RowLengths(tuple(range(rows)), (1,) * rows, (length,) * rows))

    def draw(self, undrawn: Undrawn, rows: Sequence[DrawRow]) -> Drawn:
        """Draw one token for each of these rows of `undrawn`, and leave it where the next step finds it."""
        rows = tuple(rows)
        places = None
        if rows != undrawn.rows:
            numbers = {row: place for place, row in enumerate(undrawn.rows)}
            places = self._tensor([numbers[row] for row in rows])
        jobs = [self._jobs[row.job] for row in rows]
        if undrawn.likeliest is None or not all(job.plain for job in jobs):
            return self._sample(undrawn, rows, jobs, places)
        self._clock.lap("prepare")
        self._join()
        drawn = Drawn(rows, undrawn.likeliest if places is None else pick(undrawn.likeliest, places))
        self._clock.lap("sample")
        return drawn

    def _sample(
        self,
        undrawn: Undrawn,
        rows: tuple[DrawRow, ...],
        jobs: Sequence[_RunnerJob],
        places: Tensor | None,
    ) -> Drawn:
        """`draw` for rows that ask for more than the largest logit: those at `places`, or all."""
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
        self._clock.lap("prepare")
        self._join()
        logits, likeliest = undrawn.logits, undrawn.likeliest
        if places is not None:
            logits = logits.index_select(0, places)
            likeliest = None if likeliest is None else likeliest.index_select(0, places)
        sampled = sample(
            logits, params, mask, noise, edits, likeliest=likeliest, logprobs=bool(asked), top=top
        )
        self._logits.record(slots, index, sampled.ids)
        self._last_tokens.index_copy_(0, index, sampled.ids)
        drawn = Drawn(rows, sampled, tops)
        self._clock.lap("sample")
        return drawn

    def _begin(self) -> None:
        """Make way for another item: nobody draws from a step whose rows were all over meanwhile."""
        self._wait()
        self._fault = None

    def _join(self) -> None:
        """Wait for the step that runs beside this thread. Raises what went wrong in it."""
        self._wait()
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def _wait(self) -> None:
        """See that no step runs any more; what went wrong in it is kept for whoever draws from it."""
        try:
            if seconds := self._graphs.wait():
                self._clock.add("forward", seconds)
        except (MemoryError, ValueError) as fault:
            self._fault = fault

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
