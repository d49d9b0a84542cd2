"""The machine's limits: rates of what was really read and multiplied."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kaminari.bench import limits
from kaminari.bench.limits import file_rate, forget_file, multiply_rate, read_rate
from kaminari.model import huge_pages

CPU = torch.device("cpu")


@pytest.fixture
def _a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call takes as long."""

    def timed(work: object, device: torch.device) -> float:
        assert callable(work)
        work()
        return 0.001

    monkeypatch.setattr(limits, "timed", timed)
    monkeypatch.setattr(limits, "LEAST_SECONDS", 0.001)


@pytest.mark.usefixtures("_a_millisecond")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reading_is_over_what_a_step_reads(dtype: torch.dtype) -> None:
    rate, size = read_rate(CPU, dtype, 3 << 20)
    assert size == 3 << 20
    assert rate == pytest.approx(size / 0.001)
    assert read_rate(CPU, dtype, 10)[1] == limits.LEAST_READ


@pytest.mark.usefixtures("_a_millisecond")
def test_less_is_read_where_a_model_leaves_less_room(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = huge_pages.zeros

    def full(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if shape[0] * shape[1] * 4 > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return zeros(shape, dtype, device)

    monkeypatch.setattr(huge_pages, "zeros", full)
    room = 3 << 20
    assert read_rate(CPU, torch.float32, 8 << 20)[1] == 2 << 20
    room = 1 << 19
    with pytest.raises(torch.OutOfMemoryError):
        read_rate(CPU, torch.float32, 8 << 20)


@pytest.mark.usefixtures("_a_millisecond")
def test_multiplying_counts_two_operations_per_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MULTIPLY_ROWS", 4)
    monkeypatch.setattr(limits, "MULTIPLY_WIDTHS", (8, 16))
    assert multiply_rate(CPU, torch.float32) == pytest.approx(2 * 4 * 8 * 16 / 0.001)


def test_a_file_is_read_and_can_be_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(1 << 20))
    assert file_rate(file) > 0
    forget_file(file)
    assert file.read_bytes() == bytes(1 << 20)
