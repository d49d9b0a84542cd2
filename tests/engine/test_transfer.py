"""Small tensors between host and device: the same numbers, and on CUDA nobody waits for the stream."""

from __future__ import annotations

import pytest
import torch

from kaminari.engine.transfer import HostCopy, mark, to_device

CPU = torch.device("cpu")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.mark.parametrize("values", [[3, 1], [[1, 2], [3, 4]], [], torch.tensor([7, 8])])
def test_values_come_over_whole(values: list[int] | torch.Tensor) -> None:
    tensor = to_device(values, torch.int64, CPU)
    assert tensor.dtype == torch.int64
    expected = values.tolist() if isinstance(values, torch.Tensor) else values
    assert tensor.tolist() == HostCopy(tensor).collect() == expected


def test_dtypes_are_the_ones_asked_for() -> None:
    assert to_device([0.1], torch.float64, CPU).item() == 0.1
    assert to_device([True, False], torch.bool, CPU).tolist() == [True, False]


@pytest.mark.cuda
@needs_cuda
def test_on_cuda_a_copy_waits_for_nothing_that_is_queued_behind_it() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    big = torch.randn(8192, 8192, device=device)
    early = HostCopy(torch.arange(5, device=device))
    torch.cuda.synchronize()

    def work() -> None:
        for _ in range(50):
            torch.mm(big, big)

    copy = HostCopy(to_device([1, 2, 3], torch.int64, device) * 2)
    work()
    over = mark(device)
    behind = torch.cuda.current_stream().record_event()
    assert copy.collect() == [2, 4, 6]
    assert not behind.query(), "the copy waited for the work behind it"
    to_device([4], torch.int64, device)
    assert not behind.query(), "a copy to the device waited for the stream"
    over()
    assert behind.query()
    assert early.collect() == [0, 1, 2, 3, 4]
