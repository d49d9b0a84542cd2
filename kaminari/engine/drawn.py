"""What a forward pass leaves to draw from, and what was drawn: on the device until it is collected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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


class Choices(Protocol):
    """Numbers on their way to the host, in one transfer."""

    def collect(self) -> list[Any]:
        """Wait for these, and for nothing that was launched after them."""
        ...


@dataclass(frozen=True, slots=True)
class Undrawn:
    """Logits [R, V] on the device, and their R rows.

    ids:        [R] ids that the step drew itself, -1 where a row's logits are not finite; they lie where the
                next step finds them. None where a row's draw takes more than a step can do
    likeliest:  [R] int64, the largest of each row's logits, -1 likewise; None where nothing has looked for it
    ready:      waits until the tensors may be read, and raises what went wrong in the step; None where the
                device sees to the order
    """

    logits: Tensor
    rows: tuple[DrawRow, ...]
    ids: Choices | None = None
    likeliest: Tensor | None = None
    ready: Callable[[], None] | None = None


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
    """Tokens on their way to the host."""

    def __init__(
        self,
        rows: tuple[DrawRow, ...],
        values: Choices,
        *,
        places: Sequence[int] | None = None,
        tops: Sequence[int | None] | None = None,
    ) -> None:
        """
        values:  ids, -1 where there is none; with `tops` each at the head of the line that `_table` makes
        places:  which of the values are those of the rows; None where all are
        tops:    how many of the likeliest tokens each row asked for; None where it asked for no
                 log-probability
        """
        self.rows = rows
        self._values = values
        self._places = places
        self._tops = tops

    @classmethod
    def sampled(cls, rows: tuple[DrawRow, ...], sampled: Sampled, tops: Sequence[int | None]) -> Drawn:
        """What the sampler drew for these rows; `tops` as above."""
        values = HostCopy(_table(sampled))
        return cls(rows, values, tops=None if sampled.logprobs is None else tops)

    def collect(self) -> list[DrawnToken]:
        """Wait for these tokens, and for nothing that was launched after them."""
        values = self._values.collect()
        if self._places is not None:
            values = [values[place] for place in self._places]
        if self._tops is None:
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
