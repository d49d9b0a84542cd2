"""Counts where a step's time goes, by its parts. Two clock reads per part; never reset.

plan     the scheduler
prepare  the host's work for a forward pass and a draw: lengths, noise, masks
forward  the model, and what a step draws itself; on a CPU its whole time, also where it runs beside the
         engine's thread (then the parts add up to more than has passed); on CUDA that of launching it
sample   drawing behind a step or a prompt, likewise
collect  waiting for the device, and the transfer to the host
write    detokenizing, stop strings, grammars
publish  handing events to readers
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

PARTS = ("plan", "prepare", "forward", "sample", "collect", "write", "publish")


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Totals since the start.

    seconds:  by part, of `PARTS`
    steps:    decode steps; rows: tokens that they drew
    """

    seconds: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    steps: int = 0
    rows: int = 0


class StepClock:
    """The engine thread's stopwatch. Any thread may read `counts`."""

    def __init__(self) -> None:
        self.steps = 0
        self.rows = 0
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._mark = time.perf_counter()

    def start(self) -> None:
        """What has passed since the last lap belongs to no part."""
        self._mark = time.perf_counter()

    def lap(self, part: str) -> None:
        """What has passed since the last lap belongs to `part`."""
        now = time.perf_counter()
        self._seconds[part] += now - self._mark
        self._mark = now

    def add(self, part: str, seconds: float) -> None:
        """This much of `part` took place beside this thread, which waited since the last lap."""
        self._seconds[part] += seconds
        self._mark = time.perf_counter()

    def counts(self) -> StepCounts:
        return StepCounts(dict(self._seconds), self.steps, self.rows)
