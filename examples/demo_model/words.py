"""Words to draw: a list that comes along, the system's dictionaries where there are any, and made-up words.

Training may draw from both lists. A made-up word is in no list, so whoever reads it has read its letters.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

LETTERS = "abcdefghijklmnopqrstuvwxyz"
ACCENTED = "áéíóúñü"
SHORTEST, LONGEST = 2, 9

_DATA_FOLDERS = os.environ.get("XDG_DATA_DIRS", "/usr/local/share:/usr/share").split(":")
_DICTIONARIES = tuple(
    Path(folder) / "dict" / name
    for folder in _DATA_FOLDERS
    for name in ("american-english-small", "american-english", "spanish", "words")
)
_CONSONANTS = (
    "b",
    "c",
    "d",
    "f",
    "g",
    "h",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "t",
    "v",
    "z",
    "br",
    "st",
    "tr",
)
_ENDINGS = ("", "", "", "l", "n", "r", "s")


@cache
def everyday() -> tuple[str, ...]:
    """Some 800 common English and Spanish words, the same on every machine."""
    return tuple(Path(__file__).with_name("words.txt").read_text(encoding="utf-8").split())


@cache
def dictionary(files: tuple[Path, ...] = _DICTIONARIES) -> tuple[str, ...]:
    """Words of the dictionaries that are there, in a fixed order; only such as can be drawn and are short."""
    found = (
        line.strip()
        for file in files
        if file.is_file()
        for line in file.read_text(encoding="utf-8").splitlines()
    )
    usable = {word for word in found if SHORTEST <= len(word) <= LONGEST and _is_plain(word)}
    return tuple(sorted(usable))


def _is_plain(word: str) -> bool:
    return all(letter in LETTERS + ACCENTED for letter in word.lower())


def listed_word(rng: Random, words: Sequence[str], random_letters: float = 0.1) -> str:
    """A word of the list, or with that probability two to seven letters at random."""
    if rng.random() < random_letters:
        return "".join(rng.choice(LETTERS) for _ in range(rng.randint(2, 7)))
    return rng.choice(words)


def made_up_word(rng: Random) -> str:
    """Four to nine letters that can be spoken and are in no list."""
    while True:
        syllables = (
            rng.choice(_CONSONANTS) + rng.choice("aeiou") + rng.choice(_ENDINGS)
            for _ in range(rng.randint(2, 3))
        )
        word = "".join(syllables)
        if 4 <= len(word) <= LONGEST and word not in everyday():
            return word
