"""A stopwatch that waits for the device, and entrants that take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

Entrant = TypeVar("Entrant")


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds that `work` takes until the device is done with it."""
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def turns(entrants: Sequence[Entrant], rounds: int) -> Iterator[Entrant]:
    """Everybody once per round, and another one first each round: what drifts strikes all alike."""
    for number in range(rounds):
        first = number % max(1, len(entrants))
        yield from (*entrants[first:], *entrants[:first])
