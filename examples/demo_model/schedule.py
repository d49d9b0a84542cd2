"""The learning rate over a training: it warms up, stays, and cools down at the end."""

from __future__ import annotations

import math
from dataclasses import dataclass

_COLDEST = 0.02


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps count from 0.

    peak:       the learning rate between warm-up and cool-down
    first:      step at which it begins to warm up, since the optimizer begins to gather there
    warm_up:    steps until the peak
    last:       step after which training ends
    cool_down:  steps before `last` over which it falls, by a half cosine, to 2 % of the peak
    """

    peak: float
    first: int
    warm_up: int
    last: int
    cool_down: int

    def rate(self, step: int) -> float:
        warmth = min(1.0, (step - self.first + 1) / max(1, self.warm_up))
        cooled = max(0.0, (step - (self.last - self.cool_down) + 1) / max(1, self.cool_down))
        return (
            self.peak
            * warmth
            * (_COLDEST + (1 - _COLDEST) * 0.5 * (1 + math.cos(math.pi * min(1.0, cooled))))
        )
