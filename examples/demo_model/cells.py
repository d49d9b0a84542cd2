"""Where text is in a picture, in the model's own units: the cell of a character, the characters of a patch.

A patch is what the vision tower sees at a time; a cell is what one of its rows stands for, 2 by 2 patches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from examples.demo_model.sample import Drawing, Turn

PATCH = 16
MERGE = 2
CELL = PATCH * MERGE
MOST_CHARACTERS = 3
# every character that the generator draws
ALPHABET = "".join(
    sorted(
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
        ".,:;-/$€%#&()'\"!?+*=@{}_áéíóúñüÁÉÍÓÚÑÜ¿¡"
    )
)
# 0 is no character
CLASSES = len(ALPHABET) + 1
_CLASS = {character: number for number, character in enumerate(ALPHABET, 1)}


def answer_cells(turn: Turn, drawing: Drawing) -> list[int | None]:
    """The cell of each character of the answer, row by row; None for what the picture does not show."""
    columns = drawing.image.width // CELL
    cells: list[int | None] = [None] * len(turn.answer)
    for quote in turn.quotes:
        centres = [(x, y) for x, y, _ in _centres(drawing, quote.run)]
        for number in range(quote.length):
            x, y = centres[quote.offset + number]
            cells[quote.start + number] = y // CELL * columns + x // CELL
    return cells


def patch_characters(drawing: Drawing) -> NDArray[np.uint8]:
    """[rows, columns, MOST_CHARACTERS] classes of those whose middle is in each patch, in reading order."""
    rows, columns = drawing.image.height // PATCH, drawing.image.width // PATCH
    named = np.zeros((rows, columns, MOST_CHARACTERS), np.uint8)
    for run in range(len(drawing.runs)):
        for x, y, character in _centres(drawing, run):
            inside = 0 <= x < drawing.image.width and 0 <= y < drawing.image.height
            if character == " " or not inside:
                continue
            patch = named[y // PATCH, x // PATCH]
            free = np.flatnonzero(patch == 0)
            if free.size:
                patch[free[0]] = _CLASS[character]
    return named


def in_cells(patches: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[rows, columns, ...] -> [P, ...] in the tower's order, which keeps the patches of a cell together."""
    rows, columns, *rest = patches.shape
    split = patches.reshape(rows // MERGE, MERGE, columns // MERGE, MERGE, *rest)
    return split.swapaxes(1, 2).reshape(rows * columns, *rest)


def _centres(drawing: Drawing, run: int) -> Iterator[tuple[int, int, str]]:
    """The pixel in the middle of each character of a run, and the character."""
    text = drawing.runs[run]
    left, top, right, bottom = text.box
    for character, (begin, end) in zip(text.text, pairwise(text.edges), strict=True):
        x = (begin + end) / 2
        y = (top + bottom) / 2 + text.slope * (x - (left + right) / 2)
        yield math.floor(x), math.floor(y), character
