"""MiniCPM-V's face to the rest of the house. Cheap to import: what it needs is imported when it is asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from kaminari.model.family import Family, Footprint, LoadOptions, PromptFormat, VisionLanguageModel

if TYPE_CHECKING:
    from kaminari.model.loading import OpenCheckpoint


class MiniCPMVFamily:
    """`Family` of checkpoints whose `model_type` is `minicpmv4_6`. Every verb may raise `CheckpointError`."""

    name = "minicpm_v"

    def prompt_format(self, folder: Path) -> PromptFormat:
        from kaminari.model.minicpm_v.prompt import MiniCPMVPromptFormat

        return MiniCPMVPromptFormat.from_folder(folder)

    def open(self, folder: Path) -> OpenCheckpoint:
        from kaminari.model.minicpm_v.checkpoint import open_minicpm_v

        return open_minicpm_v(folder)

    def footprint(self, folder: Path, dtype: torch.dtype, vision_dtype: torch.dtype) -> Footprint:
        from kaminari.model.hybrid.model import footprint
        from kaminari.model.minicpm_v.checkpoint import open_minicpm_v

        return footprint(open_minicpm_v(folder), dtype, vision_dtype)

    def load(self, folder: Path, options: LoadOptions) -> VisionLanguageModel:
        from kaminari.model.hybrid.model import load
        from kaminari.model.minicpm_v.checkpoint import open_minicpm_v
        from kaminari.model.minicpm_v.vision import encode_picture

        return load(open_minicpm_v(folder), encode_picture, options)


FAMILY: Family = MiniCPMVFamily()
