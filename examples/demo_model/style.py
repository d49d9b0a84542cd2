"""How pictures of text are drawn: in which fonts and sizes, with which words and figures.

The styles of an evaluation each change one thing of the usual, so that it can say what that costs; none of
them is trained on. The styles of a training dwell on what is hard to read.
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
    fonts:            names, of which one is drawn for each picture
    line_sizes:       sizes of a single line, in pixels
    receipt_sizes:    sizes of a receipt, in pixels
    receipt_heights:  of the pictures of receipts, in pixels
    receipt_items:    fewest and most items of a receipt; a date takes the place of one
    word:             draws one word in small letters
    familiar:         figures, and the items and stores of `phrases`, stand beside words
    free_totals:      the total is any number up to 999.99, not the sum; items cost up to 99.99, not 19.99
    photographed:     what is drawn is photographed by hand
    """

    name: str
    fonts: tuple[str, ...]
    word: Word
    line_sizes: tuple[int, ...] = tuple(range(17, 29))
    receipt_sizes: tuple[int, ...] = tuple(range(16, 21))
    receipt_heights: tuple[int, ...] = (128, 160, 192)
    receipt_items: tuple[int, int] = (1, 4)
    familiar: bool = True
    free_totals: bool = False
    photographed: bool = False


def _everyday(rng: Random) -> str:
    return words.listed_word(rng, words.everyday())


def _trained(rng: Random, random_letters: float = 0.1) -> str:
    """Dictionaries have a hundred times as many words, but the everyday ones are what the demo is shown."""
    everyday = rng.random() < 0.35 or not words.dictionary()
    return words.listed_word(rng, words.everyday() if everyday else words.dictionary(), random_letters)


def _spelled(rng: Random) -> str:
    return _trained(rng, random_letters=0.5)


USUAL = Style("usual", fonts.present(fonts.TRAINING), _everyday)
OTHER_WORDS = replace(USUAL, name="made-up words", word=words.made_up_word, familiar=False)
OTHER_SIZES = replace(
    USUAL, name="other sizes", line_sizes=(14, 15, 30, 31, 32), receipt_sizes=(14, 15, 21, 22)
)
OTHER_FONTS = replace(USUAL, name="other fonts", fonts=fonts.present(fonts.HELD_OUT))
FREE_TOTALS = replace(USUAL, name="free totals", free_totals=True)
PILLOW_18 = replace(USUAL, name="Pillow 18 px", fonts=(fonts.PILLOW,), line_sizes=(18,), receipt_sizes=(18,))
PHOTOGRAPHED = replace(USUAL, name="photographed", photographed=True)
LONG = replace(
    USUAL, name="long receipts", receipt_sizes=(16, 17, 18), receipt_heights=(256,), receipt_items=(5, 9)
)

# Pillow's own font is in every place that draws for the demo, so it comes twice as often
TRAINING = replace(USUAL, name="training", fonts=(fonts.PILLOW, *USUAL.fonts), word=_trained)
TRAINING_FREE = replace(TRAINING, name="training, free totals", free_totals=True)
TRAINING_SPELLED = replace(TRAINING_FREE, name="training, spelled", word=_spelled, familiar=False)
TRAINING_PILLOW = replace(
    TRAINING_FREE, name="training, Pillow 18 px", fonts=(fonts.PILLOW,), line_sizes=(18,), receipt_sizes=(18,)
)
TRAINING_LONG = replace(LONG, name="training, long receipts", fonts=TRAINING.fonts, word=_trained)
TRAINING_SMALL = replace(
    TRAINING_FREE, name="training, small print", line_sizes=(14, 15, 16), receipt_sizes=(14, 15)
)
TRAINING_PHOTOGRAPHED = replace(TRAINING_FREE, name="training, photographed", photographed=True)
# how often, and which
TRAINED: tuple[tuple[float, Style], ...] = (
    (4, TRAINING),
    (3, TRAINING_FREE),
    (2, TRAINING_SPELLED),
    (1, TRAINING_PILLOW),
)
TRAINED_HARDER: tuple[tuple[float, Style], ...] = (
    (3, TRAINING_PHOTOGRAPHED),
    (2, TRAINING_SMALL),
)
