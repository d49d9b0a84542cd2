"""A picture's way into Qwen's families: fitted to a grid, resized once, normalized, cut into patches.

Sizes come from the reference's own smart resize and pixels from its own image processor; what is added here
is the token budget and the letterbox mode. Never decodes a file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from kaminari.model.family import CheckpointError, PictureBudget, PictureError
from kaminari.model.picture import Grid, Picture, picture_digest

MAX_ASPECT = 200  # past it the reference's smart resize refuses
WHITE = (255, 255, 255)
# Letterbox aspects, long side over short: powers of the square root of 2, which is the aspect of a page.
LETTERBOX_ASPECTS = tuple(2 ** (power / 2) for power in range(7))

Cells = tuple[int, int]


def count_tokens(grids: Sequence[Grid], merge_size: int) -> int:
    """Placeholders and vision rows of a picture: its patches, merged merge_size x merge_size to one."""
    return sum(frames * rows * columns for frames, rows, columns in grids) // merge_size**2


@dataclass(frozen=True, slots=True)
class PictureFitter:
    """Makes a `Picture` of an upright RGB image. Safe to share between threads.

    cell:  side in pixels of the square that becomes one token (patch size times merge size)
    """

    processor: Any
    cell: int

    @classmethod
    def from_folder(cls, folder: Path) -> PictureFitter:
        """Read `preprocessor_config.json`. Raises `CheckpointError`."""
        if not (folder / "preprocessor_config.json").is_file():
            raise CheckpointError(f"the model folder has no preprocessor_config.json: {folder}")
        try:
            processor = Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True)
            shortest, longest = processor.size["shortest_edge"], processor.size["longest_edge"]
        except Exception as error:
            raise CheckpointError(f"cannot read {folder / 'preprocessor_config.json'}: {error}") from error
        cell = processor.patch_size * processor.merge_size
        if not (shortest and longest and 0 < shortest <= longest and longest >= cell * cell):
            raise CheckpointError(f"impossible picture sizes in {folder / 'preprocessor_config.json'}")
        return cls(processor, cell)

    def prepare(self, image: Image.Image, budget: PictureBudget) -> Picture:
        """Fit, resize, normalize and patchify. Raises `PictureError`."""
        width, height = image.size
        ratio = max(width, height) / min(width, height)
        if ratio > MAX_ASPECT:
            raise PictureError(
                f"the picture's aspect ratio is {ratio:.4g}:1 ({width} x {height}); "
                f"at most {MAX_ASPECT}:1 is accepted"
            )
        if budget.max_tokens < 1:
            raise ValueError("a picture's budget is at least one token")
        canvas = self._letterbox(image, budget) if budget.letterbox else self._native(image, budget)
        output = self.processor.preprocess(images=[canvas], do_resize=False)
        pixels = np.ascontiguousarray(output["pixel_values"], dtype=np.float32)
        frames, rows, columns = (int(side) for side in output["image_grid_thw"][0])
        grids: tuple[Grid, ...] = ((frames, rows, columns),)
        settings = {
            "letterbox": budget.letterbox,
            "max_tokens": budget.max_tokens,
            "processor": self.processor.to_dict(),
        }
        return Picture(
            pixels=pixels,
            grids=grids,
            tokens=count_tokens(grids, self.processor.merge_size),
            size=image.size,
            digest=picture_digest(pixels, grids, settings),
        )

    def _native(self, image: Image.Image, budget: PictureBudget) -> Image.Image:
        rows, columns = native_cells(
            image.height,
            image.width,
            cell=self.cell,
            min_pixels=self.processor.size["shortest_edge"],
            max_pixels=self.processor.size["longest_edge"],
            max_tokens=budget.max_tokens,
        )
        return self._resize(image, columns * self.cell, rows * self.cell)

    def _letterbox(self, image: Image.Image, budget: PictureBudget) -> Image.Image:
        max_tokens = min(budget.max_tokens, self.processor.size["longest_edge"] // self.cell**2)
        rows, columns = closest_cells(image.width / image.height, letterbox_cells(max_tokens))
        width, height = columns * self.cell, rows * self.cell
        scale = min(width / image.width, height / image.height)
        inner = self._resize(
            image,
            min(width, max(1, round(image.width * scale))),
            min(height, max(1, round(image.height * scale))),
        )
        page = Image.new("RGB", (width, height), WHITE)
        page.paste(inner, ((width - inner.width) // 2, (height - inner.height) // 2))
        return page

    def _resize(self, image: Image.Image, width: int, height: int) -> Image.Image:
        """Resize as the reference does: Pillow, the processor's filter, 8 bits, no reducing first."""
        return image.resize((width, height), Image.Resampling(int(self.processor.resample)))


def native_cells(
    height: int, width: int, *, cell: int, min_pixels: int, max_pixels: int, max_tokens: int
) -> Cells:
    """(rows, columns) of tokens by the reference's smart resize, never more than `max_tokens` in all.

    Where the reference's own choice fits the budget, it is that choice.
    """

    def resized(least: int, most: int) -> Cells:
        rows, columns = smart_resize(height, width, factor=cell, min_pixels=least, max_pixels=most)
        return rows // cell, columns // cell

    rows, columns = resized(min_pixels, max_pixels)
    if rows * columns <= max_tokens:
        return rows, columns
    budget_pixels = max_tokens * cell**2
    rows, columns = resized(min(min_pixels, budget_pixels), min(max_pixels, budget_pixels))
    if rows * columns <= max_tokens:
        return rows, columns
    # The reference keeps a strip at least one cell wide and rounds up what it enlarges, so it may pass its
    # own bound. The long side gives way: the short one has less to lose.
    short = min(rows, columns, math.isqrt(max_tokens))
    long = min(max(rows, columns), max_tokens // short)
    return (short, long) if rows <= columns else (long, short)


@cache
def letterbox_cells(max_tokens: int) -> tuple[Cells, ...]:
    """The few (rows, columns) that letterboxed pictures of this budget take."""
    grids = set()
    for aspect in LETTERBOX_ASPECTS:
        short = min(math.isqrt(max_tokens), max(1, round(math.sqrt(max_tokens / aspect))))
        grids |= {(short, max_tokens // short), (max_tokens // short, short)}
    return tuple(sorted(grids))


def closest_cells(aspect: float, grids: Sequence[Cells]) -> Cells:
    """The grid whose aspect (width over height) is closest; the larger one of two that are equally close."""
    return min(grids, key=lambda grid: (abs(math.log(grid[1] / grid[0] / aspect)), -grid[0] * grid[1]))
