"""The noise that a draw takes: a pure function of (seed, choice, position), never of a stream's history.

Philox is counter-based: its key is (seed, choice) and its counter the position, so any number can be made
without the ones before it. A row's draw is therefore the same alone and in a batch, in any order of steps,
after a preemption, and when a draft is checked twice. Nothing here touches a device.

Numbers are made in blocks, since making one takes as long as making a block of them; that the last blocks are
kept changes no number.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.random import Philox

from kaminari.engine.params import SEED_RANGE

_WORD = 2**64
_UNIT = 2.0**-53
_BLOCK = 64


def uniform(seed: int, choice: int, position: int) -> float:
    """Return the number in [0, 1) for one token, a multiple of 2**-53.

    seed:      any integer of 64 bits, signed
    choice:    0 .. 2**64 - 1, which of a request's n answers
    position:  0 .. 2**64 - 1, index of the token that is drawn

    Raises `ValueError` outside these ranges. Philox-4x64-10 (Salmon et al., "Parallel random numbers: as
    easy as 1, 2, 3", SC 2011) as numpy builds it, whose raw words are the same on every platform.
    """
    low, high = SEED_RANGE
    if not low <= seed <= high:
        raise ValueError(f"seed must be a signed 64-bit integer, not {seed}")
    if not 0 <= choice < _WORD:
        raise ValueError(f"choice must be between 0 and 2**64 - 1, not {choice}")
    if not 0 <= position < _WORD:
        raise ValueError(f"position must be between 0 and 2**64 - 1, not {position}")
    number, place = divmod(position, _BLOCK)
    return _block(choice * _WORD + seed % _WORD, number)[place]


@lru_cache(maxsize=1024)
def _block(key: int, number: int) -> list[float]:
    """The numbers of `_BLOCK` positions in a row: the first of the four words that each counter gives."""
    words = np.asarray(Philox(key=key, counter=number * _BLOCK).random_raw(4 * _BLOCK))[::4]
    values: list[float] = ((words >> 11) * _UNIT).tolist()
    return values
