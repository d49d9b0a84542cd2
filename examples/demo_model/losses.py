"""What a training minimizes: the answers' cross-entropy, and two aids for reading.

The aids are attention that finds the cell of the next character, and patches that name their characters. Both
are only taught; an exported model has neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from examples.demo_model.batches import Batch
from examples.demo_model.decoder import GUIDED_HEADS
from examples.demo_model.network import Network

GUIDE_WEIGHT = 1.0
CHARACTERS_WEIGHT = 1.0
# most places of a patch are empty, and easily told
_EMPTY_WEIGHT = 0.15


@dataclass(frozen=True, slots=True)
class Losses:
    """`total` is minimized; the figures, without gradient, are its parts and shares of right predictions."""

    total: Tensor
    figures: dict[str, Tensor]


def losses(network: Network, batch: Batch) -> Losses:
    """One forward pass over a batch, with its pictures once."""
    total = torch.zeros((), device=next(network.parameters()).device)
    figures: dict[str, Tensor] = {}
    pictures, texts = batch
    sight = None if pictures is None else network.model.visual(pictures.pixels)
    if texts is not None:
        per_lesson = None if sight is None else sight.of_lessons(texts.tokens.shape[0])
        states, scores = network.model.language_model(
            texts.tokens, texts.positions, texts.places, per_lesson, texts.guide
        )
        logits = network.model.language_model.logits(states.flatten(0, 1)[texts.answers])
        text = F.cross_entropy(logits, texts.targets)
        total = total + text
        figures |= {"loss": text, "right": (logits.argmax(-1) == texts.targets).float().mean()}
        if scores is not None and texts.guide is not None:
            cells = texts.guide.cell.repeat(len(GUIDED_HEADS))
            guide = F.cross_entropy(scores.flatten(0, 1), cells)
            total = total + GUIDE_WEIGHT * guide
            figures |= {"guide": guide, "guided": (scores.flatten(0, 1).argmax(-1) == cells).float().mean()}
    if sight is not None and pictures is not None and pictures.characters is not None:
        named, expected = network.name_characters(sight.patches).flatten(0, 2), pictures.characters.flatten()
        there = expected > 0
        weights = torch.where(there, 1.0, _EMPTY_WEIGHT)
        characters = (F.cross_entropy(named, expected, reduction="none") * weights).sum() / weights.sum()
        total = total + CHARACTERS_WEIGHT * characters
        figures |= {"characters": characters, "named": (named.argmax(-1) == expected)[there].float().mean()}
    return Losses(total, {name: figure.detach() for name, figure in figures.items()})
