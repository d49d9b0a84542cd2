"""What a step drew: on the device until it is collected, on the host after that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kaminari.engine.sampler import Sampled


@dataclass(frozen=True, slots=True)
class DrawnLogprobs:
    """The log-probability of a drawn token, and (id, log-probability) of the likeliest at its place."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """A token on the host.

    token:     None where the row's logits were not finite
    logprobs:  None where the request did not ask
    """

    job: int
    choice: int
    token: int | None
    logprobs: DrawnLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens on the device, and whose they are.

    rows:  (job, choice) of each of the R rows
    tops:  how many of the likeliest tokens each row asked for; None where it asked for no log-probability
    """

    rows: tuple[tuple[int, int], ...]
    sampled: Sampled
    tops: tuple[int | None, ...]

    def collect(self) -> list[DrawnToken]:
        """Wait for the device and copy everything to the host, in one transfer."""
        sampled = self.sampled
        ids = torch.where(sampled.finite, sampled.ids, -1)
        if sampled.logprobs is None:
            return [
                DrawnToken(job, choice, token if token >= 0 else None)
                for (job, choice), token in zip(self.rows, ids.tolist(), strict=True)
            ]
        # A double holds every id and every float32 exactly.
        columns = [ids[:, None], sampled.logprobs[:, None]]
        if sampled.top is not None:
            columns += [sampled.top.ids, sampled.top.logprobs]
        table = torch.cat([column.double() for column in columns], dim=1).tolist()
        return [
            DrawnToken(*row, int(values[0]) if values[0] >= 0 else None, _logprobs(values[1:], top))
            for row, values, top in zip(self.rows, table, self.tops, strict=True)
        ]


def _logprobs(values: list[Any], top: int | None) -> DrawnLogprobs | None:
    """Read a row's [logprob, K ids, K log-probabilities], of which it asked for the first `top`."""
    if top is None:
        return None
    width = len(values) // 2
    ids, logprobs = values[1 : 1 + width], values[1 + width :]
    pairs = zip(map(int, ids[:top]), logprobs[:top], strict=True)
    return DrawnLogprobs(values[0], tuple(pairs))
