"""Torch's attention without its plain form, which holds the scores of every query with every key.

For a large picture, or a long prompt, those are gigabytes. cuDNN's form is left out as well: it builds a plan
for every new shape, and lengths and pictures are new shapes all the time.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch.nn.attention import SDPBackend, sdpa_kernel

FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


def fused_attention() -> AbstractContextManager[None]:
    """Within it `scaled_dot_product_attention` takes one of `FUSED` or raises RuntimeError."""
    context: AbstractContextManager[None] = sdpa_kernel(FUSED)
    return context
