"""Brings what the grammars of a step allow to the device, as the one mask that the sampler takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kaminari.engine.constraints import Constraint


def token_mask(
    constraints: Sequence[Constraint | None], vocab_size: int, device: torch.device
) -> Tensor | None:
    """Return a bool mask [R, V] on the device, True where a token is allowed; None without any grammar.

    A row without a constraint allows everything. Ids past the tokenizer's vocabulary (a head may be padded)
    are allowed by no grammar. The host fills bits and does not wait for the device.
    """
    if all(constraint is None for constraint in constraints):
        return None
    width = -(-vocab_size // 8)
    pinned = device.type == "cuda"
    # A fresh buffer for each step: an earlier one may still be on its way to the device.
    packed = torch.zeros(len(constraints), width, dtype=torch.uint8, pin_memory=pinned)
    for row, constraint in zip(packed, constraints, strict=True):
        if constraint is None:
            row.fill_(255)
        else:
            bits = torch.frombuffer(bytearray(constraint.mask()), dtype=torch.uint8)[:width]
            row[: len(bits)] = bits
    on_device = packed.to(device, non_blocking=pinned)
    bit = torch.arange(8, dtype=torch.uint8, device=device)
    return ((on_device[:, :, None] >> bit) & 1).bool().flatten(1)[:, :vocab_size]
