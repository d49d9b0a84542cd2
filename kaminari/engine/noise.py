"""The noise that a draw takes: a pure function of (seed, choice, position), never of a stream's history.

Philox is counter-based: its key is (seed, choice) and its counter the position, so any number can be made
without the ones before it. A row's draw is therefore the same alone and in a batch, in any order of steps,
after a preemption, and when a draft is checked twice. Nothing here keeps state or touches a device.
"""

from __future__ import annotations

from numpy.random import Philox

from kaminari.engine.params import SEED_RANGE

_WORD = 2**64
_UNIT = 2.0**-53


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
    word = int(Philox(key=choice * _WORD + seed % _WORD, counter=position).random_raw())
    return (word >> 11) * _UNIT
