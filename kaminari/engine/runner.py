"""Runs the scheduler's items on the device. Owns the cache and every per-slot tensor; decides nothing.

Launching a step never waits for its results: the token that a step draws stays on the device, in
`_last_tokens`, where the next step finds it. Only `Drawn.collect` copies to the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kaminari.engine.constraints import Constraint
from kaminari.engine.drawn import Drawn
from kaminari.engine.logit_table import LogitRules, LogitTable
from kaminari.engine.noise import uniform
from kaminari.engine.params import SamplingParams
from kaminari.engine.prompt import PreparedPrompt
from kaminari.engine.sampler import sample
from kaminari.engine.sampling_table import SamplingTable
from kaminari.engine.scheduler import DecodeRow, EncodePicture, PrefillChunk
from kaminari.engine.token_mask import token_mask
from kaminari.model.batch import FeatureRows, RowLengths, StepBatch
from kaminari.model.family import VisionLanguageModel, VisionRows


class VisionRowsMismatch(Exception):
    """The tower returned another number of rows than the prompt has placeholders."""


@dataclass(slots=True)
class _RunnerJob:
    """A prompt on the device: tokens [T], positions [3, T], what is done to its logits, what holds each
    choice, and the rows of its pictures so far."""

    prompt: PreparedPrompt
    params: SamplingParams
    seed: int
    tokens: Tensor
    positions: Tensor
    rules: LogitRules
    constraints: Sequence[Constraint | None]
    vision: dict[int, VisionRows] = field(default_factory=dict)


class Runner:
    """The device side of the engine: one model, one cache of `slots` slots of `context` tokens."""

    def __init__(
        self, model: VisionLanguageModel, slots: int, context: int, end_token_ids: AbstractSet[int]
    ) -> None:
        self.model = model
        self._end_token_ids = end_token_ids
        self.cache = model.new_cache(slots, context)
        self._sampling = SamplingTable(slots, model.vocab_size, model.device)
        self._logits = LogitTable(slots, model.vocab_size, len(end_token_ids), model.device)
        self._last_tokens = torch.zeros(slots, dtype=torch.int64, device=model.device)
        self._jobs: dict[int, _RunnerJob] = {}

    def add(
        self,
        job: int,
        prompt: PreparedPrompt,
        params: SamplingParams,
        seed: int,
        constraints: Sequence[Constraint | None],
    ) -> None:
        """Bring a prompt to the device. `constraints` holds one of each choice, or None."""
        self._jobs[job] = _RunnerJob(
            prompt,
            params,
            seed,
            self._tensor(prompt.token_ids),
            torch.from_numpy(prompt.positions).to(self._device),
            self._logits.bring(params, prompt.text_ids, params.ending(self._end_token_ids)),
            constraints,
        )

    def warm_up(self) -> None:
        """Run a prompt and a decode step once, so that the first request finds every kernel built."""
        job, slot = -1, 0
        prompt = PreparedPrompt((0, 0), np.tile(np.arange(2), (3, 1)), 0)
        self.add(job, prompt, SamplingParams(temperature=1.0), seed=0, constraints=[None])
        for drawn in (
            self.prefill(PrefillChunk(job, (slot,), 0, 2, last=True)),
            self.decode([DecodeRow(job, 0, slot, cached=2, index=1)]),
        ):
            if drawn is not None:
                drawn.collect()
        self.forget(job)
        self.scrub([slot])

    def forget(self, job: int) -> None:
        """Drop what the device holds of a job, apart from its slots. An unknown job is no error."""
        self._jobs.pop(job, None)

    def scrub(self, slots: Sequence[int]) -> None:
        """Overwrite slots with zeros after a fault."""
        for slot in slots:
            self.cache.scrub(slot)

    def encode_picture(self, item: EncodePicture) -> None:
        """Run the vision tower over one picture. Raises `VisionRowsMismatch`."""
        job = self._jobs[item.job]
        picture = job.prompt.pictures[item.picture]
        rows = self.model.encode_picture(picture)
        if rows.embeddings.shape[0] != picture.tokens:
            raise VisionRowsMismatch(
                f"the vision tower returned {rows.embeddings.shape[0]} rows for {picture.tokens} placeholders"
            )
        job.vision[item.picture] = rows

    def prefill(self, item: PrefillChunk) -> Drawn | None:
        """Run one chunk. The last chunk of a prompt draws the first token of every choice."""
        job = self._jobs[item.job]
        first = item.slots[0]
        if item.start == 0:
            self.cache.claim(first)
        length = item.stop - item.start
        batch = StepBatch(
            tokens=job.tokens[item.start : item.stop],
            positions=job.positions[:, item.start : item.stop],
            slots=self._tensor([first]),
            q_lens=self._tensor([length], torch.int32),
            kv_lens=self._tensor([item.stop], torch.int32),
            logit_rows=self._tensor([length - 1] if item.last else []),
            host=RowLengths((first,), (length,), (item.stop,)),
            features=self._features(job, item.start, item.stop),
        )
        hidden = self.model.forward(batch, self.cache)
        self._drop_used_rows(job, item.stop)
        if not item.last:
            return None
        for slot in item.slots[1:]:
            self.cache.claim(slot)
            self.cache.copy(first, slot, item.stop)
        for slot in item.slots:
            self._sampling.set(slot, job.params)
            self._logits.claim(slot, job.rules)
        logits = self.model.head(hidden.index_select(0, batch.logit_rows)).expand(len(item.slots), -1)
        rows = tuple((item.job, choice) for choice in range(len(item.slots)))
        return self._draw(logits, item.slots, rows, indices=[0] * len(rows))

    def decode(self, rows: Sequence[DecodeRow]) -> Drawn:
        """Run one decode step: feed every row its last token and draw the next one."""
        slots = tuple(row.slot for row in rows)
        lengths = tuple(row.cached + 1 for row in rows)
        slot_index = self._tensor(slots)
        positions = self._tensor([row.cached + self._jobs[row.job].prompt.position_offset for row in rows])
        batch = StepBatch(
            tokens=self._last_tokens.index_select(0, slot_index),
            positions=positions.expand(3, -1),
            slots=slot_index,
            q_lens=torch.ones(len(rows), dtype=torch.int32, device=self._device),
            kv_lens=self._tensor(lengths, torch.int32),
            logit_rows=torch.arange(len(rows), device=self._device),
            host=RowLengths(slots, (1,) * len(rows), lengths),
        )
        logits = self.model.head(self.model.forward(batch, self.cache))
        drawn_rows = tuple((row.job, row.choice) for row in rows)
        return self._draw(logits, slots, drawn_rows, indices=[row.index for row in rows])

    def _draw(
        self,
        logits: Tensor,
        slots: tuple[int, ...],
        rows: tuple[tuple[int, int], ...],
        indices: Sequence[int],
    ) -> Drawn:
        """Draw one token per row from logits [R, V] and leave it where the next step finds it."""
        index = self._tensor(slots)
        params = self._sampling.rows(slots, index)
        noise = None
        if not params.all_greedy:
            keys = zip(rows, indices, strict=True)
            uniforms = [uniform(self._jobs[job].seed, choice, token) for (job, choice), token in keys]
            noise = torch.tensor(uniforms, dtype=torch.float64, device=self._device)
        tops = tuple(self._jobs[job].params.logprobs for job, _ in rows)
        asked = [top for top in tops if top is not None]
        edits = self._logits.rows(slots, index, indices)
        # The device is still at the forward pass here: it never waits for a grammar.
        constraints = [self._jobs[job].constraints[choice] for job, choice in rows]
        mask = token_mask(constraints, self.model.vocab_size, self._device)
        top = min(max(asked, default=0), self.model.vocab_size)
        sampled = sample(logits, params, mask, noise, edits, logprobs=bool(asked), top=top)
        self._logits.record(slots, index, sampled.ids)
        self._last_tokens.index_copy_(0, index, sampled.ids)
        return Drawn(rows, sampled, tops)

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

    def _tensor(self, values: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)
