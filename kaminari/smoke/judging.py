"""Judges an answer: lenient on words (case, accents, punctuation, what stands around), strict on content."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_WORD = re.compile(r"\d+(?:\.\d+)*|[^\W\d_]+")
_THINKING_END = "</think>"


@dataclass(frozen=True, slots=True)
class Expectation:
    """What an answer must say, and what it must not.

    says:   sequences of phrases; a sequence's phrases must all occur, in this order; `a|b` takes either
    never:  words that must not occur
    """

    says: tuple[tuple[str, ...], ...]
    never: frozenset[str] = frozenset()

    def objection(self, answer: str) -> str | None:
        """What is wrong with an answer, in a few words; None where it is right.

        A model that thinks aloud is judged by what follows its thoughts.
        """
        words = fold(answer.rpartition(_THINKING_END)[2])
        if not words:
            return "an empty answer"
        for sequence in self.says:
            rest = f" {' '.join(words)} "
            for phrase in sequence:
                end = _end_of_first(rest, phrase)
                if end is None:
                    return f"does not say {_wanted(sequence)}"
                rest = rest[end:]
        wrong = sorted(self.never.intersection(words))
        return f"says {wrong[0]}" if wrong else None


def fold(text: str) -> list[str]:
    """Words and numbers of a text, without case, accents and punctuation."""
    plain = "".join(
        letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter)
    )
    return _WORD.findall(plain.casefold())


def _end_of_first(text: str, phrase: str) -> int | None:
    """Where the first of the phrase's alternatives ends in a folded text, its closing blank left over."""
    ends = []
    for alternative in phrase.split("|"):
        wanted = f" {' '.join(fold(alternative))} "
        place = text.find(wanted)
        if place >= 0:
            ends.append(place + len(wanted) - 1)
    return min(ends, default=None)


def _wanted(sequence: tuple[str, ...]) -> str:
    return ", then ".join(phrase.replace("|", " or ") for phrase in sequence)
