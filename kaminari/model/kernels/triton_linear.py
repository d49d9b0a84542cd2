"""Linears over int8 and int4 weights as they lie in a pack, for the rows of a decode step, in Triton.

A program takes a block of outputs and walks their codes once, in tiles of the weight's own groups. Codes
become numbers of the activations' dtype, which holds them exactly, and are multiplied with float32 sums;
activations are not quantized. Up to `KERNEL_ROWS` rows are one launch, which a captured step may hold; for
more the weight is dequantized, and torch's GEMM multiplies.

A row's result does not depend on the other rows. Nothing is repacked: memory is read in the order of columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from kaminari.model.quantized import Int8Weight, QuantizedWeight

KERNEL_ROWS = 16

_OUTPUTS = 16
_COLUMNS = 128
_DEQUANTIZED_VALUES = 2**23  # at once: up to 24 bytes each while an int4 weight becomes numbers


class TritonLinear:
    """A quantized weight on the device, multiplied in `dtype`."""

    def __init__(self, weight: QuantizedWeight, device: torch.device, dtype: torch.dtype) -> None:
        self._weight = weight.to(device)
        self._dtype = dtype

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def multiply(self, x: Tensor) -> Tensor:
        """[rows, in_features] -> [rows, out_features]. Raises ValueError for another width or dtype."""
        outputs, columns = self._weight.shape
        if x.dim() != 2 or x.shape[1] != columns or x.dtype != self._dtype:
            raise ValueError(
                f"the linear takes {self._dtype} rows of {columns}, not {x.dtype} {list(x.shape)}"
            )
        if not 0 < x.shape[0] <= KERNEL_ROWS:
            return self._multiply_dequantized(x)
        x = x.contiguous()
        out = x.new_empty((x.shape[0], outputs))
        grid = (triton.cdiv(outputs, _OUTPUTS),)
        if isinstance(self._weight, Int8Weight):
            _int8_kernel[grid](
                x,
                self._weight.codes,
                self._weight.scales,
                out,
                x.shape[0],
                outputs,
                columns,
                ROWS=KERNEL_ROWS,
                OUTPUTS=_OUTPUTS,
                COLUMNS=_COLUMNS,
            )
        else:
            _int4_kernel[grid](
                x,
                self._weight.codes,
                self._weight.scales,
                self._weight.zeros,
                out,
                x.shape[0],
                outputs,
                columns,
                self._weight.codes.shape[1],
                self._weight.scales.shape[1],
                ROWS=KERNEL_ROWS,
                OUTPUTS=_OUTPUTS,
                GROUP=self._weight.group_size,
            )
        return out

    def _multiply_dequantized(self, x: Tensor) -> Tensor:
        """`multiply`, a block of outputs at a time: a head in full would take gigabytes on the way."""
        outputs, columns = self._weight.shape
        out = x.new_empty((x.shape[0], outputs))
        step = max(_OUTPUTS, _DEQUANTIZED_VALUES // columns // _OUTPUTS * _OUTPUTS)
        for first in range(0, outputs, step):
            block = self._weight.rows(first, min(first + step, outputs)).dequantize(self._dtype)
            out[:, first : first + step] = F.linear(x, block)
        return out

    def look_up(self, tokens: Tensor) -> Tensor:
        """[n] on the device -> [n, in_features]."""
        return self._weight.pick(tokens).dequantize(self._dtype)


@triton.jit(do_not_specialize=["rows"])
def _int8_kernel(
    x,
    codes,
    scales,
    out,
    rows,
    outputs,
    columns,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for first in range(0, columns, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        inside = column < columns
        values = tl.load(
            x + row[:, None] * columns + column[None, :],
            mask=(row < rows)[:, None] & inside[None, :],
            other=0.0,
        )
        weights = tl.load(
            codes + output.to(tl.int64)[:, None] * columns + column[None, :],
            mask=(output < outputs)[:, None] & inside[None, :],
            other=0,
        )
        total += tl.dot(values, tl.trans(weights.to(values.dtype)), input_precision="ieee")
    scale = tl.load(scales + output, mask=output < outputs, other=0.0)
    result = (total * scale[None, :]).to(out.dtype.element_ty)
    tl.store(
        out + row[:, None] * outputs + output[None, :],
        result,
        mask=(row < rows)[:, None] & (output < outputs)[None, :],
    )


@triton.jit(do_not_specialize=["rows"])
def _int4_kernel(
    x,
    codes,
    scales,
    zeros,
    out,
    rows,
    outputs,
    columns,
    bytes_per_output,
    groups,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    GROUP: tl.constexpr,
):
    """A byte holds the codes of an even column and, above it, of the odd column behind it."""
    row = tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    there = output < outputs
    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for group in range(groups):
        byte = group * (GROUP // 2) + tl.arange(0, GROUP // 2)
        even = row[:, None] * columns + 2 * byte[None, :]
        evens = tl.load(x + even, mask=(row < rows)[:, None] & (2 * byte < columns)[None, :], other=0.0)
        odds = tl.load(
            x + even + 1, mask=(row < rows)[:, None] & (2 * byte + 1 < columns)[None, :], other=0.0
        )
        pairs = tl.load(
            codes + output.to(tl.int64)[:, None] * bytes_per_output + byte[None, :],
            mask=there[:, None] & (byte < bytes_per_output)[None, :],
            other=0,
        )
        low = ((pairs & 15).to(tl.int32) - 8).to(evens.dtype)
        high = ((pairs >> 4).to(tl.int32) - 8).to(evens.dtype)
        steps = tl.dot(evens, tl.trans(low), input_precision="ieee")
        steps += tl.dot(odds, tl.trans(high), input_precision="ieee")
        lift = tl.sum(evens.to(tl.float32), 1) + tl.sum(odds.to(tl.float32), 1)
        number = output.to(tl.int64) * groups + group
        scale = tl.load(scales + number, mask=there, other=0.0).to(tl.float32)
        zero = tl.load(zeros + number, mask=there, other=0.0).to(tl.float32)
        total += steps * scale[None, :] + lift[:, None] * zero[None, :]
    tl.store(
        out + row[:, None] * outputs + output[None, :],
        total.to(out.dtype.element_ty),
        mask=(row < rows)[:, None] & there[None, :],
    )
