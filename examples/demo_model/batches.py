"""Batches of lessons as tensors: pictures of one size, sequences padded to one length.

Positions are the reference's own arithmetic, over the whole batch at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from examples.demo_model import phrases
from examples.demo_model.cells import CELL, in_cells, patch_characters
from examples.demo_model.decoder import Guide
from examples.demo_model.lessons import Ration, draw_lessons
from examples.demo_model.sample import Sample
from examples.demo_model.tokens import Scribe, Tokens
from kaminari.model.qwen3_vl.prompt import Qwen3VLPositionRules

_LENGTH_STEP = 16
_SYSTEM_PROMPTS = 0.12


class Pictures(NamedTuple):
    """B lessons with K pictures each, all of one size, with P patches.

    pixels:      [B * K, height, width, 3] uint8
    characters:  [B * K, P, most] int64 classes of what stands in each patch; None without text
    """

    pixels: Tensor
    characters: Tensor | None


class Texts(NamedTuple):
    """B sequences of L tokens.

    tokens, positions:  [B, L], [3, B, L]
    places:             [B, N] columns of the pictures' tokens, or None without pictures
    answers, targets:   [A] flat indices of the tokens before those to be learnt, and these
    guide:              None without pictures to be read
    """

    tokens: Tensor
    positions: Tensor
    places: Tensor | None
    answers: Tensor
    targets: Tensor
    guide: Guide | None


class Batch(NamedTuple):
    pictures: Pictures | None
    texts: Texts | None


def make_batch(ration: Ration, scribe: Scribe, seed: str, device: torch.device) -> Batch:
    samples = draw_lessons(ration.kind, ration.size, seed)
    rng = Random(f"{seed} system")
    asked = [sample for sample in samples if sample.turns]
    texts = [
        scribe.write(sample, rng.choice(phrases.SYSTEM) if rng.random() < _SYSTEM_PROMPTS else "")
        for sample in asked
    ]
    return Batch(
        _pictures(samples, device) if samples[0].drawings else None,
        _texts(texts, samples, scribe, device) if texts else None,
    )


def _pictures(samples: Sequence[Sample], device: torch.device) -> Pictures:
    drawings = [drawing for sample in samples for drawing in sample.drawings]
    pixels = np.stack([np.asarray(drawing.image) for drawing in drawings])
    characters = None
    if any(drawing.runs for drawing in drawings):
        named = np.stack([in_cells(patch_characters(drawing)) for drawing in drawings])
        characters = torch.from_numpy(named).long().to(device)
    return Pictures(torch.from_numpy(pixels).to(device), characters)


def _texts(texts: Sequence[Tokens], samples: Sequence[Sample], scribe: Scribe, device: torch.device) -> Texts:
    length = -(-max(len(text.ids) for text in texts) // _LENGTH_STEP) * _LENGTH_STEP
    tokens = torch.full((len(texts), length), scribe.config.text_config.bos_token_id)
    pictured, taught = torch.zeros((2, *tokens.shape), dtype=torch.bool)
    guides: list[tuple[int, int, int]] = []
    for row, text in enumerate(texts):
        count = len(text.ids)
        tokens[row, :count] = torch.tensor(text.ids)
        pictured[row, :count] = torch.tensor(text.pictures)
        taught[row, :count] = torch.tensor(text.answers)
        guides.extend((row, index, cell) for index, cell in text.guides)
    flat = taught.flatten().nonzero().squeeze(1)
    return Texts(
        tokens.to(device),
        _positions(tokens, pictured, samples, scribe).to(device),
        pictured.nonzero()[:, 1].view(len(texts), -1).to(device) if pictured.any() else None,
        (flat - 1).to(device),
        tokens.flatten()[flat].to(device),
        Guide(*torch.tensor(guides).T.to(device)) if guides else None,
    )


def _positions(tokens: Tensor, pictured: Tensor, samples: Sequence[Sample], scribe: Scribe) -> Tensor:
    """[3, B, L] by the reference's function; padding goes on counting."""
    patch = CELL // 2
    grids = [
        (1, drawing.image.height // patch, drawing.image.width // patch)
        for sample in samples
        for drawing in sample.drawings
    ]
    positions, _ = Qwen3VLPositionRules(scribe.config).get_rope_index(
        tokens,
        mm_token_type_ids=pictured.int(),
        image_grid_thw=torch.tensor(grids) if grids else None,
    )
    return positions
