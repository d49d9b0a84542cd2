"""Which kernel multiplies by a weight, on any device: the one question that loading asks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from kaminari.model.kernels import cpu_linear
from kaminari.model.kernels.fault import spell_fault
from kaminari.model.linear import LinearKernel
from kaminari.model.quantized import GatheredRows, Int4Weight, Int8Weight, QuantizedShape, QuantizedWeight

TRIED_SHAPE = (48, 128, 64)
"""Outputs, columns and group of the weights that a card's kernels are tried with."""

TOLERANCE = 0.02
"""Of the product's norm. In bfloat16 rounding takes 0.003."""


def linear_kernel(
    weight: Tensor | QuantizedWeight, device: torch.device, dtype: torch.dtype
) -> LinearKernel | None:
    """The kernel for a weight, or None where plain torch is to multiply by it, or nothing here can.

    weight:  a matrix [out_features, in_features] of `dtype` on the device, or a quantized one on the CPU
    dtype:   of the activations

    Raises ValueError for a weight of impossible shapes or dtypes.
    """
    if device.type == "cpu":
        return cpu_linear.linear_kernel(weight, device, dtype)
    if isinstance(weight, Tensor) or quantized_obstacle(device, dtype):
        return None
    # Imported where it is used: the import costs a second, and a CPU has no use for it.
    from kaminari.model.kernels.triton_linear import TritonLinear

    return TritonLinear(weight, device, dtype)


class Filling(Protocol):
    """A quantized weight on its way from its rows to its kernel."""

    def put(self, first_row: int, rows: QuantizedWeight) -> None:
        """Take in rows from `first_row` on, each once. Any thread.

        Raises ValueError for rows of another weight.
        """
        ...

    def kernel(self) -> LinearKernel | None:
        """The kernel, once every row is in; None where nothing here can multiply by it."""
        ...


def begin_kernel(kind: QuantizedShape, device: torch.device, dtype: torch.dtype) -> Filling:
    """A kernel for a weight whose rows are to come, on the CPU: `linear_kernel` a few rows at a time."""
    panels = None
    if device.type == "cpu" and dtype in cpu_linear.DTYPES:
        panels = cpu_linear.begin_panels(kind, dtype)
    return panels or WholeFilling(kind, device, dtype)


class WholeFilling:
    """`Filling` for kernels that take a weight whole."""

    def __init__(self, kind: QuantizedShape, device: torch.device, dtype: torch.dtype) -> None:
        self._gathered = GatheredRows(kind)
        self._place = device, dtype

    def put(self, first_row: int, rows: QuantizedWeight) -> None:
        self._gathered.put(first_row, rows)

    def kernel(self) -> LinearKernel | None:
        return linear_kernel(self._gathered.weight, *self._place)


def quantized_obstacle(device: torch.device, dtype: torch.dtype) -> str:
    """Why quantized weights cannot be multiplied on a device; empty where they can.

    On CUDA Triton's kernels are tried there, once: they are built on the way, for which Triton needs more
    than it brings (a C compiler).
    """
    if device.type == "cpu" and dtype in cpu_linear.DTYPES:
        return ""
    if device.type != "cuda":
        return f"kernels are for the CPU, in {' and '.join(map(str, cpu_linear.DTYPES))}, and for CUDA"
    if find_spec("triton") is None:
        return "Triton is not installed"
    from kaminari.model.kernels.triton_linear import TritonLinear

    return try_linears(TritonLinear, device, dtype)


@cache
@torch.inference_mode()
def try_linears(
    kernel: Callable[[QuantizedWeight, torch.device, torch.dtype], LinearKernel],
    device: torch.device,
    dtype: torch.dtype,
) -> str:
    """What is wrong with a kernel for quantized weights on a device, or nothing: small weights of both kinds
    beside the dequantized product."""
    generator = torch.Generator().manual_seed(1)
    outputs, columns, group = TRIED_SHAPE
    codes = torch.randint(-127, 128, (outputs, columns), generator=generator, dtype=torch.int8)
    pairs = torch.randint(0, 256, (outputs, columns // 2), generator=generator, dtype=torch.uint8)
    steps = torch.rand(2, outputs, columns // group, generator=generator).bfloat16()
    x = torch.randn(3, columns, generator=generator).to(dtype)
    weights = (
        Int8Weight(codes, torch.rand(outputs, generator=generator)),
        Int4Weight(pairs, steps[0], steps[1], columns, group),
    )
    for weight in weights:
        expected = F.linear(x.float(), weight.dequantize())
        try:
            found = kernel(weight, device, dtype).multiply(x.to(device)).cpu().float()
        except Exception as fault:  # whatever it is, the kernel is of no use here
            return spell_fault(fault)
        error = ((found - expected).norm() / expected.norm()).item()
        if not error <= TOLERANCE:
            return f"{type(weight).__name__} is multiplied wrongly, off by {error:.2g}"
    return ""
