"""What a model family is to the rest of the house, and where families are found.

The engine names no family. It holds a `PromptFormat` (worker threads: no weights, no torch device) and a
`VisionLanguageModel` (the engine's thread: weights on a device), both made by the `Family` that a
checkpoint's `config.json` names.
"""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from kaminari.model.batch import StepBatch
from kaminari.model.cache import SlotCache
from kaminari.model.calls import CallFormat
from kaminari.model.picture import Picture
from kaminari.model.row_attention import HeadSizes

if TYPE_CHECKING:
    from kaminari.model.loading import OpenCheckpoint
    from kaminari.model.packs.reading import Pack


class CheckpointError(Exception):
    """A checkpoint that cannot be served; the message is one line that says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class PictureBudget:
    """How a picture is fitted.

    max_tokens:  the most placeholders one picture may take
    letterbox:   False: the reference's own smart resize (native); True: letterbox onto the grid of the
                 budget whose aspect is closest (few shapes)
    """

    max_tokens: int
    letterbox: bool = False


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """What stands around a model's reasoning, before its answer."""

    open: str
    close: str


class PictureError(ValueError):
    """A picture that the family cannot take (such as an aspect ratio past its limit)."""


class PromptFormat(Protocol):
    """A family's prompt side. Called from worker threads; holds no weights and touches no device.

    marker:         spelling of the control token that the chat template writes once per picture
    end_token_ids:  tokens that end an answer
    max_context:    most tokens that the checkpoint's positions allow
    call_format:    how tools are called; None where the family calls none
    think_tags:     around reasoning, in checkpoints whose chat template knows them; None: in no checkpoint
    """

    marker: str
    end_token_ids: frozenset[int]
    max_context: int
    call_format: CallFormat | None
    think_tags: ThinkTags | None

    def prepare_picture(self, image: Image.Image, budget: PictureBudget) -> Picture:
        """Resize (once), normalize and patchify an upright RGB image. Raises `PictureError`."""
        ...

    def expand_marker(self, index: int, picture: Picture) -> tuple[list[int], list[bool]]:
        """Token ids that replace the `index`-th marker, and which of them are placeholders.

        The number of True flags equals `picture.tokens`.
        """
        ...

    def positions(
        self, token_ids: Sequence[int], placeholder: Sequence[bool], pictures: Sequence[Picture]
    ) -> tuple[NDArray[np.int64], int]:
        """Rotary positions [3, T] of a whole prompt, and the offset of what follows it.

        The token at index i >= T has position i + offset on every axis.
        """
        ...


@dataclass(frozen=True, slots=True)
class VisionRows:
    """What a vision tower makes of one picture: embeddings [N, hidden], deepstack [D, N, hidden]."""

    embeddings: Tensor
    deepstack: Tensor


class VisionLanguageModel(ABC):
    """A family's device side. Only the engine's thread calls it."""

    device: torch.device
    dtype: torch.dtype
    vocab_size: int

    @abstractmethod
    def new_cache(self, slots: int, capacity: int) -> SlotCache:
        """Allocate the cache of every layer for `slots` slots of `capacity` tokens."""

    @abstractmethod
    def encode_picture(self, picture: Picture) -> VisionRows:
        """Run the vision tower over one picture. The slices of a picture never see one another."""

    @abstractmethod
    def forward(self, batch: StepBatch, cache: SlotCache) -> Tensor:
        """Write the step into the cache and return the final hidden states [T, hidden], normed."""

    @abstractmethod
    def head(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocab] of hidden states [rows, hidden], in the model's dtype."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """device, dtype of the decoder, dtype of the vision tower, and a callback (bytes done, bytes in all).

    pack:      holds the decoder's projections, which are then not read from the checkpoint
    compiled:  the decoder's layers run compiled in small steps; not with a pack
    """

    device: torch.device
    dtype: torch.dtype
    vision_dtype: torch.dtype
    progress: Callable[[int, int], None] | None = None
    pack: Pack | None = None
    compiled: bool = False


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes a checkpoint needs before anything runs: weights in all, and cache per slot and token.

    vocab_size:  how many logits its head makes
    heads:       of its attention layers; None where it has none
    """

    weights: int
    cache_per_token: int
    cache_per_slot: int = 0
    vocab_size: int = 0
    heads: HeadSizes | None = None


class Family(Protocol):
    """The face of one package under `kaminari/model/` (module-level object `FAMILY`)."""

    name: str

    def prompt_format(self, folder: Path) -> PromptFormat: ...

    def open(self, folder: Path) -> OpenCheckpoint:
        """Read config and headers, and build the network on the meta device; no weight is loaded."""
        ...

    def footprint(self, folder: Path, dtype: torch.dtype, vision_dtype: torch.dtype) -> Footprint: ...

    def load(self, folder: Path, options: LoadOptions) -> VisionLanguageModel: ...


# model_type of config.json -> module that holds FAMILY; imported only when a checkpoint names it
FAMILIES: Mapping[str, str] = {
    "minicpmv4_6": "kaminari.model.minicpm_v",
    "qwen3_5": "kaminari.model.qwen3_5",
    "qwen3_vl": "kaminari.model.qwen3_vl",
}


def read_config(folder: Path) -> dict[str, Any]:
    """Parse `config.json` of a checkpoint folder. Raises `CheckpointError`."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise CheckpointError(f"no such model folder: {folder}")
    if not path.is_file():
        raise CheckpointError(f"the model folder has no config.json: {folder}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} does not hold an object")
    return config


def find_family(folder: Path) -> Family:
    """Return the family that a checkpoint folder belongs to, by `model_type`. Raises `CheckpointError`."""
    model_type = read_config(folder).get("model_type")
    module = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if module is None:
        known = ", ".join(sorted(FAMILIES))
        raise CheckpointError(f"unsupported model_type {model_type!r} in {folder}; supported: {known}")
    family: Family = importlib.import_module(module).FAMILY
    return family
