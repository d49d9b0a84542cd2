"""Random quantized weights, and bounds that follow from what the kernels may round."""

from __future__ import annotations

import torch
from torch import Tensor

from kaminari.model.quantized import Int4Weight, Int8Weight

INT8_GROUP = 64


def int8_weight(outputs: int, columns: int, seed: int = 0) -> Int8Weight:
    draw = torch.Generator().manual_seed(seed)
    codes = torch.randint(-127, 128, (outputs, columns), generator=draw, dtype=torch.int8)
    return Int8Weight(codes, torch.rand(outputs, generator=draw) * 0.01)


def int4_weight(outputs: int, columns: int, group_size: int, seed: int = 0) -> Int4Weight:
    draw = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (outputs, (columns + 1) // 2), generator=draw, dtype=torch.uint8)
    if columns % 2:
        codes[:, -1] = codes[:, -1] & 15 | 8 << 4
    groups = -(-columns // group_size)
    scales, zeros = (torch.randn(outputs, groups, generator=draw).bfloat16() * 0.1 for _ in range(2))
    return Int4Weight(codes, scales, zeros, columns, group_size)


def quantized_rows(x: Tensor, group: int) -> Tensor:
    """What the kernels make of rows [rows, columns]: codes within [-127, 127] times a scale per group."""
    parts = []
    for part in x.float().split(group, dim=1):
        maximum = part.abs().amax(dim=1, keepdim=True)
        # a number over a tensor is its reciprocal times the number, which rounds twice
        codes = (part * (torch.full_like(maximum, 127) / maximum)).round()
        parts.append(torch.where(maximum > 0, codes * (maximum / 127), 0.0))
    return torch.cat(parts, dim=1)


def activation_bound(x: Tensor, weight: Tensor, group: int) -> Tensor:
    """How far [rows, outputs] may be off where rows are quantized: half a step for each column."""
    steps = [part.abs().amax(dim=1) / 127 for part in x.float().split(group, dim=1)]
    sums = [part.abs().sum(dim=1) for part in weight.float().split(group, dim=1)]
    return 0.5 * torch.stack(steps, dim=1) @ torch.stack(sums, dim=0)


def rounding_bound(x: Tensor, weight: Tensor, exact: Tensor, dtype: torch.dtype) -> Tensor:
    """How far [rows, outputs] may be off by sums in float32 and one rounding to `dtype`.

    A sum of n products in float32, in any order, is off by at most n * 2^-24 * sum |x w| (Higham, "Accuracy
    and Stability of Numerical Algorithms", 3.1), and scales add a few roundings to each product.
    """
    products = x.float().abs() @ weight.float().abs().T
    return products * (x.shape[1] + 8) * 2.0**-24 + exact.abs() * torch.finfo(dtype).eps
