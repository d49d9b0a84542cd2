"""MiniCPM-V's prompt side: indexed picture tags with slices, as the reference's processor renders them.

Holds no weights and touches no device; worker threads call it. Ids and spellings come from the checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from transformers import PreTrainedTokenizerFast

from kaminari.model.calls import CallFormat
from kaminari.model.family import CheckpointError, PictureBudget, ThinkTags, read_config
from kaminari.model.minicpm_v.checkpoint import read_minicpm_v_config
from kaminari.model.minicpm_v.pictures import SlicedFitter
from kaminari.model.picture import Picture
from kaminari.model.prompt_tokens import control_token, end_token_ids
from kaminari.model.tokenizer import load_tokenizer
from kaminari.model.xml_calls import XmlCallFormat


@dataclass(frozen=True, slots=True)
class PictureTags:
    """Ids of the tokens around a picture's placeholders: (start, end) of each kind."""

    picture: tuple[int, int]
    slice: tuple[int, int]
    number: tuple[int, int]


class MiniCPMVPromptFormat:
    """`kaminari.model.family.PromptFormat` for MiniCPM-V checkpoints."""

    call_format: CallFormat | None = XmlCallFormat()
    think_tags: ThinkTags | None = ThinkTags("<think>", "</think>")

    def __init__(
        self,
        *,
        marker: str,
        marker_id: int,
        end_token_ids: frozenset[int],
        max_context: int,
        fitter: SlicedFitter,
        tags: PictureTags,
        tokenizer: PreTrainedTokenizerFast,
    ) -> None:
        self.marker = marker
        self.end_token_ids = end_token_ids
        self.max_context = max_context
        self._marker_id = marker_id
        self._fitter = fitter
        self._tags = tags
        self._tokenizer = tokenizer.backend_tokenizer

    @classmethod
    def from_folder(cls, folder: Path) -> MiniCPMVPromptFormat:
        """Read a checkpoint folder's prompt side. Raises `CheckpointError`."""
        config = read_minicpm_v_config(folder)
        tokenizer = load_tokenizer(folder)
        fitter = SlicedFitter.from_folder(folder)
        if fitter.processor.patch_size != config.vision_config.patch_size:
            raise CheckpointError(
                f"preprocessor_config.json and config.json of {folder} disagree on the patch size"
            )
        if fitter.processor.downsample_mode != config.downsample_mode:
            raise CheckpointError(
                f"preprocessor_config.json and config.json of {folder} disagree on downsample_mode"
            )
        if not isinstance(config.image_token_id, int):
            raise CheckpointError(f"config.json of {folder} lacks image_token_id")
        return cls(
            marker=control_token(tokenizer, config.image_token_id, folder),
            marker_id=config.image_token_id,
            end_token_ids=end_token_ids(folder, read_config(folder), tokenizer),
            max_context=config.text_config.max_position_embeddings,
            fitter=fitter,
            tags=PictureTags(
                picture=_tag_ids(tokenizer, "image", folder),
                slice=_tag_ids(tokenizer, "slice", folder),
                number=_tag_ids(tokenizer, "image_id", folder),
            ),
            tokenizer=tokenizer,
        )

    def prepare_picture(self, image: Image.Image, budget: PictureBudget) -> Picture:
        """Fit, slice, resize (once), normalize and patchify an upright RGB image. Raises `PictureError`."""
        return self._fitter.prepare(image, budget)

    def expand_marker(self, index: int, picture: Picture) -> tuple[list[int], list[bool]]:
        """The picture's number, its overview, and rows of its slices, parted by line breaks."""
        ids: list[int] = []
        flags: list[bool] = []

        def write(tokens: Sequence[int], placeholder: bool = False) -> None:
            ids.extend(tokens)
            flags.extend([placeholder] * len(tokens))

        def write_slice(tag: tuple[int, int], tokens: int) -> None:
            write(tag[:1])
            write([self._marker_id] * tokens, placeholder=True)
            write(tag[1:])

        if self._fitter.processor.use_image_id:
            start, end = self._tags.number
            write([start, *self._text(str(index)), end])
        overview, *slices = (self._fitter.slice_tokens(grid) for grid in picture.grids)
        write_slice(self._tags.picture, overview)
        _, columns = picture.layout
        for number, tokens in enumerate(slices):
            if number and number % columns == 0:
                write(self._text("\n"))
            write_slice(self._tags.slice, tokens)
        return ids, flags

    def positions(
        self, token_ids: Sequence[int], placeholder: Sequence[bool], pictures: Sequence[Picture]
    ) -> tuple[NDArray[np.int64], int]:
        """Positions [3, T] that count tokens, pictures or not, and no offset."""
        return np.tile(np.arange(len(token_ids), dtype=np.int64), (3, 1)), 0

    def _text(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _tag_ids(tokenizer: PreTrainedTokenizerFast, name: str, folder: Path) -> tuple[int, int]:
    """Ids of a named pair of control tokens, such as `image_start_token` and `image_end_token`."""
    ids = []
    for place in ("start", "end"):
        spelling = getattr(tokenizer, f"{name}_{place}_token", None)
        token_id = None if spelling is None else tokenizer.get_added_vocab().get(spelling)
        if token_id is None:
            raise CheckpointError(f"the tokenizer of {folder} names no {name}_{place}_token")
        ids.append(token_id)
    return ids[0], ids[1]
