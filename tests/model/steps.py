"""Drives a model directly through `StepBatch`, without the engine: prompts, packed steps, greedy loops."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from kaminari.model.batch import FeatureRows, RowLengths, StepBatch
from kaminari.model.cache import SlotCache
from kaminari.model.family import LoadOptions, VisionLanguageModel, find_family
from kaminari.model.picture import Picture
from tests.checkpoints import MERGE_SIZE
from tests.reference import Greedy, Reference, reference_greedy

CPU = torch.device("cpu")


def noise_picture(seed: int, width: int, height: int) -> Image.Image:
    """A picture of coloured noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def load(
    folder: Path, dtype: torch.dtype = torch.float32, vision_dtype: torch.dtype = torch.float32
) -> VisionLanguageModel:
    """Load a checkpoint on the CPU."""
    return find_family(folder).load(folder, LoadOptions(CPU, dtype, vision_dtype))


def make_picture(pixels: Tensor, grid: Sequence[int], size: tuple[int, int] = (0, 0)) -> Picture:
    """A `Picture` of patches [N, values] that the reference's processor has made."""
    frames, rows, columns = (int(side) for side in grid)
    tokens = frames * rows * columns // MERGE_SIZE**2
    return Picture(pixels.numpy(), ((frames, rows, columns),), tokens, size, b"")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the reference's processor makes it, ready for steps.

    positions:   [3, T], and the offset of what follows
    features:    vision rows of every placeholder of the prompt, in order; None without pictures
    golden:      the reference's greedy answer
    """

    token_ids: Tensor
    positions: Tensor
    offset: int
    features: FeatureRows | None
    golden: Greedy

    @property
    def length(self) -> int:
        return self.token_ids.shape[0]


def prepare(
    model: VisionLanguageModel,
    reference: Reference,
    turns: Sequence[tuple[str, Sequence[str | Image.Image]]],
    *,
    max_tokens: int = 12,
) -> Prompt:
    """Render turns of (role, parts), encode their pictures, and ask the reference for its answer."""
    images = [part for _, parts in turns for part in parts if not isinstance(part, str)]
    messages = [{"role": role, "content": [_content(part) for part in parts]} for role, parts in turns]
    text = reference.render(messages)
    inputs = reference.inputs(text, images)
    positions, offset = reference.model.model.get_rope_index(
        inputs["input_ids"],
        mm_token_type_ids=inputs["mm_token_type_ids"],
        image_grid_thw=inputs.get("image_grid_thw"),
    )
    features = None
    if images:
        grids = inputs["image_grid_thw"].tolist()
        patches = inputs["pixel_values"].split([f * r * c for f, r, c in grids])
        rows = [model.encode_picture(make_picture(*each)) for each in zip(patches, grids, strict=True)]
        features = FeatureRows(
            index=(inputs["mm_token_type_ids"][0] == 1).nonzero()[:, 0],
            embeddings=torch.cat([each.embeddings for each in rows]),
            deepstack=torch.cat([each.deepstack for each in rows], dim=1),
        )
    golden = reference_greedy(reference, text, images, max_tokens=max_tokens, ignore_eos=True)
    return Prompt(inputs["input_ids"][0], positions[:, 0], int(offset), features, golden)


def ask(*parts: str | Image.Image) -> list[tuple[str, Sequence[str | Image.Image]]]:
    """One user turn."""
    return [("user", parts)]


@dataclass(slots=True)
class Row:
    """A prompt on its way through one slot.

    cached:  tokens that the slot holds
    answer:  tokens drawn so far
    chunk:   most prompt tokens per step
    wait:    steps before it joins
    """

    prompt: Prompt
    slot: int
    chunk: int = 1 << 20
    wait: int = 0
    cached: int = 0
    answer: list[int] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return len(self.answer) >= len(self.prompt.golden.token_ids)

    def next_tokens(self) -> tuple[Tensor, Tensor]:
        """Tokens [n] and positions [3, n] of its next step."""
        stop = min(self.cached + self.chunk, self.prompt.length)
        if self.cached < stop:
            return self.prompt.token_ids[self.cached : stop], self.prompt.positions[:, self.cached : stop]
        position = torch.full((3, 1), self.cached + self.prompt.offset)
        return torch.tensor([self.answer[-1]]), position

    def features(self, length: int, start: int) -> FeatureRows | None:
        """Vision rows of its next `length` tokens, indexed from packed row `start`."""
        whole = self.prompt.features
        if whole is None:
            return None
        here = (whole.index >= self.cached) & (whole.index < self.cached + length)
        index = whole.index[here] - self.cached + start
        return FeatureRows(index, whole.embeddings[here], whole.deepstack[:, here])


def pack(rows: Sequence[Row]) -> StepBatch:
    """Pack the next step of several rows; every row's last token is a logit row."""
    pieces = [row.next_tokens() for row in rows]
    q_lens = [tokens.shape[0] for tokens, _ in pieces]
    starts = [sum(q_lens[:number]) for number in range(len(rows))]
    kv_lens = [row.cached + length for row, length in zip(rows, q_lens, strict=True)]
    features = [
        each
        for row, length, start in zip(rows, q_lens, starts, strict=True)
        if (each := row.features(length, start)) is not None and len(each.index)
    ]
    return StepBatch(
        tokens=torch.cat([tokens for tokens, _ in pieces]),
        positions=torch.cat([positions for _, positions in pieces], dim=1),
        slots=torch.tensor([row.slot for row in rows]),
        q_lens=torch.tensor(q_lens, dtype=torch.int32),
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32),
        logit_rows=torch.tensor(starts) + torch.tensor(q_lens) - 1,
        host=RowLengths(tuple(row.slot for row in rows), tuple(q_lens), tuple(kv_lens)),
        features=FeatureRows(
            torch.cat([each.index for each in features]),
            torch.cat([each.embeddings for each in features]),
            torch.cat([each.deepstack for each in features], dim=1),
        )
        if features
        else None,
    )


def step(model: VisionLanguageModel, cache: SlotCache, rows: Sequence[Row]) -> Tensor:
    """Run one packed step, draw greedily where a prompt is complete, and return logits [rows, vocab]."""
    batch = pack(rows)
    hidden = model.forward(batch, cache)
    logits = model.head(hidden.index_select(0, batch.logit_rows))
    for row, length, best in zip(rows, batch.host.kv_lens, logits.argmax(-1).tolist(), strict=True):
        row.cached = length
        if length >= row.prompt.length:
            row.answer.append(best)
    return logits


def run(
    model: VisionLanguageModel, cache: SlotCache, rows: Sequence[Row], *, seed: int | None = None
) -> None:
    """Step all rows until each has its answer: prefill chunks and decode rows share every step.

    Rows join after their wait and leave when done; with a seed the order of the rows changes every step.
    """
    order = random.Random(seed)
    tick = 0
    while not all(row.done for row in rows):
        active = [row for row in rows if row.wait <= tick and not row.done]
        for row in active:
            if not row.cached:
                cache.claim(row.slot)
        if seed is not None:
            order.shuffle(active)
        if active:
            step(model, cache, active)
        tick += 1


def _content(part: str | Image.Image) -> dict[str, Any]:
    return {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
