"""A Qwen3.5 folder, checked and ready to be loaded: the hybrid decoder and a Qwen tower without deepstack."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3_5Config, Qwen3_5VisionModel

from kaminari.model.family import CheckpointError, VisionRows
from kaminari.model.hybrid.config import hybrid_sizes, read_reference_config
from kaminari.model.hybrid.weights import HybridCheckpoint, open_checkpoint
from kaminari.model.loading import Placement
from kaminari.model.picture import Picture
from kaminari.model.qwen_vision import build_tower, encode, place_tower


def open_qwen3_5(folder: Path) -> HybridCheckpoint:
    """Read config and headers; no weight is loaded. Raises `CheckpointError`."""
    config = read_reference_config(folder, Qwen3_5Config)
    path = folder / "config.json"
    sizes = hybrid_sizes(config, path)
    problem = _vision_problem(config)
    if problem is not None:
        raise CheckpointError(f"{path}: {problem}")

    def build_vision() -> tuple[nn.Module, Mapping[str, Placement]]:
        tower = build_tower(Qwen3_5VisionModel, config.vision_config)
        return tower, place_tower(tower, "model.visual", "vision")

    return open_checkpoint(folder, config, sizes, build_vision)


def encode_picture(tower: nn.Module, pixels: Tensor, picture: Picture, dtype: torch.dtype) -> VisionRows:
    return encode(tower, pixels, picture.grids, dtype)


def _vision_problem(config: Any) -> str | None:
    vision, hidden = config.vision_config, config.text_config.hidden_size
    heads = vision.num_heads
    # Rotary gives a quarter of a head's channels to each axis, sines and cosines apart.
    if heads < 1 or vision.hidden_size % (4 * heads):
        return (
            f"vision_config.hidden_size {vision.hidden_size} does not split into {heads} heads "
            "of a multiple of 4 channels"
        )
    if vision.out_hidden_size != hidden:
        return (
            f"vision_config.out_hidden_size is {vision.out_hidden_size} and text_config.hidden_size is "
            f"{hidden}; they must be equal"
        )
    return None
