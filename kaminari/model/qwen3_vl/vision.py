"""Qwen3-VL's vision tower: the one of `transformers`, with its patch convolution as the equal linear.

Position indices and interpolation are the reference's own code. Attention is the reference's too, through
`scaled_dot_product_attention` over one grid at a time, so no picture or slice sees another.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3VLVisionModel

from kaminari.model.family import VisionRows
from kaminari.model.picture import Grid


class PatchEmbedding(nn.Module):
    """Patches [N, patch_values] -> [N, hidden].

    The reference's Conv3d has a kernel of the patch's own size: one product per patch. As a convolution it
    is a hundred times slower in bfloat16 on a CPU.

    kernel_shape:  (hidden, channels, frames, height, width) of the Conv3d; a patch is all but the first
    """

    def __init__(self, kernel_shape: Sequence[int]) -> None:
        super().__init__()
        hidden, *patch = kernel_shape
        self.kernel_shape = tuple(kernel_shape)
        self.weight = nn.Parameter(torch.empty(hidden, prod(patch)), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(hidden), requires_grad=False)

    def forward(self, patches: Tensor) -> Tensor:
        return F.linear(patches.to(self.weight.dtype), self.weight, self.bias)


def build_tower(config: Any) -> Any:
    """Return the tower with its parameters on the meta device and its buffers on the CPU."""
    with torch.device("meta"):
        tower = Qwen3VLVisionModel._from_config(config, attn_implementation="sdpa").eval()
        tower.patch_embed = PatchEmbedding(tower.patch_embed.proj.weight.shape)
    tower.rotary_pos_emb = type(tower.rotary_pos_emb)(config)
    return tower.requires_grad_(False)


def encode(tower: Any, pixels: Tensor, grids: Sequence[Grid], dtype: torch.dtype) -> VisionRows:
    """Run the tower over patches [N, patch_values] of grids (frames, rows, columns); rows come in `dtype`."""
    output = tower(pixels, grid_thw=torch.tensor(grids, dtype=torch.int64, device=pixels.device))
    embeddings: Tensor = output.pooler_output.to(dtype)
    if not output.deepstack_features:
        return VisionRows(embeddings, embeddings.new_empty(0, *embeddings.shape))
    return VisionRows(embeddings, torch.stack(output.deepstack_features).to(dtype))
