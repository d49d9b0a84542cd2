"""How an answer is drawn and when it ends. Checked on construction: a bad value names its field."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from kaminari.engine.errors import RequestError

GREEDY_BELOW = 1e-5
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
SEED_RANGE = (-(2**63), 2**63 - 1)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Everything that shapes an answer.

    max_tokens:   most tokens to make; None means what is left of the context; clamped to it
    temperature:  below 1e-5 is greedy
    top_k:        0 or -1 means off; more than the vocabulary means all of it
    seed:         None draws a fresh one
    stop:         up to 16 strings that end the answer and are never shown
    n:            choices on one prefill
    ignore_eos:   go on past an end token
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise RequestError(f"{field.name} must be a finite number", field=field.name)
        self._check("max_tokens", self.max_tokens is None or self.max_tokens >= 1, "at least 1")
        self._check("temperature", 0.0 <= self.temperature <= 2.0, "between 0 and 2")
        self._check("top_p", 0.0 < self.top_p <= 1.0, "above 0 and at most 1")
        self._check("top_k", self.top_k >= -1, "-1 or 0 (off), or at least 1")
        self._check("min_p", 0.0 <= self.min_p <= 1.0, "between 0 and 1")
        self._check("n", self.n >= 1, "at least 1")
        low, high = SEED_RANGE
        self._check("seed", self.seed is None or low <= self.seed <= high, "a 64-bit integer")
        self._check("stop", len(self.stop) <= MAX_STOP_STRINGS, f"at most {MAX_STOP_STRINGS} strings")
        fits = all(1 <= len(text) <= MAX_STOP_LENGTH for text in self.stop)
        self._check("stop", fits, f"made of strings of 1 to {MAX_STOP_LENGTH} characters")

    def _check(self, field: str, holds: bool, rule: str) -> None:
        if not holds:
            raise RequestError(f"{field} must be {rule}", field=field)

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW
