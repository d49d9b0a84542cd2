"""Which of a family's modules correspond to which of the reference's: what `kaminari verify` walks along.

A family that can be verified has a module `stages` with an object `STAGES`. Never imported while serving.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from kaminari.model.family import FAMILIES, CheckpointError, VisionLanguageModel, read_config

LOGITS = "logits"


@dataclass(frozen=True, slots=True)
class Stage:
    """A module whose first input and whose output are compared, as rows [n, width].

    On both sides the rows of all pictures, or of a prompt, come in the same order; how many calls bring
    them does not matter.

    fed:  the first input has the same layout on both sides, so that the reference's may stand in for ours
    """

    name: str
    module: nn.Module
    fed: bool = True


class ReferenceModel(ABC):
    """A checkpoint in `transformers`: its model with `generate`, its processor, and its stages.

    model:     called with `inputs(...)`
    stages:    in order of computation, by the names that `FamilyStages.ours` uses, with `logits` as the last
    rotary:    the text rotary, whose second argument is the positions [3, 1, T] or [1, T]
    """

    model: Any
    stages: Sequence[Stage]
    rotary: nn.Module

    @abstractmethod
    def inputs(self, text: str, images: Sequence[Image.Image]) -> dict[str, Tensor]:
        """What `model` takes for a rendered prompt and its pictures, by the reference's own processor."""

    @abstractmethod
    def patches(self, inputs: dict[str, Tensor]) -> Tensor | None:
        """The patches in `inputs` as `Picture.pixels` holds them, of all pictures; None without any."""


class FamilyStages(ABC):
    """A family's description."""

    @abstractmethod
    def load_reference(self, folder: Path, dtype: torch.dtype) -> ReferenceModel:
        """Load the reference on the CPU. Raises `CheckpointError`."""

    @abstractmethod
    def ours(self, model: VisionLanguageModel) -> Sequence[Stage]:
        """The stages of a loaded model, in order of computation, without `logits`, which is its `head`."""


def find_stages(folder: Path) -> FamilyStages:
    """Return the description of a checkpoint's family. Raises `CheckpointError` where there is none."""
    model_type = read_config(folder).get("model_type")
    package = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if package is None:
        raise CheckpointError(f"unsupported model_type {model_type!r} in {folder}")
    try:
        module = importlib.import_module(f"{package}.stages")
    except ModuleNotFoundError as error:
        if error.name != f"{package}.stages":
            raise
        raise CheckpointError(f"the family {model_type} does not describe its stages") from error
    stages: FamilyStages = module.STAGES
    return stages
