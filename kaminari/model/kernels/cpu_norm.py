"""The small layers of a decoder on a CPU: the C++ of `native/norm.cpp`, for torch tensors.

Each function does in one pass what torch does in ten, and rounds where torch would: in bfloat16 it differs
from the plain forms in `kaminari.model.layers` by float32 arithmetic alone, in float32 by the order of a sum.
A row's result is the same bits whatever the other rows are. This module never chooses where it is used.
"""

from __future__ import annotations

from ctypes import CDLL

import torch
from torch import Tensor

from kaminari.model.kernels.native.build import native_kernels

MAX_HEAD_DIM = 256
_DTYPES = (torch.float32, torch.bfloat16)


def fits(x: Tensor) -> bool:
    """Whether the kernels are there and were made for tensors like this one; never while compiling."""
    if torch.compiler.is_dynamo_compiling():
        return False
    return x.is_cpu and x.dtype in _DTYPES and x.stride(-1) == 1 and native_kernels().library is not None


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, centred: bool) -> Tensor:
    """Normalize rows x [T, size] and scale them by weight [size], or by 1 + weight where `centred`."""
    return _norm(x, None, weight, eps, centred)[1]


def add_rms_norm(
    x: Tensor, added: Tensor, weight: Tensor, eps: float, *, centred: bool
) -> tuple[Tensor, Tensor]:
    """x + added [T, size], and what `rms_norm` makes of it."""
    if added.shape != x.shape:
        raise ValueError(f"{tuple(added.shape)} cannot be added to {tuple(x.shape)}")
    return _norm(x, added, weight, eps, centred)


def turn(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor, *, centred: bool) -> Tensor:
    """Normalize every head of x [T, heads, head_dim] as `rms_norm`, and turn its first channels.

    cos, sin:  [T, 1, turned], turned even and at most head_dim; halves of the turned channels pair up
    """
    tokens, heads, head_dim = x.shape
    turned = cos.shape[-1]
    _check(x, weight)
    if not cos.dtype == sin.dtype == x.dtype or not (cos.is_cpu and sin.is_cpu):
        raise ValueError(f"no kernel for angles of {cos.dtype} and {sin.dtype} beside {x.dtype}")
    if head_dim > MAX_HEAD_DIM or turned > head_dim or turned % 2:
        raise ValueError(f"no kernel for heads of {head_dim} of which {turned} channels turn")
    if cos.shape != (tokens, 1, turned) or sin.shape != cos.shape:
        raise ValueError(f"angles {tuple(cos.shape)}, {tuple(sin.shape)} do not fit {tuple(x.shape)}")
    cos, sin = cos.contiguous(), sin.contiguous()
    output = x.new_empty((tokens, heads, head_dim))
    _need().kaminari_turn(
        x.data_ptr(),
        x.stride(0),
        x.stride(1),
        weight.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        output.data_ptr(),
        tokens,
        heads,
        head_dim,
        turned,
        eps,
        centred,
        x.dtype == torch.bfloat16,
    )
    return output


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [T, 2 * width], the gate's half first: [T, width]."""
    rows, both = gate_up.shape
    if both % 2:
        raise ValueError(f"{both} columns are not a gate and as many others")
    if not fits(gate_up):
        raise ValueError(f"no kernel for {gate_up.dtype} on {gate_up.device}")
    gate_up = gate_up.contiguous()
    output = gate_up.new_empty((rows, both // 2))
    _need().kaminari_swiglu(
        gate_up.data_ptr(), output.data_ptr(), rows, both // 2, gate_up.dtype == torch.bfloat16
    )
    return output


def _norm(
    x: Tensor, added: Tensor | None, weight: Tensor, eps: float, centred: bool
) -> tuple[Tensor, Tensor]:
    """The sum, which is x itself where nothing is added, and its norm."""
    _check(x, weight)
    rows, size = x.shape
    summed = x
    if added is not None:
        if added.dtype != x.dtype or not added.is_cpu:
            raise ValueError(f"no kernel for {added.dtype} on {added.device} added to {x.dtype}")
        added = added.contiguous()
        summed = x.new_empty((rows, size))
    output = x.new_empty((rows, size))
    _need().kaminari_rms_norm(
        x.data_ptr(),
        x.stride(0),
        None if added is None else added.data_ptr(),
        summed.data_ptr(),
        weight.data_ptr(),
        output.data_ptr(),
        rows,
        size,
        eps,
        centred,
        x.dtype == torch.bfloat16,
    )
    return summed, output


def _check(x: Tensor, weight: Tensor) -> None:
    """Raise ValueError unless the kernels were made for x, and weight [size] goes with it."""
    if not fits(x) or weight.dtype != x.dtype or not weight.is_cpu:
        raise ValueError(f"no kernel for {x.dtype} on {x.device} with a weight of {weight.dtype}")
    if weight.shape != x.shape[-1:] or not weight.is_contiguous():
        raise ValueError(f"a weight {tuple(weight.shape)} does not fit {tuple(x.shape)}")


def _need() -> CDLL:
    library = native_kernels().library
    if library is None:
        raise ValueError("the native kernels are not built")
    return library
