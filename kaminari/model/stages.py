"""Which of a family's modules correspond to which of the reference's: what `kaminari verify` walks along.

A family that can be verified has a module `stages` with an object `STAGES`. Never imported while serving.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText

from kaminari.model.family import FAMILIES, CheckpointError, VisionLanguageModel, read_config

LOGITS = "logits"
LOGIT_ROWS = 16  # logits of the last tokens only: of a whole prompt they would outweigh all other stages


@dataclass(frozen=True, slots=True)
class Stage:
    """A module whose first input and whose output are compared, as rows [n, width].

    On both sides the rows of all pictures, or of a prompt, come in the same order; how many calls bring
    them does not matter.

    fed:  its input is compared too, and the reference's may stand in for it; not so for what takes the
          prompt itself, whose layout may differ
    """

    name: str
    module: nn.Module
    fed: bool = True


class ReferenceModel(ABC):
    """A checkpoint in `transformers`: its model with `generate`, its processor, and its stages.

    model:     called with `inputs(...)`
    stages:    in order of computation, by the names that `FamilyStages.ours` uses, the head last as `logits`
    rotary:    the text rotary, whose second argument is the positions [3, 1, T] or [1, T]
    """

    model: Any
    stages: Sequence[Stage]
    rotary: nn.Module

    @abstractmethod
    def inputs(self, text: str, images: Sequence[Image.Image]) -> dict[str, Tensor]:
        """What `model` takes for a rendered prompt and its pictures, by the reference's own processor."""

    def run(self, inputs: dict[str, Tensor]) -> None:
        """Run a whole prompt; the head needs to see the last `LOGIT_ROWS` rows only."""
        self.model(**inputs, use_cache=False)

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


def load_reference_model(folder: Path, dtype: torch.dtype) -> Any:
    """The model of `transformers` on the CPU, ready to run. Raises `CheckpointError`."""
    try:
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"the reference cannot load {folder}: {reason}") from error
    return model.eval().requires_grad_(False)


def decoder_stages(embedding: nn.Module, layers: Iterable[nn.Module], norm: nn.Module) -> tuple[Stage, ...]:
    """The stages of a text decoder, by their common names."""
    return (
        Stage("token embedding", embedding, fed=False),
        *(Stage(f"text layer {number}", layer) for number, layer in enumerate(layers)),
        Stage("final norm", norm),
    )


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
