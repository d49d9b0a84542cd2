"""Times the ranges of a step on a CPU by a stamp at each border, which a captured step writes as it runs.

A border that is met while a step is recorded becomes a call of its program, and is stamped anew at every
replay; any other border is stamped once, where it is met. A stamp takes some tens of nanoseconds.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections import defaultdict

from kaminari.bench.ranges import AROUND

NANOSECONDS = 1e9


class Stamps:
    """library:  the native kernels, or None where there are none and nothing is recorded"""

    def __init__(self, library: ctypes.CDLL | None) -> None:
        self._library = library
        self._open: list[str] = []
        # what begins at each border, and the clock's nanoseconds there since the last `take`
        self._borders: list[tuple[str, ctypes.c_int64]] = []

    def enter(self, name: str) -> None:
        self._open.append(name)
        self._border()

    def leave(self) -> None:
        self._open.pop()
        self._border()

    def take(self) -> dict[str, float]:
        """Seconds by range, from the first border that was met since the last call to the last one."""
        met = [(name, stamp.value) for name, stamp in self._borders if stamp.value]
        for _, stamp in self._borders:
            stamp.value = 0
        parts: dict[str, float] = defaultdict(float)
        for (name, began), (_, ended) in itertools.pairwise(met):
            parts[name] += (ended - began) / NANOSECONDS
        return dict(parts)

    def _border(self) -> None:
        stamp = ctypes.c_int64()
        self._borders.append((self._open[-1] if self._open else AROUND, stamp))
        if self._library is None:
            stamp.value = time.perf_counter_ns()
        else:
            self._library.kaminari_stamp(ctypes.addressof(stamp))
