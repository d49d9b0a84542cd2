"""How an answer is drawn and when it ends. Checked on construction: a bad value names its field."""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields

from kaminari.engine.errors import RequestError

GREEDY_BELOW = 1e-5
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKENS = 128
MAX_BIASED_TOKENS = 1024
MAX_TOP_LOGPROBS = 20
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

    presence_penalty, frequency_penalty:
                  taken off the logit of a token that this choice has made: once, and once per occurrence
    repetition_penalty:
                  divides a positive logit, and multiplies any other, of a token that stands in the prompt's
                  text or was made; a picture's placeholders do not count
    logit_bias:   (token id, what is added to its logit), each id once
    stop_token_ids:
                  more tokens that end the answer and are not shown
    min_tokens:   tokens to make before an end token is drawn; stop strings count in the text that follows
    logprobs:     None, or how many of the likeliest tokens to name beside the drawn one
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
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    logprobs: int | None = None

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
        self._check("presence_penalty", -2.0 <= self.presence_penalty <= 2.0, "between -2 and 2")
        self._check("frequency_penalty", -2.0 <= self.frequency_penalty <= 2.0, "between -2 and 2")
        self._check("repetition_penalty", 0.01 <= self.repetition_penalty <= 100.0, "between 0.01 and 100")
        few = len(self.stop_token_ids) <= MAX_STOP_TOKENS
        self._check("stop_token_ids", few, f"at most {MAX_STOP_TOKENS} token ids")
        self._check_bias()
        longest = math.inf if self.max_tokens is None else self.max_tokens
        self._check("min_tokens", 0 <= self.min_tokens <= longest, "at least 0 and at most max_tokens")
        top = 0 if self.logprobs is None else self.logprobs
        self._check("logprobs", 0 <= top <= MAX_TOP_LOGPROBS, f"between 0 and {MAX_TOP_LOGPROBS}")

    def _check_bias(self) -> None:
        biased = len(self.logit_bias)
        self._check("logit_bias", biased <= MAX_BIASED_TOKENS, f"of at most {MAX_BIASED_TOKENS} tokens")
        self._check("logit_bias", len(dict(self.logit_bias)) == biased, "given once for each token")
        fits = all(-100.0 <= bias <= 100.0 for _, bias in self.logit_bias)
        self._check("logit_bias", fits, "made of numbers between -100 and 100")

    def check_vocabulary(self, size: int) -> None:
        """Raise `RequestError` for a token id that a vocabulary of `size` tokens does not have."""
        for field, ids in (
            ("logit_bias", [token for token, _ in self.logit_bias]),
            ("stop_token_ids", self.stop_token_ids),
        ):
            fits = all(0 <= token < size for token in ids)
            self._check(field, fits, f"made of token ids from 0 to {size - 1}")

    def _check(self, field: str, holds: bool, rule: str) -> None:
        if not holds:
            raise RequestError(f"{field} must be {rule}", field=field)

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def penalized(self) -> bool:
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)

    def ending(self, end_token_ids: AbstractSet[int]) -> frozenset[int]:
        """The tokens that end the answer, where the model's own are `end_token_ids`."""
        return frozenset(self.stop_token_ids).union(() if self.ignore_eos else end_token_ids)
