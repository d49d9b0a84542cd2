"""What prompts leave free in the process's heap goes back to the system while the engine has nothing to do.

An allocator keeps what is freed, since the next prompt will want as much again. Here only an engine that has
been idle for a while gives it up; between the steps of one that works nothing is ever given back. All of this
is glibc's: other C libraries go on as they are.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

M_ARENA_MAX = -8  # of malloc.h
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
    """What returns the heap's free pages to the system, for a model on the device; None where nothing does.

    On CUDA a prompt leaves nothing in the heap.
    """
    if device.type != "cpu":
        return None
    trim = _glibc("malloc_trim")
    return None if trim is None else lambda: trim(ctypes.c_size_t(0))


def share_heap() -> None:
    """Let all threads that start from here on take memory from one heap.

    glibc gives threads heaps of their own, whose ends never go back: tens of megabytes of what the engine's
    thread once took. For a process that serves, before it starts a thread; a program that embeds an engine
    decides for itself (`MALLOC_ARENA_MAX=1`).
    """
    option = _glibc("mallopt")
    if option is not None:
        option(ctypes.c_int(M_ARENA_MAX), ctypes.c_int(1))


def _glibc(name: str) -> Callable[..., object] | None:
    """A function of glibc, or None beside another C library."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return getattr(library, name) if hasattr(library, "gnu_get_libc_version") else None
