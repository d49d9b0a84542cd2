"""Qwen3-VL's prompt side: its picture marker, its end tokens, its pictures and its M-RoPE positions.

Holds no weights and touches no device; worker threads call it. Ids and spellings come from the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from kaminari.model.calls import CallFormat
from kaminari.model.family import CheckpointError, PictureBudget, ThinkTags, read_config
from kaminari.model.picture import Picture
from kaminari.model.qwen3_vl.calls import HermesCallFormat
from kaminari.model.qwen3_vl.pictures import PictureFitter
from kaminari.model.tokenizer import load_tokenizer


class _PositionRules:
    """What the reference's index arithmetic reads of its model: the config, and no weights."""

    get_rope_index = Qwen3VLModel.get_rope_index
    get_vision_position_ids = Qwen3VLModel.get_vision_position_ids

    def __init__(self, config: Qwen3VLConfig) -> None:
        self.config = config


class Qwen3VLPromptFormat:
    """`kaminari.model.family.PromptFormat` for Qwen3-VL checkpoints."""

    call_format: CallFormat | None = HermesCallFormat()
    think_tags: ThinkTags | None = ThinkTags("<think>", "</think>")

    def __init__(
        self,
        *,
        marker: str,
        marker_id: int,
        end_token_ids: frozenset[int],
        max_context: int,
        fitter: PictureFitter,
        rules: _PositionRules,
    ) -> None:
        self.marker = marker
        self.end_token_ids = end_token_ids
        self.max_context = max_context
        self._marker_id = marker_id
        self._fitter = fitter
        self._rules = rules

    @classmethod
    def from_folder(cls, folder: Path) -> Qwen3VLPromptFormat:
        """Read a checkpoint folder's prompt side. Raises `CheckpointError`."""
        config = read_config(folder)
        tokenizer = load_tokenizer(folder)
        try:
            marker_id = int(config["image_token_id"])
            max_context = int(config["text_config"]["max_position_embeddings"])
            vision = config["vision_config"]
            patch_sizes = (vision["patch_size"], vision["temporal_patch_size"], vision["spatial_merge_size"])
            rules = _PositionRules(Qwen3VLConfig.from_pretrained(folder, local_files_only=True))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"config.json of {folder} lacks or garbles {error}") from error
        fitter = PictureFitter.from_folder(folder)
        processor = fitter.processor
        if (processor.patch_size, processor.temporal_patch_size, processor.merge_size) != patch_sizes:
            raise CheckpointError(
                f"preprocessor_config.json and config.json of {folder} disagree on the patch sizes"
            )
        return cls(
            marker=_control_token(tokenizer, marker_id, folder),
            marker_id=marker_id,
            end_token_ids=_end_token_ids(folder, config, tokenizer),
            max_context=max_context,
            fitter=fitter,
            rules=rules,
        )

    def prepare_picture(self, image: Image.Image, budget: PictureBudget) -> Picture:
        """Fit, resize (once), normalize and patchify an upright RGB image. Raises `PictureError`."""
        return self._fitter.prepare(image, budget)

    def expand_marker(self, index: int, picture: Picture) -> tuple[list[int], list[bool]]:
        """One placeholder per row of the picture; what surrounds them is in the chat template."""
        return [self._marker_id] * picture.tokens, [True] * picture.tokens

    def positions(
        self, token_ids: Sequence[int], placeholder: Sequence[bool], pictures: Sequence[Picture]
    ) -> tuple[NDArray[np.int64], int]:
        """M-RoPE positions [3, T] (temporal, height, width) by the reference's function, and the offset."""
        ids = torch.tensor([token_ids], dtype=torch.int64)
        kinds = torch.tensor([placeholder], dtype=torch.int32)
        grids = [grid for picture in pictures for grid in picture.grids]
        positions, offset = self._rules.get_rope_index(
            ids,
            mm_token_type_ids=kinds,
            image_grid_thw=torch.tensor(grids, dtype=torch.int64) if grids else None,
        )
        return positions[:, 0].numpy(), int(offset[0, 0])


def _control_token(tokenizer: PreTrainedTokenizerFast, token_id: int, folder: Path) -> str:
    token = tokenizer.added_tokens_decoder.get(token_id)
    if token is None or not token.special:
        raise CheckpointError(
            f"image_token_id {token_id} of {folder} is not a control token of its tokenizer"
        )
    return str(token.content)


def _end_token_ids(
    folder: Path, config: dict[str, Any], tokenizer: PreTrainedTokenizerFast
) -> frozenset[int]:
    """What `generation_config.json` names; without it, what the config and the tokenizer name.

    In Qwen's tokenizers the padding token is <|endoftext|>, which ends an answer as <|im_end|> does.
    """
    named = _generation_eos(folder)
    if named is None:
        named = [
            config.get("eos_token_id"),
            config.get("text_config", {}).get("eos_token_id"),
            tokenizer.eos_token_id,
            tokenizer.pad_token_id,
        ]
    ids: set[int] = set()
    for entry in named if isinstance(named, list) else [named]:
        ids.update(entry if isinstance(entry, list) else [] if entry is None else [entry])
    if not ids or not all(isinstance(token_id, int) for token_id in ids):
        raise CheckpointError(f"no usable end token (eos_token_id) in the files of {folder}")
    return frozenset(ids)


def _generation_eos(folder: Path) -> Any:
    path = folder / "generation_config.json"
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
