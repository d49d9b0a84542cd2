"""The clock of a measurement: wall time, or the process's own CPU seconds where other work shares the cores.

CPU seconds are comparable with one thread only: several threads that wait for one another spin.
"""

from __future__ import annotations

import time

_now = time.perf_counter


def now() -> float:
    """Seconds of the chosen clock."""
    return _now()


def count_cpu_time() -> None:
    """From here on count the process's CPU seconds."""
    global _now
    _now = time.process_time
