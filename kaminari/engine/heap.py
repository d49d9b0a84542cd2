"""What prompts leave free in the process's heap goes back to the system while the engine has nothing to do.

An allocator keeps what is freed, since the next prompt will want as much again. Here only an engine that has
been idle for a while gives it up; between the steps of one that works nothing is ever given back.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import torch

IDLE_SECONDS = 1.0
"""So long nothing has come. A client that asks again at once finds the heap as it left it."""


class IdleHeap:
    """Gives free memory back once after every spell of work. `give_back` does it; None where nothing does."""

    def __init__(self, give_back: Callable[[], object] | None) -> None:
        self._give_back = give_back
        self._worked = True  # loading leaves more behind than any prompt

    @property
    def due(self) -> float | None:
        """After so many idle seconds `idle` is to be called; None where there is nothing to give back."""
        return IDLE_SECONDS if self._worked and self._give_back is not None else None

    def worked(self) -> None:
        """Something ran."""
        self._worked = True

    def idle(self) -> None:
        """Give back what is free."""
        self._worked = False
        if self._give_back is not None:
            self._give_back()


def trimmer(device: torch.device) -> Callable[[], object] | None:
    """What returns the free pages of the C library's heap to the system, for a model on the device.

    glibc has such a function, and other C libraries have not. On CUDA a prompt leaves nothing in the heap.
    """
    if device.type != "cpu" or sys.platform != "linux":
        return None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return None if trim is None else lambda: trim(ctypes.c_size_t(0))
