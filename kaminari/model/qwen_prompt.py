"""The prompt side that Qwen's families share: picture marker, end tokens, pictures and M-RoPE positions.

Holds no weights and touches no device; worker threads call it. Ids and spellings come from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from kaminari.model.calls import CallFormat
from kaminari.model.family import CheckpointError, PictureBudget, ThinkTags, read_config
from kaminari.model.picture import Picture
from kaminari.model.prompt_tokens import control_token, end_token_ids
from kaminari.model.qwen_pictures import PictureFitter
from kaminari.model.tokenizer import load_tokenizer


class PositionRules:
    """What the reference's index arithmetic reads of its model: the config, and no weights.

    A family adds `get_rope_index` and `get_vision_position_ids` of its reference.
    """

    get_rope_index: ClassVar[Any]
    get_vision_position_ids: ClassVar[Any]

    def __init__(self, config: Any) -> None:
        self.config = config


class QwenPromptFormat:
    """`kaminari.model.family.PromptFormat` of Qwen's families; a family names its config and its rules."""

    call_format: CallFormat | None = None
    think_tags: ThinkTags | None = ThinkTags("<think>", "</think>")
    config_class: ClassVar[Any]
    rules_class: ClassVar[type[PositionRules]]

    def __init__(
        self,
        *,
        marker: str,
        marker_id: int,
        end_token_ids: frozenset[int],
        max_context: int,
        fitter: PictureFitter,
        rules: PositionRules,
    ) -> None:
        self.marker = marker
        self.end_token_ids = end_token_ids
        self.max_context = max_context
        self._marker_id = marker_id
        self._fitter = fitter
        self._rules = rules

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Read a checkpoint folder's prompt side. Raises `CheckpointError`."""
        config = read_config(folder)
        tokenizer = load_tokenizer(folder)
        try:
            marker_id = int(config["image_token_id"])
            max_context = int(config["text_config"]["max_position_embeddings"])
            vision = config["vision_config"]
            patch_sizes = (vision["patch_size"], vision["temporal_patch_size"], vision["spatial_merge_size"])
            rules = cls.rules_class(cls.config_class.from_pretrained(folder, local_files_only=True))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"config.json of {folder} lacks or garbles {error}") from error
        fitter = PictureFitter.from_folder(folder)
        processor = fitter.processor
        if (processor.patch_size, processor.temporal_patch_size, processor.merge_size) != patch_sizes:
            raise CheckpointError(
                f"preprocessor_config.json and config.json of {folder} disagree on the patch sizes"
            )
        return cls(
            marker=control_token(tokenizer, marker_id, folder),
            marker_id=marker_id,
            end_token_ids=end_token_ids(folder, config, tokenizer),
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
