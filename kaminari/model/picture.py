"""A picture as the engine carries it: processed pixels, grids, one count of rows, one digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture, ready for the vision tower.

    pixels:  float32 [patches, channels * temporal_patch * patch * patch], all slices one behind the other
    grids:   (frames, patch rows, patch columns) of each slice; one entry where a family does not slice
    tokens:  placeholders in the prompt, and rows that the tower returns
    size:    (width, height) of the oriented source in pixels
    digest:  32 bytes that name pixels, grids and every preprocessing setting
    layout:  rows and columns of the slices behind the first one, which is an overview; (0, 0) without such
    """

    pixels: NDArray[np.float32]
    grids: tuple[Grid, ...]
    tokens: int
    size: tuple[int, int]
    digest: bytes
    layout: tuple[int, int] = (0, 0)


def picture_digest(
    pixels: NDArray[np.float32], grids: Sequence[Grid], settings: Mapping[str, object]
) -> bytes:
    """Return 32 bytes (BLAKE2b) over the processed pixels, the grids and the preprocessing settings."""
    state = hashlib.blake2b(digest_size=32)
    state.update(json.dumps([list(grids), dict(settings)], sort_keys=True, default=str).encode())
    state.update(np.ascontiguousarray(pixels).data)
    return state.digest()
