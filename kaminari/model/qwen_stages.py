"""The stages of Qwen's families, which share the tower's form and the names around the text decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoModelForImageTextToText
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from kaminari.model.family import CheckpointError, VisionLanguageModel
from kaminari.model.stages import LOGITS, FamilyStages, ReferenceModel, Stage
from kaminari.model.tokenizer import load_tokenizer


class _PictureProcessor(Qwen3VLProcessor):  # type: ignore[misc]
    """The reference's processor without its video processor, which needs torchvision."""

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["image_processor", "tokenizer"]

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> type:
        return type(argument)


class QwenReference(ReferenceModel):
    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        try:
            self._processor = _PictureProcessor(
                image_processor=Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True),
                tokenizer=load_tokenizer(folder),
                video_processor=None,
            )
            loaded = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, local_files_only=True)
        except (OSError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(f"the reference cannot load {folder}: {reason}") from error
        self.model = loaded.eval().requires_grad_(False)
        text = self.model.model.language_model
        self.rotary = text.rotary_emb
        self.stages = (
            *_tower(self.model.model.visual),
            Stage("token embedding", text.embed_tokens, fed=False),
            *(Stage(f"text layer {number}", layer) for number, layer in enumerate(text.layers)),
            Stage("final norm", text.norm),
            Stage(LOGITS, self.model.lm_head),
        )

    def inputs(self, text: str, images: Sequence[Image.Image]) -> dict[str, Tensor]:
        return dict(self._processor(text=[text], images=list(images) or None, return_tensors="pt"))

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
            Stage("token embedding", text.embedding, fed=False),
            *(Stage(f"text layer {number}", layer) for number, layer in enumerate(text.layers)),
            Stage("final norm", text.norm),
        )


def _tower(tower: Any) -> Iterator[Stage]:
    """A tower's stages; a deepstack merger stands behind the layer whose rows it takes."""
    yield Stage("patch embedding", tower.patch_embed)
    taps = list(getattr(tower, "deepstack_visual_indexes", ()))
    for number, block in enumerate(tower.blocks):
        yield Stage(f"vision layer {number}", block)
        if number in taps:
            place = taps.index(number)
            yield Stage(f"deepstack {place}", tower.deepstack_merger_list[place])
    yield Stage("vision rows", tower.merger)
