"""From a conversation to what the decoder is trained on: tokens, which of them are answers, where to look.

The text is that of the demo's chat template, so what is trained is what a server asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import Qwen3VLConfig

from examples.demo_model.cells import CELL, answer_cells
from examples.demo_model.sample import Sample
from kaminari.model.tokenizer import load_tokenizer

_END = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Tokens:
    """A conversation of T tokens.

    ids:       [T]
    pictures:  [T] whether it is one of a picture's rows
    answers:   [T] whether it is to be learnt: the answers and the ends of them
    guides:    (index, cell) of each token that comes before one which is read off that cell
    """

    ids: list[int]
    pictures: list[bool]
    answers: list[bool]
    guides: list[tuple[int, int]]


class Scribe:
    """Writes conversations as tokens of a checkpoint folder. Raises `CheckpointError` without a tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.config: Any = Qwen3VLConfig.from_pretrained(folder, local_files_only=True)
        self.tokenizer = load_tokenizer(folder)
        self._picture = self.tokenizer.convert_ids_to_tokens(self.config.image_token_id)

    def write(self, sample: Sample, system: str = "") -> Tokens:
        text = f"<|im_start|>system\n{system}{_END}\n" if system else ""
        cells: dict[int, int] = {}
        spans: list[tuple[int, int]] = []
        for number, turn in enumerate(sample.turns):
            text += "<|im_start|>user\n"
            for drawing in sample.drawings if number == 0 else ():
                rows = drawing.image.width // CELL * (drawing.image.height // CELL)
                text += f"<|vision_start|>{self._picture * rows}<|vision_end|>"
            text += f"{turn.question}{_END}\n<|im_start|>assistant\n"
            spans.append((len(text), len(text) + len(turn.answer) + len(_END)))
            if turn.quotes:
                shown = answer_cells(turn, sample.drawings[0])
                cells |= {len(text) + at: cell for at, cell in enumerate(shown) if cell is not None}
            text += f"{turn.answer}{_END}\n"
        encoded = self.tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
        guides = []
        for index, (start, end) in enumerate(offsets):
            # a token may begin with a space or line break that no cell shows
            cell = next(
                (cells[at] for at in range(start, end) if at in cells and not text[at].isspace()), None
            )
            if cell is not None:
                guides.append((index - 1, cell))
        return Tokens(
            ids,
            [token == self.config.image_token_id for token in ids],
            _inside(offsets, spans),
            guides,
        )


def _inside(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> list[bool]:
    """Whether each token lies in one of the spans of characters."""
    inside, remaining = [], iter([*spans, (1 << 62, 1 << 62)])
    start, end = next(remaining)
    for first, last in offsets:
        while first >= end:
            start, end = next(remaining)
        inside.append(start <= first and last <= end)
    return inside
