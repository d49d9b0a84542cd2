"""Weights of few bits as plain tensors, the same on every machine: what a pack holds and kernels repack.

Nothing here multiplies. `dequantize` is the meaning of a quantized weight and the oracle of every kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kaminari.model import huge_pages

INT4_MIDDLE = 8  # the int4 code that stands for the zero point alone


@dataclass(frozen=True, slots=True)
class QuantizedShape:
    """What is known of a quantized weight before it is there.

    shape:       (out_features, in_features)
    group_size:  of an int4 weight; None of an int8 one
    """

    shape: tuple[int, int]
    group_size: int | None

    @property
    def nbytes(self) -> int:
        """Of codes, scales and zeros."""
        rows, width = self.shape
        if self.group_size is None:
            return rows * (width + 4)
        return rows * (-(-width // 2) + 2 * 2 * -(-width // self.group_size))


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
    def kind(self) -> QuantizedShape:
        return QuantizedShape(self.shape, None)

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
    def kind(self) -> QuantizedShape:
        return QuantizedShape(self.shape, self.group_size)

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


class GatheredRows:
    """A weight that comes a few rows at a time, as plain tensors in memory of its own."""

    def __init__(self, kind: QuantizedShape) -> None:
        """On pages of its own: what is only there until it is repacked goes back to the system as a whole."""
        rows, width = kind.shape
        self.weight: QuantizedWeight
        if kind.group_size is None:
            codes = huge_pages.empty((rows, width), torch.int8)
            self.weight = Int8Weight(codes, huge_pages.empty((rows,), torch.float32))
        else:
            codes = huge_pages.empty((rows, -(-width // 2)), torch.uint8)
            groups = (rows, -(-width // kind.group_size))
            scales, zeros = (huge_pages.empty(groups, torch.bfloat16) for _ in range(2))
            self.weight = Int4Weight(codes, scales, zeros, width, kind.group_size)

    @torch.inference_mode()  # which the calling thread may be in, or not: so was whoever made the memory
    def put(self, first_row: int, rows: QuantizedWeight) -> None:
        """Copy rows from `first_row` on. Raises ValueError for rows that are not the weight's."""
        count = rows.shape[0]
        place = self.weight.rows(first_row, first_row + count)
        if place.kind != rows.kind:
            raise ValueError(f"rows {first_row} to {first_row + count} are {rows.kind} of {self.weight.kind}")
        place.codes.copy_(rows.codes)
        place.scales.copy_(rows.scales)
        if isinstance(place, Int4Weight) and isinstance(rows, Int4Weight):
            place.zeros.copy_(rows.zeros)
