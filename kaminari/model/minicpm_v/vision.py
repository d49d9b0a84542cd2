"""MiniCPM-V's vision half: tower and merger of `transformers`, the patch convolution as the equal linear.

Position buckets and window indices are the reference's own code: they have exact ties. Attention goes over
one slice at a time, so no picture or slice sees another.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.minicpmv4_6.modeling_minicpmv4_6 import MiniCPMV4_6Merger, MiniCPMV4_6VisionModel

from kaminari.model.family import VisionRows
from kaminari.model.loading import Placement
from kaminari.model.picture import Grid, Picture
from kaminari.model.vision_layers import ATTENTION, PatchEmbedding, fused_attention

PATCHES = "embeddings.patch_embedding"


class PackedPatchEmbedding(PatchEmbedding):
    """Patches [N, patch_values] -> [1, hidden, N], the layout of the convolution that it stands for."""

    def forward(self, patches: Tensor) -> Tensor:
        return super().forward(patches).t()[None]


class SlicedVision(nn.Module):
    """Tower, window merger and final merger.

    windowed:  16x down-sampling; without it (4x) the tower's window merger is left out
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        with torch.device("meta"):
            self.tower: Any = MiniCPMV4_6VisionModel._from_config(
                config.vision_config, attn_implementation=ATTENTION
            ).eval()
            convolution = self.tower.embeddings.patch_embedding
            self.tower.embeddings.patch_embedding = PackedPatchEmbedding(convolution.weight.shape)
            self.merger = MiniCPMV4_6Merger(config).eval()
        self.windowed = config.downsample_mode == "16x"
        self.requires_grad_(False)

    def forward(self, patches: Tensor, grids: Sequence[Grid]) -> Tensor:
        """Rows [N, hidden of the decoder] of all slices, one behind the other.

        Slices of one size run together. Older versions of the reference's window merger take all slices of
        a call to be as large as the first, which an overview beside its slices is not.
        """
        rows = []
        start = 0
        for (_, height, width), group in groupby(grids):
            sizes = torch.tensor([(height, width)] * len(list(group)), device=patches.device)
            stop = start + len(sizes) * height * width
            output = self.tower(patches[start:stop], target_sizes=sizes, use_vit_merger=self.windowed)
            rows += self.merger(output.last_hidden_state, sizes // 2 if self.windowed else sizes)
            start = stop
        return torch.cat(rows)


def place_vision(vision: SlicedVision) -> dict[str, Placement]:
    """Map the checkpoint's names to the parameters under `vision.`."""
    placements = {}
    for part, source in (("tower", "model.vision_tower"), ("merger", "model.merger")):
        for name, parameter in getattr(vision, part).named_parameters():
            placements[f"{source}.{name}"] = Placement(f"vision.{part}.{name}", tuple(parameter.shape))
    patches = vision.tower.embeddings.patch_embedding
    placements[f"model.vision_tower.{PATCHES}.weight"] = Placement(
        f"vision.tower.{PATCHES}.weight", patches.kernel_shape
    )
    return placements


def encode_picture(vision: nn.Module, pixels: Tensor, picture: Picture, dtype: torch.dtype) -> VisionRows:
    """Run the vision half over all slices of a picture."""
    with fused_attention():
        embeddings: Tensor = vision(pixels, picture.grids).to(dtype)
    return VisionRows(embeddings, embeddings.new_empty(0, *embeddings.shape))
