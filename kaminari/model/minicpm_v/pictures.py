"""A picture's way into MiniCPM-V: an overview and up to nine slices, each resized once, cut into patches.

Which slices there are, and how large, is decided by the reference's own functions, and pixels come from its
own image processor; what is added here is the token budget and the letterbox mode. Never decodes a file.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil

from kaminari.model.family import CheckpointError, PictureBudget, PictureError
from kaminari.model.minicpm_v.checkpoint import DOWNSAMPLING
from kaminari.model.picture import Grid, Picture, picture_digest
from kaminari.model.qwen_pictures import LETTERBOX_ASPECTS, WHITE


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """How a picture is cut.

    max_slices, resolution:  what the reference's processor is told
    layout:                  rows and columns of slices behind the overview; (0, 0) for the overview alone
    grids:                   patches of the overview and of each slice
    """

    max_slices: int
    resolution: int
    layout: tuple[int, int]
    grids: tuple[Grid, ...]


@dataclass(frozen=True, slots=True)
class SlicedFitter:
    """Makes a `Picture` of an upright RGB image. Safe to share between threads."""

    processor: Any

    @classmethod
    def from_folder(cls, folder: Path) -> SlicedFitter:
        """Read `preprocessor_config.json`. Raises `CheckpointError`."""
        path = folder / "preprocessor_config.json"
        if not path.is_file():
            raise CheckpointError(f"the model folder has no preprocessor_config.json: {folder}")
        try:
            processor = MiniCPMV4_6ImageProcessorPil.from_pretrained(folder, local_files_only=True)
        except Exception as error:
            raise CheckpointError(f"cannot read {path}: {error}") from error
        sizes = (processor.max_slice_nums, processor.scale_resolution, processor.patch_size)
        if not all(isinstance(size, int) and size >= 1 for size in sizes):
            raise CheckpointError(f"impossible picture sizes in {path}")
        if processor.downsample_mode not in DOWNSAMPLING or not processor.do_resize:
            raise CheckpointError(f"unsupported downsample_mode or do_resize in {path}")
        return cls(processor)

    def count_tokens(self, grids: Sequence[Grid]) -> int:
        """Placeholders and vision rows of a picture."""
        return sum(self.slice_tokens(grid) for grid in grids)

    def slice_tokens(self, grid: Grid) -> int:
        """Placeholders and vision rows of one slice."""
        _, rows, columns = grid
        return rows * columns // DOWNSAMPLING[self.processor.downsample_mode]

    def prepare(self, image: Image.Image, budget: PictureBudget) -> Picture:
        """Fit, slice, resize, normalize and patchify. Raises `PictureError`."""
        if budget.max_tokens < 1:
            raise ValueError("a picture's budget is at least one token")
        canvas = pad_to_aspect(image) if budget.letterbox else image
        plan = self.plan(canvas.height, canvas.width, budget.max_tokens)
        output = self.processor.preprocess(
            images=[canvas], max_slice_nums=plan.max_slices, scale_resolution=plan.resolution
        )
        grids = tuple((1, int(rows), int(columns)) for rows, columns in output["target_sizes"])
        if grids != plan.grids:
            raise RuntimeError(f"the processor made slices of {grids}, and {plan.grids} were planned")
        pixels = self._patches(np.asarray(output["pixel_values"][0], dtype=np.float32))
        settings = {
            "letterbox": budget.letterbox,
            "max_tokens": budget.max_tokens,
            "layout": plan.layout,
            "processor": self.processor.to_dict(),
        }
        return Picture(
            pixels=pixels,
            grids=grids,
            tokens=self.count_tokens(grids),
            size=image.size,
            digest=picture_digest(pixels, grids, settings),
            layout=plan.layout,
        )

    def plan(self, height: int, width: int, max_tokens: int) -> SlicePlan:
        """The reference's own slices where they fit the budget; else fewer, at last a small overview.

        Raises `PictureError` for a strip so thin that even the smallest overview is too long.
        """
        own = self.processor.scale_resolution
        for slices in range(self.processor.max_slice_nums, 0, -1):
            plan = self._plan(height, width, slices, own)
            if self.count_tokens(plan.grids) <= max_tokens:
                return plan
        for resolution in range(own - 1, 0, -1):
            plan = self._plan(height, width, 1, resolution)
            if self.count_tokens(plan.grids) <= max_tokens:
                return plan
        raise PictureError(
            f"a picture of {width} x {height} takes more than {max_tokens} tokens, however small it is made"
        )

    def _plan(self, height: int, width: int, slices: int, resolution: int) -> SlicePlan:
        """The reference's choice of slices and sizes, in the order of its `_preprocess`."""
        rules, size = self.processor, (height, width)
        layout = rules.get_sliced_grid(size, slices, resolution) if rules.slice_mode else None
        whole = rules.find_best_resize(
            size, resolution, rules.patch_size, allow_upscale=layout is None, **self._mode
        )
        grids = [self._grid(*whole)]
        if layout is not None:
            rows, columns = layout
            refined = rules.get_refine_size(
                size, layout, resolution, rules.patch_size, allow_upscale=True, **self._mode
            )
            grids += [self._grid(refined[0] // rows, refined[1] // columns)] * (rows * columns)
        return SlicePlan(slices, resolution, (0, 0) if layout is None else (rows, columns), tuple(grids))

    @property
    def _mode(self) -> dict[str, str]:
        """Older versions of the reference round alike in both down-sampling modes and take no mode."""
        takes = inspect.signature(self.processor.find_best_resize).parameters
        return {"downsample_mode": self.processor.downsample_mode} if "downsample_mode" in takes else {}

    def _grid(self, height: int, width: int) -> Grid:
        return (1, height // self.processor.patch_size, width // self.processor.patch_size)

    def _patches(
        self, packed: np.ndarray[Any, np.dtype[np.float32]]
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Patches [N, channels * side * side] of the reference's packed [channels, side, N * side]."""
        channels, side, _ = packed.shape
        patches = packed.reshape(channels, side, -1, side).transpose(2, 0, 1, 3)
        return np.ascontiguousarray(patches.reshape(-1, channels * side * side))


def pad_to_aspect(image: Image.Image) -> Image.Image:
    """Put a picture in the middle of a white page of the next wider or taller of a few aspects."""
    width, height = image.size
    long, short = max(width, height), min(width, height)
    aspect = min(LETTERBOX_ASPECTS, key=lambda aspect: abs(long / short - aspect))
    long, short = max(long, round(short * aspect)), max(short, round(long / aspect))
    page = Image.new("RGB", (long, short) if width >= height else (short, long), WHITE)
    page.paste(image, ((page.width - width) // 2, (page.height - height) // 2))
    return page
