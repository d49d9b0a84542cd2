"""Weights of few bits as plain tensors, the same on every machine: what a pack holds and kernels repack.

Nothing here multiplies. `dequantize` is the meaning of a quantized weight and the oracle of every kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

INT4_MIDDLE = 8  # the int4 code that stands for the zero point alone


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """w[o, i] = codes[o, i] * scales[o]

    codes:   int8 [out_features, in_features], within [-127, 127]
    scales:  float32 [out_features]
    """

    codes: Tensor
    scales: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)"""
        return self.codes.shape[0], self.codes.shape[1]

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return [out_features, in_features], computed in float32 and rounded once."""
        return (self.codes.float() * self.scales[:, None]).to(dtype)


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """w[o, i] = (code[o, i] - 8) * scales[o, i // group_size] + zeros[o, i // group_size]

    Where the group does not divide in_features, the last group of a row is shorter.

    codes:        uint8 [out_features, ceil(in_features / 2)], two codes a byte, the even column in the low
                  nibble; an odd width's last high nibble is 8
    scales:       bfloat16 [out_features, ceil(in_features / group_size)]
    zeros:        bfloat16, like scales
    in_features:  columns
    group_size:   columns that share a scale and a zero: 32, 64 or 128
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor
    in_features: int
    group_size: int

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)"""
        return self.codes.shape[0], self.in_features

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return [out_features, in_features], computed in float32 and rounded once."""
        nibbles = torch.stack([self.codes & 15, self.codes >> 4], dim=-1).flatten(1)
        steps = nibbles[:, : self.in_features].float() - INT4_MIDDLE
        scales, zeros = (
            groups.float().repeat_interleave(self.group_size, dim=1)[:, : self.in_features]
            for groups in (self.scales, self.zeros)
        )
        return (steps * scales + zeros).to(dtype)


QuantizedWeight = Int8Weight | Int4Weight
