"""Qwen3.5's face to the rest of the house. Cheap to import: what it needs is imported when it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from kaminari.model.family import Family, Footprint, LoadOptions, PromptFormat, VisionLanguageModel

if TYPE_CHECKING:
    from kaminari.model.loading import OpenCheckpoint


class Qwen35Family:
    """`Family` of checkpoints whose `model_type` is `qwen3_5`. Every verb may raise `CheckpointError`."""

    name = "qwen3_5"

    def prompt_format(self, folder: Path) -> PromptFormat:
        from kaminari.model.qwen3_5.prompt import Qwen35PromptFormat

        return Qwen35PromptFormat.from_folder(folder)

    def open(self, folder: Path) -> OpenCheckpoint:
        from kaminari.model.qwen3_5.checkpoint import open_qwen3_5

        return open_qwen3_5(folder)

    def footprint(self, folder: Path, dtype: torch.dtype, vision_dtype: torch.dtype) -> Footprint:
        from kaminari.model.hybrid.model import footprint
        from kaminari.model.qwen3_5.checkpoint import open_qwen3_5

        return footprint(open_qwen3_5(folder), dtype, vision_dtype)

    def load(self, folder: Path, options: LoadOptions) -> VisionLanguageModel:
        from kaminari.model.hybrid.model import load
        from kaminari.model.qwen3_5.checkpoint import encode_picture, open_qwen3_5

        return load(open_qwen3_5(folder), encode_picture, options)


FAMILY: Family = Qwen35Family()
