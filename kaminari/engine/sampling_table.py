"""Sampling parameters on the device: one row per slot, written once per request, picked by slot each step.

What a kernel needs stands in a tensor; what decides which kernels run at all (is every row greedy, how many
candidates must be sorted) is known to the host, so that a step never waits for the device to find out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kaminari.engine.params import SamplingParams

_MIN_SORT_WIDTH = 64
SAMPLING_TABLE_BYTES = 4 * 8
"""Bytes that a `SamplingTable` takes for each slot."""


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """The parameters of the R rows of a step.

    temperature:  [R] float64; 0 marks a greedy row, for which nothing else counts
    top_k:        [R] float64 that holds integers; 0 is off
    top_p:        [R] float64; 1 is off
    min_p:        [R] float64; 0 is off
    all_greedy:   every row is greedy
    sort_width:   how many of the likeliest tokens the filters of any row can need in order; 0 where no row
                  uses top-k or top-p. A power of two or the vocabulary, so that shapes are few.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    all_greedy: bool
    sort_width: int


class SamplingTable:
    """Parameters of every slot, in one [slots, 4] tensor on the device."""

    def __init__(self, slots: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._values = torch.zeros(slots, 4, dtype=torch.float64, device=device)
        self._greedy: list[bool | None] = [None] * slots
        self._widths = [0] * slots
        self._lines: list[tuple[float, float, float, float]] = [(0.0, 0.0, 0.0, 0.0)] * slots

    def set(self, slot: int, params: SamplingParams) -> None:
        """Write the parameters of a slot's new owner. Queued on the device; the host does not wait."""
        top_k = params.top_k if 0 < params.top_k < self._vocab_size else 0
        values = (0.0 if params.greedy else params.temperature, top_k, params.top_p, params.min_p)
        # A fill takes its value as a kernel's argument. A copy from host memory would wait for the stream.
        for cell, value in zip(self._values[slot], values, strict=True):
            cell.fill_(value)
        self._lines[slot] = values
        self._greedy[slot] = params.greedy
        self._widths[slot] = 0 if params.greedy else self._sort_width(top_k, params.top_p)

    def line(self, slot: int) -> tuple[float, float, float, float]:
        """Temperature, top_k, top_p and min_p of a slot's owner."""
        return self._lines[slot]

    def rows(self, slots: Sequence[int], index: Tensor) -> SamplingTensors:
        """Return the parameters of R slots, in order.

        slots and index are the same R slot numbers, on the host and as int64 [R] on the device.
        Raises `ValueError` for a slot that was never set.
        """
        unset = [slot for slot in slots if self._greedy[slot] is None]
        if unset:
            raise ValueError(f"slots without sampling parameters: {unset}")
        temperature, top_k, top_p, min_p = self._values.index_select(0, index).unbind(1)
        return SamplingTensors(
            temperature,
            top_k,
            top_p,
            min_p,
            all_greedy=all(self._greedy[slot] for slot in slots),
            sort_width=max((self._widths[slot] for slot in slots), default=0),
        )

    def _sort_width(self, top_k: int, top_p: float) -> int:
        if top_k:
            width = max(_MIN_SORT_WIDTH, 1 << (top_k - 1).bit_length())
            return min(width, self._vocab_size)
        return self._vocab_size if top_p < 1.0 else 0
