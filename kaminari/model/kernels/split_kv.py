"""Attention of a decode step or a draft check over the slot cache, as three Triton kernels.

A row has 1 to 8 query tokens, and its keys and values lie in its slot of the whole cache. Slot numbers and
lengths are read on the device, so one captured launch serves every step. The keys of a row are cut into
segments of a fixed size, each reduced on its own and then merged in ascending order (flash-decoding:
Dao et al. 2023, "Flash-Decoding for long-context inference"; the merge is the online softmax of Milakov and
Gimelshein 2018). Since the size is fixed and not the number, a row's result is the same whatever its
neighbours are and however large the cache is.

Nothing past a row's length is read, and a row of length 0 (the padding of a captured step) reads and writes
nothing. This module never chooses where it is used: `kaminari.model.attention` does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SEGMENT = 256
"""Keys per segment."""

MAX_QUERIES = 8
"""Query tokens per row: a decode step has one, a draft check a few."""

_TILE = 64
_MIN_DOT_ROWS = 16


def fits(step: Tensor, queries: int) -> bool:
    """Whether the kernels were made for a step's [T, heads, head_dim] and for rows of `queries` tokens."""
    head_dim = step.shape[2]
    return 1 <= queries <= MAX_QUERIES and head_dim >= _MIN_DOT_ROWS and head_dim & (head_dim - 1) == 0


def write(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor, kv_lens: Tensor) -> None:
    """Write a step's keys and values to the last places of their slots.

    k, v:          [R * Q, kv_heads, head_dim], contiguous in the last dimension
    keys, values:  [slots, kv_heads, capacity, head_dim], changed in place
    slots:         [R] int64
    kv_lens:       [R] int32, counted after this step's Q tokens; a row of 0 writes nothing
    """
    rows = slots.shape[0]
    queries = k.shape[0] // rows
    _check(k, keys, queries)
    _write_kernel[(rows * queries, k.shape[1])](
        k,
        v,
        keys,
        values,
        slots,
        kv_lens,
        *k.stride()[:2],
        *v.stride()[:2],
        *keys.stride()[:3],
        QUERIES=queries,
        HEAD_DIM=k.shape[2],
    )


def attend(q: Tensor, keys: Tensor, values: Tensor, slots: Tensor, kv_lens: Tensor, longest: int) -> Tensor:
    """Causal attention of each row's last Q tokens over all that its slot holds.

    q:             [R * Q, heads, head_dim], Q from 1 to `MAX_QUERIES`
    keys, values:  [slots, kv_heads, capacity, head_dim]
    slots:         [R] int64
    kv_lens:       [R] int32, counted after this step's tokens; a row of 0 gives zeros
    longest:       a bound of every entry of kv_lens; it sets the size of the launch and nothing else
    returns:       [R * Q, heads, head_dim]

    Raises ValueError for a number of query tokens, heads or a head size that it was not made for.
    """
    rows = slots.shape[0]
    queries = q.shape[0] // rows
    _check(q, keys, queries)
    kv_heads, head_dim = keys.shape[1], keys.shape[3]
    group = q.shape[1] // kv_heads
    segments = triton.cdiv(longest, SEGMENT)
    lanes = max(_MIN_DOT_ROWS, triton.next_power_of_2(queries * group))
    partial = torch.empty((rows, kv_heads, segments, lanes, head_dim), dtype=torch.float32, device=q.device)
    maxima = torch.empty((rows, kv_heads, segments, lanes), dtype=torch.float32, device=q.device)
    sums = torch.empty_like(maxima)
    _segment_kernel[(rows, kv_heads, segments)](
        q,
        keys,
        values,
        slots,
        kv_lens,
        partial,
        maxima,
        sums,
        head_dim**-0.5,
        segments,
        *q.stride()[:2],
        *keys.stride()[:3],
        QUERIES=queries,
        GROUP=group,
        LANES=lanes,
        HEAD_DIM=head_dim,
        SEGMENT_KEYS=SEGMENT,
        TILE=_TILE,
    )
    output = torch.empty_like(q)
    _merge_kernel[(rows, kv_heads)](
        partial,
        maxima,
        sums,
        kv_lens,
        output,
        segments,
        *output.stride()[:2],
        QUERIES=queries,
        GROUP=group,
        LANES=lanes,
        HEAD_DIM=head_dim,
        SEGMENT_KEYS=SEGMENT,
    )
    return output


def _check(step: Tensor, keys: Tensor, queries: int) -> None:
    """Raise ValueError unless a step's tensor [T, heads, head_dim] fits the kernels and the cache's keys."""
    heads, kv_heads, head_dim = step.shape[1], keys.shape[1], keys.shape[3]
    if heads % kv_heads or step.shape[2] != head_dim:
        raise ValueError(f"{heads} heads of {step.shape[2]} do not fit a cache of {kv_heads} of {head_dim}")
    if not fits(step, queries):
        raise ValueError(
            f"made for 1 to {MAX_QUERIES} query tokens and heads of a power of two from {_MIN_DOT_ROWS}, "
            f"not {queries} tokens and heads of {head_dim}"
        )


@triton.jit
def _write_kernel(
    k,
    v,
    keys,
    values,
    slots,
    kv_lens,
    k_token,
    k_head,
    v_token,
    v_head,
    cache_slot,
    cache_head,
    cache_place,
    QUERIES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    token, head = tl.program_id(0), tl.program_id(1)
    row = token // QUERIES
    length = tl.load(kv_lens + row)
    if length == 0:
        return
    place = length - QUERIES + token % QUERIES
    slot = tl.load(slots + row)
    dim = tl.arange(0, HEAD_DIM)
    target = slot * cache_slot + head * cache_head + place.to(tl.int64) * cache_place + dim
    tl.store(keys + target, tl.load(k + token * k_token + head * k_head + dim))
    tl.store(values + target, tl.load(v + token * v_token + head * v_head + dim))


# The number of segments grows with the longest row: one build serves every number.
@triton.jit(do_not_specialize=["segments"])
def _segment_kernel(
    q,
    keys,
    values,
    slots,
    kv_lens,
    partial,
    maxima,
    sums,
    scale,
    segments,
    q_token,
    q_head,
    cache_slot,
    cache_head,
    cache_place,
    QUERIES: tl.constexpr,
    GROUP: tl.constexpr,
    LANES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SEGMENT_KEYS: tl.constexpr,
    TILE: tl.constexpr,
):
    """One segment of one row and key-value head. A lane is one query head of one query token."""
    row, kv_head, segment = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(kv_lens + row)
    first = segment * SEGMENT_KEYS
    if first >= length:
        return
    lane = tl.arange(0, LANES)
    used = lane < QUERIES * GROUP
    token = lane // GROUP
    dim = tl.arange(0, HEAD_DIM)
    query = (row * QUERIES + token) * q_token + (kv_head * GROUP + lane % GROUP) * q_head
    queries = tl.load(q + query[:, None] + dim[None, :], mask=used[:, None], other=0.0)
    last_visible = length - QUERIES + token

    base = tl.load(slots + row) * cache_slot + kv_head * cache_head
    maximum = tl.full([LANES], float("-inf"), tl.float32)
    total = tl.zeros([LANES], tl.float32)
    mixed = tl.zeros([LANES, HEAD_DIM], tl.float32)
    for start in range(first, min(first + SEGMENT_KEYS, length), TILE):
        place = start + tl.arange(0, TILE)
        held = place < length
        address = base + place.to(tl.int64)[:, None] * cache_place + dim[None, :]
        key = tl.load(keys + address, mask=held[:, None], other=0.0)
        value = tl.load(values + address, mask=held[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(place[None, :] <= last_visible[:, None], scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        # A lane that sees no key of this tile yet has a maximum of -inf, and -inf - -inf is NaN.
        anchor = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        weights = tl.exp(scores - anchor[:, None])
        shrink = tl.exp(maximum - anchor)
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        maximum = new_maximum

    cell = ((row * tl.num_programs(1) + kv_head) * segments + segment).to(tl.int64) * LANES + lane
    tl.store(maxima + cell, maximum)
    tl.store(sums + cell, total)
    tl.store(partial + cell[:, None] * HEAD_DIM + dim[None, :], mixed)


@triton.jit(do_not_specialize=["segments"])
def _merge_kernel(
    partial,
    maxima,
    sums,
    kv_lens,
    output,
    segments,
    output_token,
    output_head,
    QUERIES: tl.constexpr,
    GROUP: tl.constexpr,
    LANES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SEGMENT_KEYS: tl.constexpr,
):
    """Merge the segments of one row and key-value head, in ascending order."""
    row, kv_head = tl.program_id(0), tl.program_id(1)
    length = tl.load(kv_lens + row)
    lane = tl.arange(0, LANES)
    dim = tl.arange(0, HEAD_DIM)
    maximum = tl.full([LANES], float("-inf"), tl.float32)
    total = tl.zeros([LANES], tl.float32)
    mixed = tl.zeros([LANES, HEAD_DIM], tl.float32)
    for segment in range((length + SEGMENT_KEYS - 1) // SEGMENT_KEYS):
        cell = ((row * tl.num_programs(1) + kv_head) * segments + segment).to(tl.int64) * LANES + lane
        part_maximum = tl.load(maxima + cell)
        new_maximum = tl.maximum(maximum, part_maximum)
        anchor = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
        shrink = tl.exp(maximum - anchor)
        grow = tl.exp(part_maximum - anchor)
        total = total * shrink + tl.load(sums + cell) * grow
        part = tl.load(partial + cell[:, None] * HEAD_DIM + dim[None, :])
        mixed = mixed * shrink[:, None] + part * grow[:, None]
        maximum = new_maximum
    result = mixed / tl.where(total > 0, total, 1.0)[:, None]
    used = lane < QUERIES * GROUP
    target = (row * QUERIES + lane // GROUP) * output_token + (kv_head * GROUP + lane % GROUP) * output_head
    tl.store(output + target[:, None] + dim[None, :], result.to(output.dtype.element_ty), mask=used[:, None])
