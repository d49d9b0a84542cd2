"""Small tensors between host and device, without the host waiting for what the device still has to do.

On CUDA a copy from or to ordinary memory waits for the whole stream. Pinned memory does not: a copy to the
device is queued and forgotten, a copy to the host is queued and awaited by its own event alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def to_device(values: Sequence[Any] | Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the values as a tensor on the device; on CUDA the copy is only queued."""
    if device.type != "cuda":
        return torch.as_tensor(values, dtype=dtype, device=device)
    return torch.as_tensor(values, dtype=dtype).pin_memory().to(device, non_blocking=True)


class HostCopy:
    """A tensor on its way to the host. Work that is queued after it does not delay it."""

    def __init__(self, tensor: Tensor) -> None:
        """The tensor may be written anew afterwards."""
        self._values: list[Any] | None = None
        if not tensor.is_cuda:
            self._values = tensor.tolist()
            return
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._wait = mark(tensor.device)

    def collect(self) -> list[Any]:
        """Wait until it is there; return nested lists of numbers."""
        if self._values is None:
            self._wait()
            self._values = self._host.tolist()
        return self._values


def mark(device: torch.device) -> Callable[[], None]:
    """Return what waits for all that is queued on a CUDA device now."""
    wait: Callable[[], None] = torch.cuda.current_stream(device).record_event().synchronize
    return wait
