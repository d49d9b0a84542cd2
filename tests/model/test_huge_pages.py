"""Memory on huge pages is memory like any other."""

from __future__ import annotations

import gc
import mmap
import re
from pathlib import Path

import pytest
import torch

from kaminari.model import huge_pages


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (1 << 20,), (1 << 20, 1), (3, 1_000_001)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8])
def test_every_value_can_be_written_and_read(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    memory = huge_pages.empty(shape, dtype)
    assert memory.shape == shape
    assert memory.dtype == dtype
    assert memory.is_contiguous()
    assert not memory.any()
    memory.fill_(3)
    assert (memory == 3).all()
    if memory.nbytes >= huge_pages.HUGE_PAGE:
        assert memory.data_ptr() % huge_pages.HUGE_PAGE == 0


def test_a_view_keeps_the_memory() -> None:
    view = huge_pages.empty((1 << 22,), torch.uint8)[-5:]
    gc.collect()
    view.fill_(7)
    assert view.tolist() == [7] * 5


def test_memory_is_private_and_wished_on_huge_pages() -> None:
    """Shared memory, which Python maps by default, stays on small pages whatever is wished."""
    maps = Path("/proc/self/smaps")
    if not maps.exists() or not hasattr(mmap, "MADV_HUGEPAGE"):
        pytest.skip("the system does not say how memory is mapped")
    memory = huge_pages.zeros((4 * huge_pages.HUGE_PAGE,), torch.uint8, torch.device("cpu"))
    flags: list[str] = []
    within = False
    for line in maps.read_text().splitlines():
        if area := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            within = int(area[1], 16) <= memory.data_ptr() < int(area[2], 16)
        elif within and line.startswith("VmFlags:"):
            flags = line.split()
    assert "hg" in flags
    assert "sh" not in flags


def test_other_devices_have_memory_of_their_own() -> None:
    assert huge_pages.zeros((3, 1 << 20), torch.float32, torch.device("meta")).device.type == "meta"


def test_too_much_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="no room for"):
        huge_pages.empty((1 << 46, 1 << 10), torch.uint8)
