"""The stages of Qwen's families, which share the tower's form and the names around the text decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from kaminari.model.family import VisionLanguageModel
from kaminari.model.qwen_pictures import PictureFitter
from kaminari.model.stages import (
    LOGIT_ROWS,
    LOGITS,
    FamilyStages,
    ReferenceModel,
    Stage,
    decoder_stages,
    load_reference_model,
)
from kaminari.model.tokenizer import load_tokenizer


class _PictureProcessor(Qwen3VLProcessor):  # type: ignore[misc]
    """The reference's processor without its video processor, which needs torchvision."""

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["image_processor", "tokenizer"]

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> type:
        return type(argument)


class QwenReference(ReferenceModel):
    """The reference of a Qwen checkpoint. Raises `CheckpointError` where it cannot be loaded."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self._processor = _PictureProcessor(
            image_processor=PictureFitter.from_folder(folder).processor,
            tokenizer=load_tokenizer(folder),
            video_processor=None,
        )
        self.model = load_reference_model(folder, dtype)
        self.rotary = self.model.model.language_model.rotary_emb
        self.stages = reference_stages(self.model)

    def inputs(self, text: str, images: Sequence[Image.Image]) -> dict[str, Tensor]:
        return dict(self._processor(text=[text], images=list(images) or None, return_tensors="pt"))

    def run(self, inputs: dict[str, Tensor]) -> None:
        self.model(**inputs, use_cache=False, logits_to_keep=LOGIT_ROWS)

    def patches(self, inputs: dict[str, Tensor]) -> Tensor | None:
        return inputs.get("pixel_values")


class QwenStages(FamilyStages):
    def load_reference(self, folder: Path, dtype: torch.dtype) -> ReferenceModel:
        return QwenReference(folder, dtype)

    def ours(self, model: VisionLanguageModel) -> Sequence[Stage]:
        network: Any = model
        text = network.network.text
        return (
            *_tower(network.network.vision),
            *decoder_stages(text.embedding, text.layers, text.norm),
        )


def reference_stages(model: Any) -> tuple[Stage, ...]:
    """The stages of a model of `transformers`."""
    text = model.model.language_model
    return (
        *_tower(model.model.visual),
        *decoder_stages(text.embed_tokens, text.layers, text.norm),
        Stage(LOGITS, model.lm_head),
    )


def _tower(tower: Any) -> Iterator[Stage]:
    """A tower's stages; a deepstack merger stands behind the layer whose rows it takes."""
    yield Stage("patch embedding", tower.patch_embed, fed=False)
    taps = list(getattr(tower, "deepstack_visual_indexes", ()))
    for number, block in enumerate(tower.blocks):
        yield Stage(f"vision layer {number}", block)
        if number in taps:
            place = taps.index(number)
            yield Stage(f"deepstack {place}", tower.deepstack_merger_list[place])
    yield Stage("vision rows", tower.merger)
