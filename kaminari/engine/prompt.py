"""A prompt that is ready to run: token ids, positions and pictures. Made by the frontend, never changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kaminari.engine.constraints import Grammar
from kaminari.engine.parsing import PLAIN, AnswerSyntax
from kaminari.model.picture import Picture

TokenKey = int | tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class PictureSpan:
    """Placeholders [start, stop) of the prompt take rows first_row, first_row + 1, ... of one picture."""

    picture: int
    start: int
    stop: int
    first_row: int


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A prompt of T tokens.

    token_ids:           T ids
    positions:           int64 [3, T]
    position_offset:     the token at index i >= T has position i + position_offset
    pictures:            in prompt order
    spans:               where their rows go, ascending, not overlapping
    preprocess_seconds:  time spent on decoding, resizing, templating and tokenizing
    grammar:             what every choice must follow, or None
    syntax:              how to read the answers
    """

    token_ids: tuple[int, ...]
    positions: NDArray[np.int64]
    position_offset: int
    pictures: tuple[Picture, ...] = ()
    spans: tuple[PictureSpan, ...] = ()
    preprocess_seconds: float = 0.0
    grammar: Grammar | None = None
    syntax: AnswerSyntax = PLAIN

    @property
    def image_tokens(self) -> int:
        return sum(picture.tokens for picture in self.pictures)

    @property
    def text_ids(self) -> tuple[int, ...]:
        """The tokens that are no picture's placeholders."""
        start = 0
        kept: tuple[int, ...] = ()
        for span in self.spans:
            kept += self.token_ids[start : span.start]
            start = span.stop
        return kept + self.token_ids[start:]

    def token_keys(self) -> Iterator[TokenKey]:
        """What a prefix cache compares: a token's id, or (picture digest, row) for a placeholder."""
        spans = iter(self.spans)
        span = next(spans, None)
        for index, token in enumerate(self.token_ids):
            if span is not None and index >= span.stop:
                span = next(spans, None)
            if span is not None and index >= span.start:
                yield (self.pictures[span.picture].digest, span.first_row + index - span.start)
            else:
                yield token
