"""Memory for weights on huge pages, where the system has them: a stream of weights then waits less for
addresses to be translated. Never more than a wish: where it is not granted, it is plain memory."""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import prod

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A CPU tensor whose memory begins on a huge page; below one page it is an ordinary tensor.

    Its values are zero. Raises MemoryError where the address space has no room.
    """
    size = prod(shape) * dtype.itemsize
    if size < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype)
    try:
        memory = mmap.mmap(-1, size + HUGE_PAGE)
    except OSError as error:
        raise MemoryError(f"no room for {size} bytes") from error
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    first = -whole.data_ptr() % HUGE_PAGE
    # what is left behind whole huge pages stays on small ones, and takes no more than it needs
    with suppress(OSError):  # a system without them
        memory.madvise(mmap.MADV_HUGEPAGE, first, size // HUGE_PAGE * HUGE_PAGE)
    return whole[first : first + size].view(dtype).view(shape)
