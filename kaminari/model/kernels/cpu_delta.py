"""A gated delta net on a CPU: the C++ of `native/delta.cpp` and `native/delta_prompt.cpp`, for torch tensors.

`step` is one token of each of R slots, `prompt` many tokens of one, from the layer's input projection to its
gated norm: short convolution, gates, the rule itself in place on the state, and the norm. Both round where
the plain form in `kaminari.model.hybrid.delta_net` does. A row's result is the same bits whatever the other
rows and the threads are. This module never chooses where it is used.
"""

from __future__ import annotations

from ctypes import CDLL
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kaminari.model.kernels.native.build import native_kernels

MAX_DIM = 256
MAX_KERNEL = 8
_DTYPES = (torch.float32, torch.bfloat16)
_NO_MEMORY = 1


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """What a layer multiplies by, apart from its projections; all contiguous and in the model's dtype.

    convolution:  [channels, kernel]
    decay_log:    [heads], and time_bias [heads]
    norm:         [value_dim]
    """

    convolution: Tensor
    decay_log: Tensor
    time_bias: Tensor
    norm: Tensor
    eps: float


class _Sizes(NamedTuple):
    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    kernel: int


def fits(projected: Tensor, state: Tensor, kernel: int) -> bool:
    """Whether the kernel is there and was made for such a step, such states and such a convolution."""
    return (
        projected.is_cpu
        and projected.dtype in _DTYPES
        and max(state.shape[2:]) <= MAX_DIM
        and kernel <= MAX_KERNEL
        and native_kernels().library is not None
    )


def step(projected: Tensor, weights: DeltaWeights, state: Tensor, tail: Tensor, slots: Tensor) -> Tensor:
    """Run one token of each row; state and tail of its slot go on by it.

    projected:  [R, channels + heads * value_dim + 2 * heads]: the convolution's inputs (queries and keys of
                the key heads, values), the output gate, then what beta and decay come from
    state:      [slots, heads, key_dim, value_dim] float32, contiguous
    tail:       [slots, kernel - 1, channels] in the model's dtype, contiguous
    slots:      [R] int64, distinct
    returns:    [R, heads * value_dim], what the output projection takes

    Raises ValueError, before anything changes, for what it was not made for or does not fit together.
    """
    rows = slots.shape[0]
    library, sizes = _check(projected, weights, state, tail, rows)
    if slots.dtype != torch.int64 or slots.dim() != 1 or not slots.is_contiguous():
        raise ValueError(f"slots must be contiguous int64 [R], not {slots.dtype} {tuple(slots.shape)}")
    output = projected.new_empty((rows, sizes.heads * sizes.value_dim))
    failure = library.kaminari_delta_step(
        projected.data_ptr(),
        weights.convolution.data_ptr(),
        weights.decay_log.data_ptr(),
        weights.time_bias.data_ptr(),
        weights.norm.data_ptr(),
        state.data_ptr(),
        tail.data_ptr(),
        output.data_ptr(),
        slots.data_ptr(),
        rows,
        state.shape[0],
        sizes.key_heads,
        sizes.heads,
        sizes.key_dim,
        sizes.value_dim,
        sizes.kernel,
        weights.eps,
        projected.dtype == torch.bfloat16,
    )
    if failure == _NO_MEMORY:
        raise MemoryError("no memory for a step of the gated delta rule")
    if failure:
        raise ValueError(f"slots {slots.tolist()} are not among {state.shape[0]}")
    return output


def prompt(projected: Tensor, weights: DeltaWeights, state: Tensor, tail: Tensor, slot: int) -> Tensor:
    """Run many tokens of one row; state and tail of its slot go on by them.

    projected:  [T, channels + heads * value_dim + 2 * heads], as for `step`, and so are state and tail
    returns:    [T, heads * value_dim], what the output projection takes

    Raises ValueError, before anything changes, as `step` does.
    """
    tokens = projected.shape[0]
    library, sizes = _check(projected, weights, state, tail, tokens)
    if not 0 <= slot < state.shape[0]:
        raise ValueError(f"slot {slot} is not among {state.shape[0]}")
    output = projected.new_empty((tokens, sizes.heads * sizes.value_dim))
    library.kaminari_delta_prompt(
        projected.data_ptr(),
        weights.convolution.data_ptr(),
        weights.decay_log.data_ptr(),
        weights.time_bias.data_ptr(),
        weights.norm.data_ptr(),
        state.data_ptr(),
        tail.data_ptr(),
        output.data_ptr(),
        slot,
        tokens,
        sizes.key_heads,
        sizes.heads,
        sizes.key_dim,
        sizes.value_dim,
        sizes.kernel,
        weights.eps,
        projected.dtype == torch.bfloat16,
    )
    return output


def _check(
    projected: Tensor, weights: DeltaWeights, state: Tensor, tail: Tensor, rows: int
) -> tuple[CDLL, _Sizes]:
    """Raise ValueError unless the kernels were made for tensors like these and all fit together."""
    slot_count, heads, key_dim, value_dim = state.shape
    channels, width = weights.convolution.shape
    library = native_kernels().library
    if library is None or not fits(projected, state, width):
        raise ValueError(f"no kernel for {projected.dtype} on {projected.device}, heads of {key_dim}")
    values = heads * value_dim
    key_heads, left = divmod(channels - values, 2 * key_dim)
    if left or key_heads < 1 or heads % key_heads:
        raise ValueError(f"{channels} channels are no queries, keys and values of {tuple(state.shape[1:])}")
    dtype = projected.dtype
    for name, tensor, shape, wanted in (
        ("projected", projected, (rows, channels + values + 2 * heads), dtype),
        ("convolution", weights.convolution, (channels, width), dtype),
        ("decay_log", weights.decay_log, (heads,), dtype),
        ("time_bias", weights.time_bias, (heads,), dtype),
        ("norm", weights.norm, (value_dim,), dtype),
        ("tail", tail, (slot_count, width - 1, channels), dtype),
        ("state", state, state.shape, torch.float32),
    ):
        if tensor.shape != shape or tensor.dtype != wanted or not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous {wanted} {tuple(shape)}, not {tensor.dtype} {tuple(tensor.shape)}"
            )
    return library, _Sizes(key_heads, heads, key_dim, value_dim, width)
