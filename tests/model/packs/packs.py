"""Makes packs of tiny checkpoints, and edits them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from kaminari.config import PackFormat
from kaminari.model.family import LoadOptions, VisionLanguageModel, find_family
from kaminari.model.packs.format import METADATA_KEY, PACK_FILE
from kaminari.model.packs.gptq import Moments
from kaminari.model.packs.reading import Pack, open_pack
from kaminari.model.packs.rounding import Method
from kaminari.model.packs.writing import MadePack, Recipe, make_pack
from tests.model.steps import CPU

INT8 = Recipe(PackFormat.INT8)
INT8_HEAD = Recipe(PackFormat.INT8, head=True)
INT4 = Recipe(PackFormat.INT4, 32, Method.RTN)
INT4_HEAD = Recipe(PackFormat.INT4, 64, Method.FIT, head=True)


def pack_of(checkpoint: Path, recipe: Recipe, folder: Path, moments: Moments | None = None) -> MadePack:
    family = find_family(checkpoint)
    return make_pack(
        family.open(checkpoint), recipe, folder, model="a model", family=family.name, moments=moments
    )


def reopened(checkpoint: Path, folder: Path) -> Pack:
    family = find_family(checkpoint)
    return open_pack(folder, family.open(checkpoint), family.name)


def load_packed(checkpoint: Path, pack: Pack, dtype: torch.dtype = torch.float32) -> VisionLanguageModel:
    return find_family(checkpoint).load(checkpoint, LoadOptions(CPU, dtype, dtype, pack=pack))


def header_of(folder: Path) -> dict[str, Any]:
    with safe_open(folder / PACK_FILE, "pt") as file:
        header: dict[str, Any] = json.loads(file.metadata()[METADATA_KEY])
        return header


def edit_pack(
    folder: Path,
    *,
    header: Callable[[dict[str, Any]], object] = lambda header: None,
    tensors: Callable[[dict[str, Tensor]], object] = lambda tensors: None,
) -> None:
    """Change a pack in place, through safetensors' own writer."""
    text = header_of(folder)
    header(text)
    path = folder / PACK_FILE
    values = {name: tensor.clone() for name, tensor in load_file(path).items()}
    tensors(values)
    save_file(values, path, metadata={METADATA_KEY: json.dumps(text)})
