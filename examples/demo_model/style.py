"""How pictures of text are drawn: in which fonts and sizes, with which words and figures.

One style is for training; the others each change one thing, so that an evaluation can say what it costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from examples.demo_model import fonts, words

Word = Callable[[Random], str]


@dataclass(frozen=True)
class Style:
    """
    fonts:          names, of which one is drawn for each picture
    line_sizes:     sizes of a single line, in pixels
    receipt_sizes:  sizes of a receipt, in pixels
    word:           draws one word in small letters
    familiar:       figures, and the items and stores of `phrases`, stand beside words
    free_totals:    the total is any number up to 999.99, not the sum; items cost up to 99.99 instead of 19.99
    """

    name: str
    fonts: tuple[str, ...]
    word: Word
    line_sizes: tuple[int, ...] = tuple(range(17, 29))
    receipt_sizes: tuple[int, ...] = tuple(range(16, 21))
    familiar: bool = True
    free_totals: bool = False


def _everyday(rng: Random) -> str:
    return words.listed_word(rng, words.everyday())


def _listed(rng: Random) -> str:
    return words.listed_word(rng, words.everyday() + words.dictionary())


USUAL = Style("usual", fonts.present(fonts.TRAINING), _everyday)
TRAINING = replace(USUAL, name="training", word=_listed)
OTHER_WORDS = replace(USUAL, name="made-up words", word=words.made_up_word, familiar=False)
OTHER_SIZES = replace(
    USUAL, name="other sizes", line_sizes=(14, 15, 30, 31, 32), receipt_sizes=(14, 15, 21, 22)
)
OTHER_FONTS = replace(USUAL, name="other fonts", fonts=fonts.present(fonts.HELD_OUT))
FREE_TOTALS = replace(USUAL, name="free totals", free_totals=True)
PILLOW_18 = replace(USUAL, name="Pillow 18 px", fonts=(fonts.PILLOW,), line_sizes=(18,), receipt_sizes=(18,))
