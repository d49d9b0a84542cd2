"""Puts a question in words, in one of two languages."""

from __future__ import annotations

from random import Random

from examples.demo_model.phrases import Wordings


def put(rng: Random, wordings: Wordings, spanish: float = 0.25) -> tuple[str, bool]:
    """Return a wording and whether it is Spanish, which it is with that probability."""
    in_spanish = rng.random() < spanish
    return rng.choice(wordings.spanish if in_spanish else wordings.english), in_spanish
