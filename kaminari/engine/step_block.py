"""What a decode step takes from the host, in one copy: a block of 64-bit words, a column per row.

Whole numbers stand in the first lines and floats in the others. A row of zeros behind its layout takes the
largest of its logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_LAYOUT, _ORDERS, _DRAWS = 3, 3, 5

Block = np.ndarray[Any, np.dtype[np.int64]]


class Orders(NamedTuple):
    """What is done to a row's logits: whether its penalties count, how many biases, how many barred ends."""

    penalized: int = 0
    biased: int = 0
    barred: int = 0


class Draw(NamedTuple):
    """By what a row draws, as `SamplingTensors` has it, and its noise."""

    temperature: float = 0.0
    top_k: float = 0.0
    top_p: float = 0.0
    min_p: float = 0.0
    noise: float = 0.0


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A block on the device, in parts.

    slots, lengths, positions:  [R] int64; lengths count the step's own tokens
    orders:                     [3, R] int64, `Orders`
    draws:                      [5, R] float64, `Draw`
    """

    slots: Tensor
    lengths: Tensor
    positions: Tensor
    orders: Tensor
    draws: Tensor

    @classmethod
    def of(cls, block: Tensor) -> StepInputs:
        """Views of a block."""
        slots, lengths, positions = block[:_LAYOUT].unbind(0)
        orders, draws = block[_LAYOUT : _LAYOUT + _ORDERS], block[_LAYOUT + _ORDERS :]
        return cls(slots, lengths, positions, orders, draws.view(torch.float64))


def step_block(
    slots: Sequence[int],
    lengths: Sequence[int],
    positions: Sequence[int],
    wishes: Sequence[tuple[Orders, Draw]] | None = None,
) -> Block:
    """The block of R rows; without wishes each takes the largest of its logits."""
    block = np.zeros((_LAYOUT + _ORDERS + _DRAWS, len(slots)), dtype=np.int64)
    block[:_LAYOUT] = (slots, lengths, positions)
    if wishes is not None:
        orders, draws = zip(*wishes, strict=True)
        block[_LAYOUT : _LAYOUT + _ORDERS] = np.array(orders).T
        block[_LAYOUT + _ORDERS :].view(np.float64)[:] = np.array(draws).T
    return block
