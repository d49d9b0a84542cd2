"""Linears over quantized weights by torch's own kernels: where there is no native library.

They quantize weights alone: activations stay as they are, so their results differ from the native kernels' by
what int8 activations cost. Shapes that torch's kernels were not made for are multiplied dequantized.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kaminari.model.kernels.dequantizing import DequantizingKernel
from kaminari.model.linear import LinearKernel
from kaminari.model.quantized import Int4Weight, Int8Weight, QuantizedWeight

PACKED_ROWS = 16
"""Above so many rows the weight is dequantized once and torch's GEMM multiplies."""

OUTPUTS_OF_KERNEL = 16
COLUMNS_OF_KERNEL = 64


def quantized_kernel(weight: QuantizedWeight, dtype: torch.dtype) -> LinearKernel:
    """The kernel for a quantized weight on the CPU, for activations of `dtype`."""
    outputs, columns = weight.shape
    if outputs % OUTPUTS_OF_KERNEL or columns % COLUMNS_OF_KERNEL:
        return DequantizingKernel(weight, dtype)
    if isinstance(weight, Int8Weight):
        # over float32 rows torch's kernel was measured ten times slower than dequantizing
        return AtenInt8Linear(weight) if dtype == torch.bfloat16 else DequantizingKernel(weight, dtype)
    if columns % weight.group_size:
        return DequantizingKernel(weight, dtype)
    return AtenInt4Linear(weight, dtype)


class AtenInt8Linear(DequantizingKernel):
    """`aten::_weight_int8pack_mm` over bfloat16 rows; it would round the scales, so they follow behind it."""

    def __init__(self, weight: Int8Weight) -> None:
        super().__init__(weight, torch.bfloat16)
        self._codes = weight.codes
        self._scales = weight.scales
        self._ones = torch.ones(weight.shape[0], dtype=torch.bfloat16)

    def multiply(self, x: Tensor) -> Tensor:
        if x.shape[0] > PACKED_ROWS:
            return super().multiply(x)
        sums = torch._weight_int8pack_mm(x, self._codes, self._ones)
        return (sums.float() * self._scales).to(x.dtype)


class AtenInt4Linear(DequantizingKernel):
    """`aten::_weight_int4pack_mm_for_cpu`, whose code, scale and zero mean what ours do."""

    def __init__(self, weight: Int4Weight, dtype: torch.dtype) -> None:
        super().__init__(weight, dtype)
        nibbles = torch.stack([weight.codes & 15, weight.codes >> 4], dim=-1).flatten(1)
        self._packed = torch._convert_weight_to_int4pack_for_cpu(nibbles.int(), 1)
        self._numbers = torch.stack([weight.scales.T, weight.zeros.T], dim=-1).to(dtype).contiguous()
        self._group_size = weight.group_size

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._packed.nbytes + self._numbers.nbytes

    def multiply(self, x: Tensor) -> Tensor:
        if x.shape[0] > PACKED_ROWS:
            return super().multiply(x)
        return torch._weight_int4pack_mm_for_cpu(x, self._packed, self._group_size, self._numbers)
