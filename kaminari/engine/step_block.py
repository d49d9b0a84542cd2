"""What a decode step takes from the host, in one copy: a block of 64-bit words, a column per row.

Lines 0 to 2 are whole numbers (slot, length after the step, position), and 3 to 7 floats (temperature, top_k,
top_p, min_p and noise: by what a row draws, or zeros where it takes the largest of its logits).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

WHOLE = 3
LINES = 8

Block = np.ndarray[Any, np.dtype[np.int64]]
Draw = tuple[float, float, float, float, float]


def step_block(
    slots: Sequence[int], lengths: Sequence[int], positions: Sequence[int], draws: Sequence[Draw] | None
) -> Block:
    """The block [LINES, R] of R rows; without draws every row takes the largest of its logits."""
    block = np.zeros((LINES, len(slots)), dtype=np.int64)
    block[:WHOLE] = (slots, lengths, positions)
    if draws is not None:
        block[WHOLE:].view(np.float64)[:] = np.array(draws).T
    return block


def split_block(block: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Slots, lengths and positions [R] int64, and draws [5, R] float64: views of a block on the device."""
    slots, lengths, positions = block[:WHOLE].unbind(0)
    return slots, lengths, positions, block[WHOLE:].view(torch.float64)
