"""What penalties, biases and a least length do to logits, before anything is drawn from them.

Pure functions of tensors, in float32. Rows are independent: one that asks for nothing keeps its numbers
exactly in a batch where another asks for everything. Nothing here keeps state or looks at a request.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Penalties:
    """What R rows have seen, over V tokens, and how much it counts.

    made:        [R, V] int32, how often the row has made a token
    prompt:      [R, V] bool, whether the prompt's text holds it
    repetition:  [R] float32, 1 is off
    frequency:   [R] float32, 0 is off
    presence:    [R] float32, 0 is off
    """

    made: Tensor
    prompt: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor


@dataclass(frozen=True, slots=True)
class Bias:
    """What is added to logits: ids [R, K] int64, values [R, K] float32. Unused places add 0 to token 0."""

    ids: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Barred:
    """Tokens that may not be drawn yet: ids [R, E] int64 and, per row, whether they are barred [R] bool."""

    ids: Tensor
    active: Tensor


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """Everything that is to be done to the logits of one step. None of a kind costs nothing."""

    penalties: Penalties | None = None
    bias: Bias | None = None
    barred: Barred | None = None


def edit(logits: Tensor, edits: LogitEdits) -> Tensor:
    """Return float32 logits [R, V] after penalties, then biases. `logits` (float32) are left alone.

    The repetition penalty is that of Keskar et al., "CTRL" (2019), as `transformers` has it; frequency and
    presence are OpenAI's: logit - count * frequency - (count > 0) * presence. The result is finite where the
    logits are.
    """
    edited = logits
    if (penalties := edits.penalties) is not None:
        edited = _penalize(edited, penalties)
    if (bias := edits.bias) is not None:
        edited = edited.scatter_add(1, bias.ids, bias.values)
    if edited is logits:
        return logits
    limit = torch.finfo(torch.float32).max
    return edited.clamp(-limit, limit)


def _penalize(logits: Tensor, penalties: Penalties) -> Tensor:
    made = penalties.made > 0
    repetition = penalties.repetition[:, None]
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    penalized = torch.where(penalties.prompt | made, repeated, logits)
    penalized = penalized - penalties.made * penalties.frequency[:, None]
    return penalized - made * penalties.presence[:, None]


def bar(mask: Tensor | None, barred: Barred, vocab: int) -> Tensor:
    """Return a mask [R, V], True where a token is allowed by `mask` (None allows all) and not barred.

    A row in which that leaves nothing keeps its mask: an answer that a grammar has ended cannot go on.
    """
    rows = barred.ids.shape[0]
    closed = torch.zeros(rows, vocab, dtype=torch.bool, device=barred.ids.device)
    closed.scatter_(1, barred.ids, barred.active[:, None].expand_as(barred.ids))
    before = torch.ones_like(closed) if mask is None else mask
    after = before & ~closed
    return torch.where(after.any(-1, keepdim=True), after, before)
