"""A stand-in for `torch.nn.attention.varlen.varlen_attn`, which runs on CUDA alone.

It refuses what the kernel refuses, and computes by the documented meaning of each argument, in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> Tensor:
    """The sequences of query [T_q, heads, D], key and value [T_k, kv_heads, D] between the bounds."""
    heads, head_dim = query.shape[1:]
    kv_heads = key.shape[1]
    if not enable_gqa and heads != kv_heads:
        raise ValueError(f"Expect query and key/value to have the same number of heads, not {heads}")
    if query.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if head_dim % 8 or head_dim > 256 or heads % kv_heads:
        raise RuntimeError(f"heads: {heads} over {kv_heads} of {head_dim}")
    for part in (query, key, value):
        if part.stride(-1) != 1 or part.dtype != query.dtype:
            raise RuntimeError("Input tensor must have contiguous last dimension")
    bounds_q, bounds_k = _bounds(cu_seq_q), _bounds(cu_seq_k)
    output = torch.empty_like(query)
    for row in range(len(bounds_q) - 1):
        (start, stop), (first, last) = bounds_q[row : row + 2], bounds_k[row : row + 2]
        if stop - start > max_q or last - first > max_k:
            raise RuntimeError("a sequence is longer than the longest")
        own = (part[first:last].float().repeat_interleave(heads // kv_heads, dim=1) for part in (key, value))
        own_keys, own_values = own
        scores = torch.einsum("qhd,khd->hqk", query[start:stop].float(), own_keys) * head_dim**-0.5
        before, behind = window_size
        place = torch.arange(stop - start)[:, None] + (last - first) - (stop - start)
        number = torch.arange(last - first)[None]
        hidden = torch.zeros_like(scores[0], dtype=torch.bool)
        hidden |= (number > place + behind) if behind >= 0 else hidden
        hidden |= (number < place - before) if before >= 0 else hidden
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        output[start:stop] = torch.einsum("hqk,khd->qhd", weights, own_values)
    return output


def _bounds(tensor: Tensor) -> list[int]:
    if tensor.dtype != torch.int32 or tensor.dim() != 1 or not tensor.is_contiguous():
        raise RuntimeError("cu_seqlens must have dtype int32")
    bounds: list[int] = tensor.tolist()
    return bounds
