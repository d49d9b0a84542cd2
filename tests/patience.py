"""Bounds that hold on a machine that stalls: work is bounded in processor time, waits generously.

No test bounds the wall-clock time of work: a busy machine would fail it, and a fast one would hide a fault.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 30.0  # seconds that a test waits for what comes at once; longer than any stall


@contextmanager
def processor_time(most: float) -> Iterator[None]:
    """Fail where this process spends more than `most` seconds of processor time, in all of its threads."""
    began = time.process_time()
    yield
    spent = time.process_time() - began
    assert spent < most, f"{spent:.2f} s of processor time"


@contextmanager
def patience(most: float = PATIENCE) -> Iterator[None]:
    """Fail where something that must end by itself, such as by a timeout, takes as long as if it hung."""
    began = time.monotonic()
    yield
    waited = time.monotonic() - began
    assert waited < most, f"{waited:.1f} s"
