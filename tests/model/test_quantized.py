"""What quantized weights mean, by an independent count."""

from __future__ import annotations

import pytest
import torch

from kaminari.model.quantized import Int4Weight, Int8Weight


def test_int8_is_a_code_times_its_rows_scale() -> None:
    weight = Int8Weight(torch.tensor([[1, -127], [0, 5]], dtype=torch.int8), torch.tensor([0.5, 2.0]))
    assert weight.shape == (2, 2)
    assert weight.dequantize().tolist() == [[0.5, -63.5], [0.0, 10.0]]


@pytest.mark.parametrize(("width", "group_size"), [(64, 32), (70, 32), (33, 64), (129, 128)])
def test_int4_is_a_step_from_the_groups_zero(width: int, group_size: int) -> None:
    draw = torch.Generator().manual_seed(width)
    groups = -(-width // group_size)
    codes = torch.randint(0, 16, (3, width), generator=draw)
    scales, zeros = (torch.randn(3, groups, generator=draw).bfloat16() for _ in range(2))
    packed = torch.zeros(3, (width + 1) // 2, dtype=torch.uint8)
    for row in range(3):
        for column in range(width):
            packed[row, column // 2] |= int(codes[row, column]) << (4 * (column % 2))
    weight = Int4Weight(packed, scales, zeros, width, group_size)
    assert weight.shape == (3, width)
    found = weight.dequantize()
    for row in range(3):
        for column in range(width):
            group = column // group_size
            expected = (int(codes[row, column]) - 8) * scales[row, group].float() + zeros[row, group].float()
            assert found[row, column] == expected
