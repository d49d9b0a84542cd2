"""A MiniCPM-V 4.6 folder, checked and ready to be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from transformers import MiniCPMV4_6Config

from kaminari.model.family import CheckpointError
from kaminari.model.hybrid.config import hybrid_sizes, read_reference_config
from kaminari.model.hybrid.weights import HybridCheckpoint, open_checkpoint
from kaminari.model.loading import Placement
from kaminari.model.minicpm_v.vision import SlicedVision, place_vision

DOWNSAMPLING = {"4x": 4, "16x": 16}


def read_minicpm_v_config(folder: Path) -> Any:
    """The reference's config of a folder, its vision half checked. Raises `CheckpointError`."""
    config = read_reference_config(folder, MiniCPMV4_6Config)
    problem = _vision_problem(config)
    if problem is not None:
        raise CheckpointError(f"{folder / 'config.json'}: {problem}")
    return config


def open_minicpm_v(folder: Path) -> HybridCheckpoint:
    """Read config and headers; no weight is loaded. Raises `CheckpointError`."""
    config = read_minicpm_v_config(folder)
    sizes = hybrid_sizes(config, folder / "config.json")

    def build_vision() -> tuple[nn.Module, Mapping[str, Placement]]:
        vision = SlicedVision(config)
        return vision, place_vision(vision)

    return open_checkpoint(folder, config, sizes, build_vision)


def _vision_problem(config: Any) -> str | None:
    """Say what this family's vision half cannot honour, or None."""
    vision = config.vision_config
    if config.downsample_mode not in DOWNSAMPLING:
        return f"downsample_mode {config.downsample_mode!r} is not supported (only '4x' and '16x')"
    for key, kernel in (
        ("window_kernel_size", vision.window_kernel_size),
        ("merge_kernel_size", config.merge_kernel_size),
    ):
        if tuple(kernel) != (2, 2):
            return f"{key} {list(kernel)} is not supported (only [2, 2])"
    if config.merger_times != 1:
        return f"merger_times {config.merger_times} is not supported (only 1)"
    if not 0 <= config.insert_layer_id < vision.num_hidden_layers:
        return f"insert_layer_id {config.insert_layer_id} is none of {vision.num_hidden_layers} vision layers"
    if not isinstance(vision.patch_size, int) or not isinstance(vision.image_size, int):
        return "vision_config.patch_size and image_size must be whole numbers"
    if not 1 <= vision.patch_size <= vision.image_size:
        return f"a patch of {vision.patch_size} pixels does not fit a picture of {vision.image_size}"
    if vision.num_attention_heads < 1 or vision.hidden_size % vision.num_attention_heads:
        return (
            f"vision_config.hidden_size {vision.hidden_size} does not split into "
            f"{vision.num_attention_heads} heads"
        )
    return None
