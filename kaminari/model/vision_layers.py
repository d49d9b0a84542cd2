"""What vision towers run on: layers that are faster than the reference's and equal to them, and attention.

`transformers` asks its register of attention functions for the one that a tower was built with; `ATTENTION`
is ours, in that register from the import of this module on.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from kaminari.model.kernels import cpu_attention

ATTENTION = "kaminari"
"""What a tower is built with: `attn_implementation`."""

FEWEST_FOR_OURS = 32
"""Patches of a picture or a window; for fewer, calling our kernel takes longer than torch's."""


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of the patches of one picture over one another, as `transformers` calls it.

    query, key, value:  [1, heads, N, head_dim]
    options:            those of the reference's `sdpa`; `scaling` is the only one that a tower gives a value
    returns:            [1, N, heads, head_dim], and no weights

    On a CPU that multiplies bfloat16 it is our own kernel, elsewhere `scaled_dot_product_attention`.
    Raises ValueError for a mask, which no tower has.
    """
    if attention_mask is not None or options.get("is_causal"):
        raise ValueError("a vision tower's patches all read one another")
    scaling = options.get("scaling") or query.shape[-1] ** -0.5
    if query.shape[0] == 1 and query.shape[2] >= FEWEST_FOR_OURS:
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        if cpu_attention.fits_all(q):
            output: Tensor = cpu_attention.attend_all(q, k, v, scaling)
            return output[None], None
    return F.scaled_dot_product_attention(query, key, value, scale=scaling).transpose(1, 2), None


AttentionInterface.register(ATTENTION, attend)


class PatchEmbedding(nn.Module):
    """Patches [N, patch_values] -> [N, hidden].

    The reference's convolution has a kernel of the patch's own size: one product per patch. As a convolution
    it is a hundred times slower in bfloat16 on a CPU.

    kernel_shape:  (hidden, channels, [frames,] height, width) of the convolution; a patch is all but hidden
    """

    def __init__(self, kernel_shape: Sequence[int]) -> None:
        super().__init__()
        hidden, *patch = kernel_shape
        self.kernel_shape = tuple(kernel_shape)
        self.weight = nn.Parameter(torch.empty(hidden, prod(patch)), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(hidden), requires_grad=False)

    def forward(self, patches: Tensor) -> Tensor:
        return F.linear(patches.to(self.weight.dtype), self.weight, self.bias)
