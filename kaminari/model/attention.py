"""Attention over the slot cache behind one name: `attend` writes a step's keys and values and reads them.

This module owns the layout of the cache's reads and writes. It reads each row's length, never a slot's
capacity, gathers nothing, and lets no row see another. `attend_rows` runs everywhere, row by row through
torch's own attention, and is the oracle that other backends are compared with. On CUDA, where Triton runs, a
step whose rows have one to eight tokens each goes to `kaminari.model.kernels.split_kv`: it reads slots and
lengths on the device. Every other row goes there to the first kernel of `row_attention` that is right on the
device. On a CPU, where our own kernels are built, every row of one to eight tokens goes to
`kaminari.model.kernels.cpu_attention`, whatever the other rows of its step are, and longer rows too where it
was made for their heads. No path holds the scores of a whole prompt.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from kaminari.model.batch import StepBatch
from kaminari.model.cache import AttentionKV, SlotCache
from kaminari.model.delta_state import GatedDeltaState
from kaminari.model.fused_attention import fused_attention
from kaminari.model.kernels import cpu_attention
from kaminari.model.row_attention import AttendRow, HeadSizes, RowAttention, first_right, try_step

PRODUCT_QUERIES = 128  # tokens whose scores are held at once in `_attend_in_products`
FEWEST_FOR_PRODUCTS = 16


def attend(q: Tensor, k: Tensor, v: Tensor, layer: AttentionKV, batch: StepBatch) -> Tensor:
    """Causal attention of a step's new tokens over all that their slots hold.

    q:        [T, heads, head_dim]
    k, v:     [T, kv_heads, head_dim], this step's; written to places [kv_len - q_len, kv_len) of each slot
    returns:  [T, heads, head_dim]

    The batch must have passed `SlotCache.check_rows`.
    """
    if cpu_attention.fits(q, layer.keys):
        return _attend_on_cpu(q, k, v, layer, batch)
    kernels = _triton_kernels(q.device.type)
    alike = len(set(batch.host.q_lens)) == 1
    if kernels is None or not (alike and kernels.fits(q, batch.host.q_lens[0])) or _step_fault(layer):
        sizes = HeadSizes(q.shape[1], k.shape[1], q.shape[2])
        output = torch.empty_like(q)
        attend_row = row_attention(q.device, q.dtype, sizes).attend_row
        _attend_longer_rows(q, k, v, layer, batch, 0, attend_row, output)
        return output
    kernels.write(k, v, layer.keys, layer.values, batch.slots, batch.kv_lens)
    longest = max(batch.host.kv_lens)
    answer: Tensor = kernels.attend(q, layer.keys, layer.values, batch.slots, batch.kv_lens, longest)
    return answer


def captures(cache: SlotCache) -> bool:
    """Whether a step of one token per row takes its slots and lengths from the device alone.

    Then it can be captured and replayed for other slots and lengths, up to the `kv_lens` of the host's copy.
    Delta nets always do.
    """
    return all(
        isinstance(layer, GatedDeltaState)
        or (
            isinstance(layer, AttentionKV)
            and (kernels := _triton_kernels(layer.keys.device.type)) is not None
            and kernels.fits(layer.keys[0], 1)
            and not _step_fault(layer)
        )
        for layer in cache.layers
    )


@cache
def row_attention(device: torch.device, dtype: torch.dtype, sizes: HeadSizes) -> RowAttention:
    """What attends the rows of a device that no kernel for short rows takes. On CUDA tried there, once."""
    if device.type != "cuda":
        return RowAttention("sdpa", _attend_row)
    # Imported where it is used: a CPU has no use for it.
    from kaminari.model.kernels import varlen

    kernels = (
        ("varlen_attn", varlen.attend_row),
        ("sdpa", _attend_row_fused),
        ("products", _attend_in_products),
    )
    return first_right(kernels, device, dtype, sizes)


def cuda_word(device: torch.device, dtype: torch.dtype, sizes: HeadSizes) -> str:
    """Whose kernels attend on CUDA, for reports: `Triton for decode and varlen_attn for prompts`."""
    kernels = _triton_kernels(device.type)
    rows = row_attention(device, dtype, sizes)
    if kernels is None:
        decode = f"{rows.name} for decode (Triton is not installed)"
    elif not kernels.fits(torch.empty(1, sizes.heads, sizes.head_dim, device="meta"), 1):
        decode = f"{rows.name} for decode (not Triton: heads of {sizes.head_dim})"
    elif fault := _tried_step(device, dtype, sizes.head_dim):
        decode = f"{rows.name} for decode (not Triton: {fault})"
    else:
        decode = "Triton for decode"
    return f"{decode} and {rows.word}"


def _step_fault(layer: AttentionKV) -> str:
    """Why Triton does not attend the steps of a layer, although it was made for them; empty where it does."""
    return _tried_step(layer.keys.device, layer.keys.dtype, layer.keys.shape[3])


@cache
def _tried_step(device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """What is wrong with Triton's kernels on a device. On CUDA tried there, once: they are built on the way,
    for which Triton needs more than what it brings (a C compiler)."""
    kernels = _triton_kernels(device.type) if device.type == "cuda" else None
    return "" if kernels is None else try_step(kernels, device, dtype, head_dim)


@cache
def _triton_kernels(device_type: str) -> ModuleType | None:
    """Return the Triton kernels for a kind of device, or None where they do not run."""
    if device_type != "cuda":
        return None
    try:
        # Imported where it is used: the import costs a second, and a CPU has no use for it.
        from kaminari.model.kernels import split_kv
    except ModuleNotFoundError:
        return None
    return split_kv


def attend_rows(q: Tensor, k: Tensor, v: Tensor, layer: AttentionKV, batch: StepBatch) -> Tensor:
    """`attend`, one row after the other, on every device and for every mix of lengths."""
    output = torch.empty_like(q)
    _attend_longer_rows(q, k, v, layer, batch, 0, _attend_row, output)
    return output


def _attend_on_cpu(q: Tensor, k: Tensor, v: Tensor, layer: AttentionKV, batch: StepBatch) -> Tensor:
    """`attend`: short rows through one kernel, and longer ones through another that was made for them."""
    most = cpu_attention.MAX_QUERIES
    if min(batch.host.q_lens) <= most:
        output = cpu_attention.attend(
            q, k, v, layer.keys, layer.values, batch.slots, batch.q_lens, batch.kv_lens
        )
    else:
        output = torch.empty_like(q)
    if max(batch.host.q_lens) > most:
        fits = cpu_attention.fits_prompt(q, layer.keys)
        attend_row = cpu_attention.attend_prompt if fits else _attend_row
        _attend_longer_rows(q, k, v, layer, batch, most, attend_row, output)
    return output


def _attend_longer_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer: AttentionKV,
    batch: StepBatch,
    more_than: int,
    attend_row: AttendRow,
    output: Tensor,
) -> None:
    """Write and attend for every row of more than so many new tokens; the others' output stays."""
    rows = batch.host
    start = 0
    for slot, q_len, kv_len in zip(rows.slots, rows.q_lens, rows.kv_lens, strict=True):
        stop = start + q_len
        if q_len > more_than:
            keys = layer.keys[slot, :, :kv_len]
            values = layer.values[slot, :, :kv_len]
            keys[:, kv_len - q_len :].copy_(k[start:stop].transpose(0, 1))
            values[:, kv_len - q_len :].copy_(v[start:stop].transpose(0, 1))
            output[start:stop] = attend_row(q[start:stop], keys, values)
        start = stop


def _attend_row(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of one row's last tokens: q [q_len, heads, head_dim], keys [kv_heads, kv_len, head_dim].

    Query head h reads key-value head h // group. Keys and values are never expanded in memory: a single
    query's heads become the rows of their kv head, and a chunk's groups a batch of stride 0.
    """
    q_len, heads, head_dim = q.shape
    kv_heads, kv_len, _ = keys.shape
    group = heads // kv_heads
    if q_len == 1:
        folded = q.view(1, kv_heads, group, head_dim)
        return F.scaled_dot_product_attention(folded, keys[None], values[None]).reshape(1, heads, head_dim)
    if q_len >= FEWEST_FOR_PRODUCTS and q.dtype == torch.bfloat16 and q.device.type == "cpu":
        return _attend_in_products(q, keys, values)
    grouped = q.view(q_len, kv_heads, group, head_dim).permute(2, 1, 0, 3)
    output = F.scaled_dot_product_attention(
        grouped,
        keys.expand(group, -1, -1, -1),
        values.expand(group, -1, -1, -1),
        attn_mask=None if q_len == kv_len else _bottom_right_mask(q_len, kv_len, q.device),
        is_causal=q_len == kv_len,
    )
    return output.permute(2, 1, 0, 3).reshape(q_len, heads, head_dim)


def _attend_row_fused(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """As `_attend_row`, by a fused kernel. Raises RuntimeError where there is none for it."""
    with fused_attention():
        return _attend_row(q, keys, values)


def _attend_in_products(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """As `_attend_row`, as two matrix products and a softmax per kv head and block of queries.

    In bfloat16 on a CPU this takes 0.5 to 0.8 of the time of `scaled_dot_product_attention`, whose own small
    products do not reach the processor's rate. As there, scores and softmax are float32: a product in
    bfloat16 would round the scores and take half of the time, at five times the error. It runs on every
    device, and holds the scores of one block alone.
    """
    q_len, heads, head_dim = q.shape
    kv_heads, kv_len, _ = keys.shape
    group = heads // kv_heads
    grouped = q.view(q_len, kv_heads, group, head_dim)
    wide_keys = keys.float()
    output = torch.empty_like(grouped)
    later = torch.ones(PRODUCT_QUERIES, PRODUCT_QUERIES, dtype=torch.bool, device=q.device).triu_(1)[:, None]
    scratch = wide_keys.new_empty(min(PRODUCT_QUERIES, q_len) * group * kv_len)
    for start in range(0, q_len, PRODUCT_QUERIES):
        block = grouped[start : start + PRODUCT_QUERIES]
        count = block.shape[0]
        seen = kv_len - q_len + start + count
        scores = scratch[: count * group * seen].view(count * group, seen)
        for head in range(kv_heads):
            rows = block[:, head].reshape(count * group, head_dim).float()
            torch.addmm(scores, rows, wide_keys[head, :seen].t(), beta=0, alpha=head_dim**-0.5, out=scores)
            own = scores.view(count, group, seen)[:, :, seen - count :]
            own.masked_fill_(later[:count, :, :count], -torch.inf)
            weights = torch.softmax(scores, dim=-1).to(q.dtype)
            output[start : start + count, head] = (weights @ values[head, :seen]).view(count, group, head_dim)
    return output.view(q_len, heads, head_dim)


def _bottom_right_mask(q_len: int, kv_len: int, device: torch.device) -> Tensor:
    """A mask in which the last of q_len queries reads all kv_len keys; `is_causal` is aligned upper-left.

    On CUDA it is a bias that flash and memory-efficient attention take without a mask in memory; elsewhere a
    tensor [q_len, kv_len], True where a key may be read.
    """
    if device.type == "cuda":
        return causal_lower_right(q_len, kv_len)
    return torch.ones(q_len, kv_len, dtype=torch.bool, device=device).tril(kv_len - q_len)
