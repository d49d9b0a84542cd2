"""What the machine can do at most, measured: how fast it reads memory, multiplies, and reads a file.

Limits are the best of several tries, not medians: a floor that follows from a limit must not be passed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from kaminari.bench.timing import timed
from kaminari.model import huge_pages

TRIES = 3
LEAST_READ, MOST_READ = 1 << 20, 1 << 30
LEAST_SECONDS = 0.002
MULTIPLY_ROWS = 512
MULTIPLY_WIDTHS = (2048, 6144)
FILE_PART = 1 << 24
MOST_FILE = 1 << 29


class Memory:
    """Memory to be read as a step reads its weights: as large, up to 1 GiB and what is free.

    Weights that fit into a cache are read at the cache's speed, and so is this.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, step_bytes: int) -> None:
        self._device = device
        self._matrix = _ones(device, dtype, max(LEAST_READ, min(MOST_READ, step_bytes)))
        self._vector = torch.ones(self._matrix.shape[1], dtype=dtype, device=device)
        self.size = self._matrix.nbytes
        self._ways: tuple[Callable[[Tensor], Tensor], ...] = (self._sum, self._multiply)

    def best_seconds(self) -> float:
        """Of one pass in the faster of two ways that need every byte once; `read` takes that from then on.

        The two are a sum, and a matrix times a vector.
        """
        seconds = {way: _best(partial(way, self._matrix), self._device) for way in self._ways}
        self._ways = tuple(sorted(self._ways, key=seconds.__getitem__))
        return min(seconds.values())

    def read(self, count: int) -> None:
        """Read so many bytes, over and over where there are fewer."""
        read = self._ways[0]
        for _ in range(count // self.size):
            read(self._matrix)
        if rest := count % self.size // self._matrix[0].nbytes:
            read(self._matrix[:rest])

    def _sum(self, part: Tensor) -> Tensor:
        return part.view(-1).view(torch.float32).sum()

    def _multiply(self, part: Tensor) -> Tensor:
        return torch.mv(part, self._vector)


def read_rate(device: torch.device, dtype: torch.dtype, step_bytes: int) -> tuple[float, int]:
    """Bytes per second of reading `Memory`, and how many bytes were read over and over."""
    memory = Memory(device, dtype, step_bytes)
    return memory.size / memory.best_seconds(), memory.size


def _ones(device: torch.device, dtype: torch.dtype, size: int) -> Tensor:
    """A matrix [n, 1024] of so many bytes, or of fewer beside a model that leaves no room for them."""
    columns = 1024
    try:
        return huge_pages.zeros((size // (columns * dtype.itemsize), columns), dtype, device).fill_(1)
    except torch.OutOfMemoryError:
        if size < 2 * LEAST_READ:
            raise
        return _ones(device, dtype, size // 2)


def multiply_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a product as large as those of prefill, in the served dtype."""
    across, down = MULTIPLY_WIDTHS
    weight = torch.randn(down, across, device=device).to(dtype)
    rows = torch.randn(MULTIPLY_ROWS * (8 if device.type == "cuda" else 1), across, device=device).to(dtype)
    seconds = _best(lambda: F.linear(rows, weight), device)
    return 2 * rows.shape[0] * across * down / seconds


def file_rate(file: Path) -> float:
    """Bytes per second of reading a file, or the first 512 MiB of it, from wherever the system has it now."""
    left = min(file.stat().st_size, MOST_FILE)
    read = 0
    began = time.perf_counter()
    with file.open("rb", buffering=0) as handle:
        part = bytearray(FILE_PART)
        while read < left and (got := handle.readinto(part)):
            read += got
    return read / (time.perf_counter() - began)


def forget_file(file: Path) -> bool:
    """Ask the system to drop a file from its cache. False where it cannot be asked."""
    if not hasattr(os, "posix_fadvise"):
        return False
    handle = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
    return True


def _best(work: Callable[[], object], device: torch.device) -> float:
    """The least seconds of one call, over tries that each last long enough to be timed."""
    once = timed(work, device)
    times = max(1, int(LEAST_SECONDS / max(once, 1e-9)))

    def several() -> None:
        for _ in range(times):
            work()

    return min(timed(several, device) / times for _ in range(TRIES))
