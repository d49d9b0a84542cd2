"""Attention on a CPU: the C++ of `attention.cpp`, `prompt.cpp` and `prompt_bfloat.cpp`, for torch tensors.

`attend` takes a step's rows of one to eight new tokens, in any mix of lengths; `attend_prompt` one row of
many; `attend_all` the patches of a picture, each of which reads every other. Scores and sums are float32 also
where keys and values are bfloat16. Weights are too, but over bfloat16 on a CPU that multiplies it: there they
are rounded before they multiply values, as torch's own attention rounds them. All walk a row's keys in parts
of a fixed size, so a row's result is the same bits whatever its neighbours, the capacity and the threads are.
This module never chooses where it is used: `kaminari.model.attention` and `kaminari.model.vision_layers` do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kaminari.model.kernels.native.build import BFLOAT_LEVEL, native_kernels

MAX_QUERIES = 8
"""New tokens per row; rows of more are left alone."""

_MAX_GROUP = 128
_HEAD_STEP = 16
_PAIR = 2
_MAX_HEAD_DIM = 256
_DTYPES = (torch.float32, torch.bfloat16)
_NO_MEMORY = 1


def fits(q: Tensor, keys: Tensor) -> bool:
    """Whether the kernel is there and was made for a step's q [T, heads, head_dim] and a cache's keys."""
    head_dim = q.shape[2]
    return (
        keys.is_cpu
        and keys.dtype in _DTYPES
        and head_dim % _HEAD_STEP == 0
        and head_dim <= _MAX_HEAD_DIM
        and native_kernels().library is not None
    )


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    q_lens: Tensor,
    kv_lens: Tensor,
) -> Tensor:
    """Write a step's keys and values, and attend causally from its new tokens to all that their slots hold.

    q:             [T, heads, head_dim]
    k, v:          [T, kv_heads, head_dim]; written to the last places of each row's length
    keys, values:  [slots, kv_heads, capacity, head_dim], contiguous, changed in place
    slots:         [R] int64, distinct
    q_lens:        [R] int32, of sum T
    kv_lens:       [R] int32, counted after this step's tokens
    returns:       [T, heads, head_dim], contiguous; undefined for the tokens of rows of more than
                   `MAX_QUERIES`, of which nothing is written either

    Raises ValueError, before anything is written, for what it was not made for or does not fit together.
    """
    library = native_kernels().library
    if library is None or not fits(q, keys):
        raise ValueError(f"no kernel for {q.dtype} heads of {q.shape[-1]} on {q.device}")
    tokens, heads, head_dim = q.shape
    slot_count, kv_heads, capacity, _ = keys.shape
    step = (tokens, kv_heads, head_dim)
    if not q.dtype == k.dtype == v.dtype == keys.dtype == values.dtype:
        raise ValueError(f"a step of {q.dtype}, {k.dtype}, {v.dtype} and a cache of {keys.dtype}")
    if k.shape != step or v.shape != step or keys.shape[3] != head_dim or heads % kv_heads:
        raise ValueError(
            f"{heads} heads of {head_dim}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit a cache "
            f"of {tuple(keys.shape)}"
        )
    if values.shape != keys.shape or not (keys.is_contiguous() and values.is_contiguous()):
        raise ValueError("keys and values of the cache must be contiguous, and of one shape")
    rows = slots.shape[0]
    if q_lens.shape != (rows,) or kv_lens.shape != (rows,):
        raise ValueError("slots, q_lens and kv_lens must have one entry per row")
    if (slots.dtype, q_lens.dtype, kv_lens.dtype) != (torch.int64, torch.int32, torch.int32):
        raise ValueError("slots must be int64, q_lens and kv_lens int32")
    q, k, v = _side_by_side(q), _side_by_side(k), _side_by_side(v)
    output = q.new_empty((tokens, heads, head_dim))
    failure = library.kaminari_attend(
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        output.data_ptr(),
        q.stride(0),
        k.stride(0),
        v.stride(0),
        tokens,
        heads,
        kv_heads,
        slot_count,
        capacity,
        head_dim,
        slots.contiguous().data_ptr(),
        q_lens.contiguous().data_ptr(),
        kv_lens.contiguous().data_ptr(),
        rows,
        head_dim**-0.5,
        q.dtype == torch.bfloat16,
    )
    if failure == _NO_MEMORY:
        raise MemoryError("no memory for the partial sums of attention")
    if failure:
        raise ValueError(
            f"rows of {q_lens.tolist()} new tokens, {kv_lens.tolist()} in all, in slots {slots.tolist()} "
            f"do not fit {tokens} tokens and {slot_count} slots of {capacity}"
        )
    return output


def fits_prompt(q: Tensor, keys: Tensor) -> bool:
    """Whether `attend_prompt` was made for q [T, heads, head_dim] and keys [..., kv_heads, n, head_dim]."""
    return fits(q, keys) and q.shape[1] // keys.shape[-3] <= _MAX_GROUP


def attend_prompt(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention of one row's last tokens over its keys and values, which are written already.

    q:             [tokens, heads, head_dim]
    keys, values:  [kv_heads, length, head_dim], each head's contiguous, as parts of a slot are
    returns:       [tokens, heads, head_dim]

    A token's result is the same bits however the row was cut into chunks. Raises ValueError for what it was
    not made for or does not fit together.
    """
    library = native_kernels().library
    if library is None or not fits_prompt(q, keys):
        raise ValueError(f"no kernel for {q.dtype} heads of {q.shape[-1]} on {q.device}")
    tokens, heads, head_dim = q.shape
    kv_heads, length, _ = keys.shape
    if not q.dtype == keys.dtype == values.dtype:
        raise ValueError(f"queries of {q.dtype} beside {keys.dtype} and {values.dtype}")
    if keys.shape[2] != head_dim or values.shape != keys.shape or heads % kv_heads or tokens > length:
        raise ValueError(f"queries {tuple(q.shape)} do not fit {tuple(keys.shape)} and {tuple(values.shape)}")
    if keys.stride() != values.stride() or keys.stride()[1:] != (head_dim, 1):
        raise ValueError("keys and values must lie alike, and each head's one behind the other")
    q = _side_by_side(q)
    output = q.new_empty((tokens, heads, head_dim))
    library.kaminari_attend_prompt(
        q.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        output.data_ptr(),
        q.stride(0),
        keys.stride(1),
        keys.stride(0),
        values.stride(1),
        values.stride(0),
        tokens,
        heads,
        kv_heads,
        length,
        head_dim,
        head_dim**-0.5,
        True,
        q.dtype == torch.bfloat16,
    )
    return output


def fits_all(q: Tensor) -> bool:
    """Whether `attend_all` was made for q [N, heads, head_dim]: bfloat16, where the CPU multiplies it."""
    return (
        q.is_cpu
        and q.dtype == torch.bfloat16
        and q.shape[2] % _PAIR == 0
        and q.shape[2] <= _MAX_HEAD_DIM
        and native_kernels().level == BFLOAT_LEVEL
        and native_kernels().library is not None
    )


@torch.library.custom_op("kaminari::attend_all", mutates_args=())
def attend_all(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention of N places over one another, none of which is hidden from any.

    It is an operator of torch's, so that what counts a tower's operations sees it.

    q, k, v:  [N, heads, head_dim]; the channels of a head lie side by side
    scale:    of the scores
    returns:  [N, heads, head_dim]

    Raises ValueError for what it was not made for or does not fit together.
    """
    library = native_kernels().library
    if library is None or not fits_all(q):
        raise ValueError(f"no kernel for {q.dtype} heads of {q.shape[-1]} on {q.device}")
    if not q.dtype == k.dtype == v.dtype or not q.shape == k.shape == v.shape:
        raise ValueError(
            f"queries of {q.dtype} {tuple(q.shape)} beside {k.dtype} {tuple(k.shape)} and "
            f"{v.dtype} {tuple(v.shape)}"
        )
    if k.stride(2) != 1 or v.stride(2) != 1:
        raise ValueError("the channels of a head must lie side by side")
    q = _side_by_side(q)
    places, heads, head_dim = q.shape
    output = q.new_empty((places, heads, head_dim))
    library.kaminari_attend_prompt(
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        output.data_ptr(),
        q.stride(0),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        places,
        heads,
        heads,
        places,
        head_dim,
        scale,
        False,
        True,
    )
    return output


def _side_by_side(x: Tensor) -> Tensor:
    """The tensor with the heads of a token one behind the other, which is how it mostly comes."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
