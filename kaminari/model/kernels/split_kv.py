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

_MIN_DOT_ROWS = 16
_MAX_HEAD_DIM = 256
_TILE_BYTES = 2**14  # of keys that are loaded at once
_MOST_KEYS = 64


def fits(step: Tensor, queries: int) -> bool:
    """Whether the kernels were made for a step's [T, heads, head_dim] and for rows of `queries` tokens."""
    head_dim = step.shape[2]
    power_of_two = head_dim & (head_dim - 1) == 0
    return 1 <= queries <= MAX_QUERIES and _MIN_DOT_ROWS <= head_dim <= _MAX_HEAD_DIM and power_of_two


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
        queries,
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
    lanes = _lanes(queries, group)
    tile, stages = tiling(head_dim * keys.itemsize)
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
        queries,
        *q.stride()[:2],
        *keys.stride()[:3],
        GROUP=group,
        LANES=lanes,
        HEAD_DIM=head_dim,
        SEGMENT_KEYS=SEGMENT,
        TILE=tile,
        num_stages=stages,
    )
    output = torch.empty_like(q)
    _merge_kernel[(rows, kv_heads)](
        partial,
        maxima,
        sums,
        kv_lens,
        output,
        segments,
        queries,
        *output.stride()[:2],
        GROUP=group,
        LANES=lanes,
        HEAD_DIM=head_dim,
        SEGMENT_KEYS=SEGMENT,
    )
    return output


def tiling(row_bytes: int) -> tuple[int, int]:
    """Keys that are loaded at once, and how many such loads are under way, for keys of so many bytes.

    Together they need less than the 99 KiB of shared memory that a block has on consumer cards.
    """
    keys = max(_MIN_DOT_ROWS, min(_MOST_KEYS, _TILE_BYTES // row_bytes))
    return keys, {64: 3, 32: 2}.get(keys, 1)


def _lanes(queries: int, group: int) -> int:
    """A row's query heads and tokens that share a key-value head, padded: the same for every draft check,
    so that there are two builds at most."""
    rows = group * (1 if queries == 1 else MAX_QUERIES)
    return max(_MIN_DOT_ROWS, 1 << (rows - 1).bit_length())


def _check(step: Tensor, keys: Tensor, queries: int) -> None:
    """Raise ValueError unless a step's tensor [T, heads, head_dim] fits the kernels and the cache's keys."""
    heads, kv_heads, head_dim = step.shape[1], keys.shape[1], keys.shape[3]
    if heads % kv_heads or step.shape[2] != head_dim:
        raise ValueError(f"{heads} heads of {step.shape[2]} do not fit a cache of {kv_heads} of {head_dim}")
    if not fits(step, queries):
        raise ValueError(
            f"made for 1 to {MAX_QUERIES} query tokens and heads of a power of two from {_MIN_DOT_ROWS} "
            f"to {_MAX_HEAD_DIM}, not {queries} tokens and heads of {head_dim}"
        )


# A last chunk of a prompt may be of any few tokens: one build serves every number.
@triton.jit(do_not_specialize=["queries"])
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
    queries,
    HEAD_DIM: tl.constexpr,
):
    token, head = tl.program_id(0), tl.program_id(1)
    row = token // queries
    length = tl.load(kv_lens + row)
    if length == 0:
        return
    place = length - queries + token % queries
    slot = tl.load(slots + row)
    dim = tl.arange(0, HEAD_DIM)
    target = slot * cache_slot + head * cache_head + place.to(tl.int64) * cache_place + dim
    tl.store(keys + target, tl.load(k + token * k_token + head * k_head + dim))
    tl.store(values + target, tl.load(v + token * v_token + head * v_head + dim))


# The number of segments grows with the longest row: one build serves every number of both.
@triton.jit(do_not_specialize=["segments", "queries"])
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
    queries,
    q_token,
    q_head,
    cache_slot,
    cache_head,
    cache_place,
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
    used = lane < queries * GROUP
    token = lane // GROUP
    dim = tl.arange(0, HEAD_DIM)
    place_in_q = (row * queries + token) * q_token + (kv_head * GROUP + lane % GROUP) * q_head
    query = tl.load(q + place_in_q[:, None] + dim[None, :], mask=used[:, None], other=0.0)
    last_visible = length - queries + token

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
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
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


@triton.jit(do_not_specialize=["segments", "queries"])
def _merge_kernel(
    partial,
    maxima,
    sums,
    kv_lens,
    output,
    segments,
    queries,
    output_token,
    output_head,
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
    used = lane < queries * GROUP
    target = (row * queries + lane // GROUP) * output_token + (kv_head * GROUP + lane % GROUP) * output_head
    tl.store(output + target[:, None] + dim[None, :], result.to(output.dtype.element_ty), mask=used[:, None])
