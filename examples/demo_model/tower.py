"""Qwen3-VL's vision tower for training: pictures of one size as a batch, parameters by checkpoint names.

It computes what the tower of `transformers` computes, without a loop over pictures, and gives back the
patches too. Where patches stand is the reference's own arithmetic.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from kaminari.model.rotary import rotate

_EPSILON = 1e-6


class Sight(NamedTuple):
    """What the tower makes of B pictures with P patches each, N = P / merge^2.

    rows:       [B, N, out_hidden] in place of the pictures' tokens
    deepstack:  [B, N, out_hidden] to add behind each of the decoder's first layers
    patches:    [B, P, hidden] behind the last block; those of one row stand together
    """

    rows: Tensor
    deepstack: list[Tensor]
    patches: Tensor

    def of_lessons(self, lessons: int) -> Sight:
        """Rows and deepstack with the pictures of each lesson, which follow one another, side by side."""
        return self._replace(
            rows=self.rows.reshape(lessons, -1, self.rows.shape[-1]),
            deepstack=[level.reshape(lessons, -1, level.shape[-1]) for level in self.deepstack],
        )


class Places(NamedTuple):
    """Where the P patches of a picture are.

    corners, shares:  [P, 4] the learned positions that each one's is mixed of, and how much of each
    cos, sin:         [P, head_dim] of its rotary angles
    """

    corners: Tensor
    shares: Tensor
    cos: Tensor
    sin: Tensor


class Tower(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = _PatchEmbedding(config)
        self.pos_embed = nn.Embedding(config.num_position_embeddings, config.hidden_size)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.depth))
        self.merger = _Merger(config, norm_merged=False)
        self.deepstack_merger_list = nn.ModuleList(
            _Merger(config, norm_merged=True) for _ in config.deepstack_visual_indexes
        )

    def forward(self, pixels: Tensor) -> Sight:
        """See pictures [B, height, width, 3] of uint8, whose sides are multiples of patch times merge."""
        config = self.config
        rows, columns = (side // config.patch_size for side in pixels.shape[1:3])
        corners, shares, cos, sin = (part.to(pixels.device) for part in _places(rows, columns, config))
        states = self.patch_embed(split_into_patches(pixels, config.patch_size, config.spatial_merge_size))
        states = states + (self.pos_embed(corners) * shares[..., None]).sum(1)
        deepstack = []
        for number, block in enumerate(self.blocks):
            states = block(states, cos, sin)
            if number in config.deepstack_visual_indexes:
                merger = self.deepstack_merger_list[config.deepstack_visual_indexes.index(number)]
                deepstack.append(merger(states))
        return Sight(self.merger(states), deepstack, states)


def split_into_patches(pixels: Tensor, patch: int, merge: int) -> Tensor:
    """[B, height, width, 3] of uint8 -> [B, P, 3 * patch * patch] from -1 to 1; merged ones together."""
    count, height, width, channels = pixels.shape
    blocks = (height // (patch * merge), merge, patch, width // (patch * merge), merge, patch)
    split = pixels.view(count, *blocks, channels).permute(0, 1, 4, 2, 5, 7, 3, 6)
    return split.reshape(count, -1, channels * patch * patch) / 127.5 - 1


def _places(rows: int, columns: int, config: Any) -> Places:
    side = int(config.num_position_embeddings**0.5)
    return _computed_places(
        rows, columns, side, config.spatial_merge_size, config.hidden_size // config.num_heads
    )


@cache
def _computed_places(rows: int, columns: int, side: int, merge: int, head_dim: int) -> Places:
    grid = torch.tensor([[1, rows, columns]])
    corners, shares = get_vision_interpolation_indices_and_weights(
        grid, side, mode="bilinear", align_corners=True, spatial_merge_size=merge
    )
    positions = get_vision_position_ids(grid, merge).float()
    axis = head_dim // 2
    frequencies = 1 / 10000 ** (torch.arange(0, axis, 2).float() / axis)
    turned = (positions[:, :, None] * frequencies).flatten(1).repeat(1, 2)
    return Places(corners, shares.float(), turned.cos(), turned.sin())


class _PatchEmbedding(nn.Module):
    """The reference's convolution as a product; both frames of a still picture are the same."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        side = config.patch_size
        self.proj = nn.Conv3d(
            config.in_channels,
            config.hidden_size,
            kernel_size=(config.temporal_patch_size, side, side),
        )

    def forward(self, patches: Tensor) -> Tensor:
        return F.linear(patches, self.proj.weight.sum(2).flatten(1), self.proj.bias).float()


class _Block(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=_EPSILON)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=_EPSILON)
        self.attn = _Attention(config)
        self.mlp = _MLP(config)

    def forward(self, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        states = states + self.attn(self.norm1(states), cos, sin)
        return states + self.mlp(self.norm2(states))


class _Attention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads = config.num_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        split = self.qkv(states).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = split.unbind(0)
        mixed = F.scaled_dot_product_attention(rotate(query, cos, sin), rotate(key, cos, sin), value)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class _MLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.linear_fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, states: Tensor) -> Tensor:
        return self.linear_fc2(F.gelu(self.linear_fc1(states), approximate="tanh"))


class _Merger(nn.Module):
    """merge^2 patches to one row; they are normed apart or together."""

    def __init__(self, config: Any, norm_merged: bool) -> None:
        super().__init__()
        merged = config.hidden_size * config.spatial_merge_size**2
        self.merged = merged
        self.norm_merged = norm_merged
        self.norm = nn.LayerNorm(merged if norm_merged else config.hidden_size, eps=_EPSILON)
        self.linear_fc1 = nn.Linear(merged, merged)
        self.linear_fc2 = nn.Linear(merged, config.out_hidden_size)

    def forward(self, states: Tensor) -> Tensor:
        count = states.shape[0]
        if self.norm_merged:
            rows = self.norm(states.reshape(count, -1, self.merged))
        else:
            rows = self.norm(states).reshape(count, -1, self.merged)
        return self.linear_fc2(F.gelu(self.linear_fc1(rows))).float()
