"""Attention over the slot cache behind one name: `attend` writes a step's keys and values and reads them.

This module owns the layout of the cache's reads and writes. It reads each row's length, never a slot's
capacity, gathers nothing, and lets no row see another. `attend_rows` runs everywhere, row by row through
torch's own attention, and is the oracle that other backends are compared with. On CUDA, where Triton is
installed, a step whose rows have one to eight tokens each goes to `kaminari.model.kernels.split_kv`: it
reads slots and lengths on the device.
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

PRODUCT_QUERIES = 128  # tokens whose scores are held at once in `_attend_in_products`
FEWEST_FOR_PRODUCTS = 16


def attend(q: Tensor, k: Tensor, v: Tensor, layer: AttentionKV, batch: StepBatch) -> Tensor:
    """Causal attention of a step's new tokens over all that their slots hold.

    q:        [T, heads, head_dim]
    k, v:     [T, kv_heads, head_dim], this step's; written to places [kv_len - q_len, kv_len) of each slot
    returns:  [T, heads, head_dim]

    The batch must have passed `SlotCache.check_rows`.
    """
    kernels = _kernels(q.device.type)
    if kernels is None or len(set(batch.host.q_lens)) > 1 or not kernels.fits(q, batch.host.q_lens[0]):
        return attend_rows(q, k, v, layer, batch)
    kernels.write(k, v, layer.keys, layer.values, batch.slots, batch.kv_lens)
    longest = max(batch.host.kv_lens)
    answer: Tensor = kernels.attend(q, layer.keys, layer.values, batch.slots, batch.kv_lens, longest)
    return answer


def captures(cache: SlotCache) -> bool:
    """Whether a step of one token per row takes its slots and lengths from the device alone.

    Then it can be captured and replayed for other slots and lengths, up to the `kv_lens` of the host's copy.
    """
    return all(
        isinstance(layer, AttentionKV)
        and (kernels := _kernels(layer.keys.device.type)) is not None
        and kernels.fits(layer.keys[0], 1)
        for layer in cache.layers
    )


@cache
def _kernels(device_type: str) -> ModuleType | None:
    """Return the decode kernels for a kind of device, or None where there are none."""
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
    rows = batch.host
    output = torch.empty_like(q)
    start = 0
    for slot, q_len, kv_len in zip(rows.slots, rows.q_lens, rows.kv_lens, strict=True):
        stop = start + q_len
        keys = layer.keys[slot, :, :kv_len]
        values = layer.values[slot, :, :kv_len]
        keys[:, kv_len - q_len :].copy_(k[start:stop].transpose(0, 1))
        values[:, kv_len - q_len :].copy_(v[start:stop].transpose(0, 1))
        output[start:stop] = _attend_row(q[start:stop], keys, values)
        start = stop
    return output


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


def _attend_in_products(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """As `_attend_row`, as two matrix products and a softmax per kv head and block of queries.

    In bfloat16 on a CPU this takes 0.5 to 0.8 of the time of `scaled_dot_product_attention`, whose own small
    products do not reach the processor's rate. As there, scores and softmax are float32: a product in
    bfloat16 would round the scores and take half of the time, at five times the error.
    """
    q_len, heads, head_dim = q.shape
    kv_heads, kv_len, _ = keys.shape
    group = heads // kv_heads
    grouped = q.view(q_len, kv_heads, group, head_dim)
    wide_keys = keys.float()
    output = torch.empty_like(grouped)
    later = torch.ones(PRODUCT_QUERIES, PRODUCT_QUERIES, dtype=torch.bool).triu_(1)[:, None]
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
