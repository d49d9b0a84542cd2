"""What a forward pass leaves to draw from, and what was drawn: on the device until it is collected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kaminari.engine.sampler import Sampled
from kaminari.engine.transfer import HostCopy


@dataclass(frozen=True, slots=True)
class DrawRow:
    """A row from whose logits a token is to be drawn: whose it is, its slot, and the token's number."""

    job: int
    choice: int
    slot: int
    index: int


@dataclass(frozen=True, slots=True)
class Undrawn:
    """Logits [R, V] on the device, and their R rows.

    likeliest:  [R] int64, what a row draws that takes the largest of its logits, -1 where they are not
                finite; it lies where the next step finds it. None where nothing has looked for it yet.
    """

    logits: Tensor
    rows: tuple[DrawRow, ...]
    likeliest: Tensor | None = None


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


class Drawn:
    """Tokens on their way to the host, in one transfer that was queued behind their draw."""

    def __init__(
        self, rows: tuple[DrawRow, ...], sampled: Sampled | Tensor, tops: Sequence[int | None] = ()
    ) -> None:
        """
        sampled:  what the rows drew; or their ids alone, -1 where there is none
        tops:     how many of the likeliest tokens each row asked for; None where it asked for no
                  log-probability
        """
        self.rows = rows
        self._tops = tops
        self._named = isinstance(sampled, Sampled) and sampled.logprobs is not None
        self._copy = HostCopy(_table(sampled) if isinstance(sampled, Sampled) else sampled)

    def collect(self) -> list[DrawnToken]:
        """Wait for these tokens, and for nothing that was launched after them."""
        values = self._copy.collect()
        if not self._named:
            return [
                DrawnToken(row.job, row.choice, token if token >= 0 else None)
                for row, token in zip(self.rows, values, strict=True)
            ]
        return [
            DrawnToken(row.job, row.choice, int(of[0]) if of[0] >= 0 else None, _logprobs(of[1:], top))
            for row, of, top in zip(self.rows, values, self._tops, strict=True)
        ]


def _table(sampled: Sampled) -> Tensor:
    """ids [R], -1 where there is none; with log-probabilities [R, 2 + 2 K] as doubles."""
    ids = torch.where(sampled.finite, sampled.ids, -1)
    if sampled.logprobs is None:
        return ids
    # A double holds every id and every float32 exactly.
    columns = [ids[:, None], sampled.logprobs[:, None]]
    if sampled.top is not None:
        columns += [sampled.top.ids, sampled.top.logprobs]
    return torch.cat([column.double() for column in columns], dim=1)


def _logprobs(values: list[Any], top: int | None) -> DrawnLogprobs | None:
    """Read a row's [logprob, K ids, K log-probabilities], of which it asked for the first `top`."""
    if top is None:
        return None
    width = len(values) // 2
    ids, logprobs = values[1 : 1 + width], values[1 + width :]
    pairs = zip(map(int, ids[:top]), logprobs[:top], strict=True)
    return DrawnLogprobs(values[0], tuple(pairs))
