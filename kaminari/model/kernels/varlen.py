"""Causal attention of one row's new tokens on CUDA, through `torch.nn.attention.varlen`.

That is flash attention's kernel for sequences of given lengths. It reads keys and values where they lie in
their slot, also where several heads share them, and its causality is aligned with the last token. It never
turns to another kernel: what it was not made for is an error. This module never chooses where it is used:
`kaminari.model.attention` does, once it was tried on the device.
"""

from __future__ import annotations

import inspect
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import varlen

CAUSAL = (-1, 0)
"""The window that means: all keys before a query, and none behind it."""

# Before torch 2.12 the kernel takes grouped heads as well, and nothing has to say so.
_GROUPED = "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters


def attend_row(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention of one row's last tokens.

    q:             [q_len, heads, head_dim], float16 or bfloat16, head_dim a multiple of 8 up to 256
    keys, values:  [kv_heads, kv_len, head_dim], as parts of a slot are; heads is a multiple of kv_heads
    returns:       [q_len, heads, head_dim]

    Raises RuntimeError or ValueError for anything else.
    """
    q_len, kv_len = q.shape[0], keys.shape[1]
    attend: Any = partial(varlen.varlen_attn, enable_gqa=True) if _GROUPED else varlen.varlen_attn
    output: Tensor = attend(
        q,
        keys.transpose(0, 1),
        values.transpose(0, 1),
        _bounds(q_len, q.device),
        _bounds(kv_len, q.device),
        q_len,
        kv_len,
        window_size=CAUSAL,
    )
    return output


@lru_cache(maxsize=256)
def _bounds(length: int, device: torch.device) -> Tensor:
    """[2] int32: where the one sequence starts and ends. Made on the device: a copy would wait for it.

    The layers of a step, and all chunks of one length, share it.
    """
    return torch.arange(0, length + 1, length, dtype=torch.int32, device=device)
