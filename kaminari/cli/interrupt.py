"""A command that is told to end (SIGTERM) cleans up as one that is interrupted (Ctrl-C) does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ended_as_interrupted() -> Iterator[None]:
    """Take SIGTERM as Ctrl-C. Outside of the main thread, which alone hears signals, it changes nothing."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
