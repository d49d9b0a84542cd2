"""Qwen3-VL's face to the rest of the house. Cheap to import: what it needs is imported when it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from kaminari.model.family import Family, Footprint, LoadOptions, PromptFormat, VisionLanguageModel
from kaminari.model.row_attention import HeadSizes

if TYPE_CHECKING:
    from kaminari.model.loading import OpenCheckpoint


class Qwen3VLFamily:
    """`Family` of checkpoints whose `model_type` is `qwen3_vl`. Every verb may raise `CheckpointError`."""

    name = "qwen3_vl"

    def prompt_format(self, folder: Path) -> PromptFormat:
        from kaminari.model.qwen3_vl.prompt import Qwen3VLPromptFormat

        return Qwen3VLPromptFormat.from_folder(folder)

    def open(self, folder: Path) -> OpenCheckpoint:
        from kaminari.model.qwen3_vl.weights import open_checkpoint

        return open_checkpoint(folder)

    def footprint(self, folder: Path, dtype: torch.dtype, vision_dtype: torch.dtype) -> Footprint:
        """Count bytes without reading a weight; the files' headers must agree with the config."""
        from kaminari.model.qwen3_vl.weights import open_checkpoint

        checkpoint = open_checkpoint(folder)
        network, text = checkpoint.network, checkpoint.config.text
        weights = _count(network.text) * dtype.itemsize + _count(network.vision) * vision_dtype.itemsize
        keys_and_values = 2 * text.layers * text.kv_heads * text.head_dim
        return Footprint(
            weights=weights,
            cache_per_token=keys_and_values * dtype.itemsize,
            vocab_size=text.vocab,
            heads=HeadSizes(text.heads, text.kv_heads, text.head_dim),
        )

    def load(self, folder: Path, options: LoadOptions) -> VisionLanguageModel:
        """Load every weight onto the device, each half of the model in its dtype."""
        from kaminari.model.network import load_network
        from kaminari.model.qwen3_vl.model import Qwen3VL
        from kaminari.model.qwen3_vl.weights import open_checkpoint

        checkpoint = open_checkpoint(folder)
        network = checkpoint.network
        load_network(checkpoint, network.text, network.vision, options)
        return Qwen3VL(network, checkpoint.config.text, options.device, options.dtype)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


FAMILY: Family = Qwen3VLFamily()
