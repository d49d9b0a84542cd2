"""The plain operators of a decode step on a CPU: the C++ of `native/rows.cpp`, for torch tensors.

They do what torch's own do, with its roundings, so that a step is made of native calls alone and can be
recorded. A row's result is the same bits whatever the other rows are. This module never chooses where it is
used.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL

import torch
from torch import Tensor

from kaminari.model.kernels.native.build import native_kernels

_DTYPES = (torch.float32, torch.bfloat16)


def fits(x: Tensor) -> bool:
    """Whether the kernels are there and were made for tensors like this one; never while compiling."""
    if torch.compiler.is_dynamo_compiling():
        return False
    return x.is_cpu and x.dtype in _DTYPES and native_kernels().library is not None


def indexes(index: Tensor) -> bool:
    """Whether the kernels are there and read indices like these."""
    return index.is_cpu and index.dtype == torch.int64 and native_kernels().library is not None


def pick(table: Tensor, index: Tensor) -> Tensor:
    """The lines of a table [lines, ...] of any dtype that index [R] names: [R, ...].

    Raises ValueError for an index that is none.
    """
    if not table.is_cpu or not indexes(index) or index.dim() != 1:
        raise ValueError(f"no kernel for {index.dtype} {tuple(index.shape)} into {table.device}")
    if not table.is_contiguous() or table.dim() < 1:
        raise ValueError("the lines of a table lie one behind the other")
    index = index.contiguous()
    output = table.new_empty((index.shape[0], *table.shape[1:]))
    line = table[:1].numel() * table.element_size()
    if need().kaminari_pick(
        table.data_ptr(), table.shape[0], line, index.data_ptr(), output.data_ptr(), index.shape[0]
    ):
        raise ValueError(f"lines {index.tolist()} are not among {table.shape[0]}")
    return output


def narrow(x: Tensor) -> Tensor:
    """int64 [R] -> int32 [R]; the numbers must fit."""
    if not indexes(x) or x.dim() != 1:
        raise ValueError(f"no kernel for {x.dtype} {tuple(x.shape)} on {x.device}")
    x = x.contiguous()
    output = x.new_empty(x.shape, dtype=torch.int32)
    need().kaminari_narrow(x.data_ptr(), output.data_ptr(), x.shape[0])
    return output


def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y, of one shape and dtype."""
    if not fits(x) or y.dtype != x.dtype or not y.is_cpu or y.shape != x.shape:
        raise ValueError(f"no kernel for {x.dtype} {tuple(x.shape)} and {y.dtype} {tuple(y.shape)}")
    x, y = x.contiguous(), y.contiguous()
    output = x.new_empty(x.shape)
    need().kaminari_add(x.data_ptr(), y.data_ptr(), output.data_ptr(), x.numel(), x.dtype == torch.bfloat16)
    return output


def gate(x: Tensor, gates: Tensor) -> Tensor:
    """x * sigmoid(gates), both [T, heads, head_dim]; the gates may have gaps between heads and tokens."""
    if not fits(x) or gates.dtype != x.dtype or not gates.is_cpu or gates.shape != x.shape or x.dim() != 3:
        raise ValueError(f"no kernel for {x.dtype} {tuple(x.shape)} and {gates.dtype} {tuple(gates.shape)}")
    if gates.stride(2) != 1:
        raise ValueError("the numbers of a head lie one behind the other")
    x = x.contiguous()
    tokens, heads, head_dim = x.shape
    output = x.new_empty(x.shape)
    need().kaminari_gate(
        x.data_ptr(),
        gates.data_ptr(),
        gates.stride(0),
        gates.stride(1),
        output.data_ptr(),
        tokens,
        heads,
        head_dim,
        x.dtype == torch.bfloat16,
    )
    return output


def turns(positions: Tensor, axes: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor] | None:
    """What positions turn by: cosines and sines, each [T, 1, 2 * N] with both halves alike.

    positions:       [3, T] int64
    axes:            [N] int64, the axis whose position each frequency turns; below 3
    cosines, sines:  tables [length, N] of one dtype, contiguous
    returns:         None where the tables do not hold a position
    """
    length, count = cosines.shape
    if not indexes(positions) or positions.dim() != 2 or positions.shape[0] != 3:
        raise ValueError(f"no kernel for {positions.dtype} {tuple(positions.shape)} on {positions.device}")
    if not fits(cosines) or sines.dtype != cosines.dtype or not sines.is_cpu:
        raise ValueError(f"no kernel for tables of {cosines.dtype} and {sines.dtype}")
    if axes.shape != (count,) or axes.dtype != torch.int64 or sines.shape != cosines.shape:
        raise ValueError(f"axes {tuple(axes.shape)} and tables {tuple(sines.shape)} do not fit together")
    if not (axes.is_contiguous() and axes.is_cpu and cosines.is_contiguous() and sines.is_contiguous()):
        raise ValueError("axes and tables lie one behind the other")
    tokens = positions.shape[1]
    cos, sin = (cosines.new_empty((tokens, 1, 2 * count)) for _ in range(2))
    failure = need().kaminari_turns(
        positions.data_ptr(),
        positions.stride(0),
        positions.stride(1),
        axes.data_ptr(),
        cosines.data_ptr(),
        sines.data_ptr(),
        length,
        cos.data_ptr(),
        sin.data_ptr(),
        tokens,
        count,
        cosines.dtype == torch.bfloat16,
    )
    return None if failure else (cos, sin)


def join(parts: Sequence[Tensor]) -> Tensor:
    """The columns of parts [R, n], one behind the other."""
    first = parts[0]
    rows = first.shape[0]
    for part in parts:
        if not fits(part) or part.dtype != first.dtype or part.dim() != 2 or part.shape[0] != rows:
            raise ValueError(f"no kernel for {part.dtype} {tuple(part.shape)} beside {tuple(first.shape)}")
    output = first.new_empty((rows, sum(part.shape[1] for part in parts)))
    place, stride = output.data_ptr(), output.shape[1] * output.element_size()
    for part in parts:
        part = part.contiguous()
        width = part.shape[1] * part.element_size()
        need().kaminari_place(part.data_ptr(), width, place, stride, rows)
        place += width
    return output


def need() -> CDLL:
    """The library. Raises ValueError where there is none."""
    library = native_kernels().library
    if library is None:
        raise ValueError("the native kernels are not built")
    return library
