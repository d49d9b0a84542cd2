"""The vision towers of Qwen's families: those of `transformers`, the patch convolution as the equal linear.

Position indices and interpolation are the reference's own code. Attention is the reference's too, through
`scaled_dot_product_attention` over one grid at a time, so no picture or slice sees another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kaminari.model.family import VisionRows
from kaminari.model.loading import Placement
from kaminari.model.picture import Grid
from kaminari.model.vision_layers import ATTENTION, PatchEmbedding, fused_attention


def build_tower(tower_class: Any, config: Any) -> Any:
    """Return a tower of the reference's class, its parameters on the meta device, its buffers on the CPU."""
    with torch.device("meta"):
        tower = tower_class._from_config(config, attn_implementation=ATTENTION).eval()
        tower.patch_embed = PatchEmbedding(tower.patch_embed.proj.weight.shape)
    tower.rotary_pos_emb = type(tower.rotary_pos_emb)(config)
    return tower.requires_grad_(False)


def place_tower(tower: Any, source: str, target: str) -> dict[str, Placement]:
    """Map the checkpoint's names under `source` to the tower's parameters under `target`."""
    placements = {
        f"{source}.{name}": Placement(f"{target}.{name}", tuple(parameter.shape))
        for name, parameter in tower.named_parameters()
    }
    patches = tower.patch_embed
    for name, shape in (("weight", patches.kernel_shape), ("bias", tuple(patches.bias.shape))):
        del placements[f"{source}.patch_embed.{name}"]
        placements[f"{source}.patch_embed.proj.{name}"] = Placement(f"{target}.patch_embed.{name}", shape)
    return placements


def encode(tower: Any, pixels: Tensor, grids: Sequence[Grid], dtype: torch.dtype) -> VisionRows:
    """Run the tower over patches [N, patch_values] of grids (frames, rows, columns); rows come in `dtype`."""
    with fused_attention():
        output = tower(pixels, grid_thw=torch.tensor(grids, dtype=torch.int64, device=pixels.device))
    embeddings: Tensor = output.pooler_output.to(dtype)
    deepstack = getattr(output, "deepstack_features", None)
    if not deepstack:
        return VisionRows(embeddings, embeddings.new_empty(0, *embeddings.shape))
    return VisionRows(embeddings, torch.stack(deepstack).to(dtype))
