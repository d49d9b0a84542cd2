"""MiniCPM-V's stages for `kaminari verify`: the sliced tower with its window merger, and the text decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMV4_6Processor

from kaminari.model.family import VisionLanguageModel
from kaminari.model.minicpm_v.pictures import SlicedFitter
from kaminari.model.stages import (
    LOGITS,
    FamilyStages,
    ReferenceModel,
    Stage,
    decoder_stages,
    load_reference_model,
)
from kaminari.model.tokenizer import load_tokenizer

# What the reference's processor reads of its video processor when it is made; the whole needs torchvision.
_NO_VIDEO = SimpleNamespace(slice_mode=False, downsample_mode="16x", model_input_names=[])


class _PictureProcessor(MiniCPMV4_6Processor):  # type: ignore[misc]
    """The reference's processor without its video processor."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> type:
        return type(argument)


class MiniCPMVReference(ReferenceModel):
    """The reference of a MiniCPM-V checkpoint. Raises `CheckpointError` where it cannot be loaded."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self._processor = _PictureProcessor(
            image_processor=SlicedFitter.from_folder(folder).processor,
            tokenizer=load_tokenizer(folder),
            video_processor=_NO_VIDEO,
        )
        self.model = load_reference_model(folder, dtype)
        text = self.model.model.language_model
        self.rotary = text.rotary_emb
        self.stages = (
            *_tower(self.model.model.vision_tower, self.model.model.merger),
            *decoder_stages(text.embed_tokens, text.layers, text.norm),
            Stage(LOGITS, self.model.lm_head),
        )

    def inputs(self, text: str, images: Sequence[Image.Image]) -> dict[str, Tensor]:
        return dict(self._processor(text=[text], images=list(images) or None, return_tensors="pt"))

    def patches(self, inputs: dict[str, Tensor]) -> Tensor | None:
        """[N, channels * side * side] of the packed [1, channels, side, N * side]."""
        packed = inputs.get("pixel_values")
        if packed is None:
            return None
        _, channels, side, _ = packed.shape
        return packed.reshape(channels, side, -1, side).permute(2, 0, 1, 3).flatten(1)


class MiniCPMVStages(FamilyStages):
    def load_reference(self, folder: Path, dtype: torch.dtype) -> ReferenceModel:
        return MiniCPMVReference(folder, dtype)

    def ours(self, model: VisionLanguageModel) -> Sequence[Stage]:
        whole: Any = model
        text, vision = whole.network.text, whole.network.vision
        return (
            *_tower(vision.tower, vision.merger),
            *decoder_stages(text.embedding, text.layers, text.norm),
        )


def _tower(tower: Any, merger: Any) -> Iterator[Stage]:
    """The tower's stages; the patch embedding includes the positions, and 4x leaves the window merger out."""
    yield Stage("patch embedding", tower.embeddings, fed=False)
    for number, layer in enumerate(tower.encoder.layers):
        yield Stage(f"vision layer {number}", layer)
        if number == tower.config.insert_layer_id:
            yield Stage("window merger", tower.vit_merger)
    yield Stage("last norm", tower.post_layernorm)
    yield Stage("vision rows", merger)


STAGES = MiniCPMVStages()
