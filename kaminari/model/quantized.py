"""Weights of few bits as plain tensors, the same on every machine: what a pack holds and kernels repack.

Nothing here multiplies. `dequantize` is the meaning of a quantized weight and the oracle of every kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kaminari.model import huge_pages

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

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def rows(self, start: int, stop: int) -> Int8Weight:
        """Rows from `start` to before `stop`, without a copy."""
        return Int8Weight(self.codes[start:stop], self.scales[start:stop])

    def pick(self, numbers: Tensor) -> Int8Weight:
        """The rows of these numbers, int64 [n], which may come more than once."""
        return Int8Weight(self.codes.index_select(0, numbers), self.scales.index_select(0, numbers))

    def to(self, device: torch.device) -> Int8Weight:
        return Int8Weight(self.codes.to(device), self.scales.to(device))

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

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + self.zeros.nbytes

    def rows(self, start: int, stop: int) -> Int4Weight:
        """Rows from `start` to before `stop`, without a copy."""
        parts = (self.codes[start:stop], self.scales[start:stop], self.zeros[start:stop])
        return Int4Weight(*parts, self.in_features, self.group_size)

    def pick(self, numbers: Tensor) -> Int4Weight:
        """The rows of these numbers, int64 [n], which may come more than once."""
        codes, scales, zeros = (
            part.index_select(0, numbers) for part in (self.codes, self.scales, self.zeros)
        )
        return Int4Weight(codes, scales, zeros, self.in_features, self.group_size)

    def to(self, device: torch.device) -> Int4Weight:
        parts = (self.codes.to(device), self.scales.to(device), self.zeros.to(device))
        return Int4Weight(*parts, self.in_features, self.group_size)

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


def join_rows(weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """The rows of weights of one kind, one behind the other, in memory of their own."""
    first = weights[0]
    codes, scales = _joined([each.codes for each in weights]), _joined([each.scales for each in weights])
    if isinstance(first, Int8Weight):
        return Int8Weight(codes, scales)
    zeros = _joined([each.zeros for each in weights if isinstance(each, Int4Weight)])
    return Int4Weight(codes, scales, zeros, first.in_features, first.group_size)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """On pages of its own: what is only there until it is repacked goes back to the system as a whole."""
    rows = sum(part.shape[0] for part in parts)
    return torch.cat(list(parts), out=huge_pages.empty((rows, *parts[0].shape[1:]), parts[0].dtype))
