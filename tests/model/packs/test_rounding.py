"""Rounding: within half a step, exact where it can be, row by row, and methods keep what they promise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kaminari.model.packs.rounding import Method, pack_nibbles, quantize_int4, quantize_int8
from kaminari.model.quantized import Int4Weight, join_rows

WIDTHS = [64, 96, 70, 33, 1, 129]


def draw(rows: int, width: int, seed: int = 0) -> Tensor:
    """Weights with a few large ones, as trained rows have."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, width, generator=generator)
    return values * torch.where(torch.rand(rows, width, generator=generator) > 0.97, 4.0, 1.0)


def steps(weight: Int4Weight) -> Tensor:
    scales = weight.scales.float().repeat_interleave(weight.group_size, dim=1)
    return scales[:, : weight.in_features]


@pytest.mark.parametrize("width", WIDTHS)
def test_int8_is_within_half_a_step_and_keeps_the_extremes(width: int) -> None:
    rows = draw(5, width)
    weight = quantize_int8(rows)
    assert weight.codes.dtype == torch.int8
    assert weight.scales.dtype == torch.float32
    assert weight.codes.abs().amax(1).tolist() == [127] * 5
    off = (weight.dequantize() - rows).abs()
    assert bool((off <= weight.scales[:, None] * 0.501).all())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_int4_by_range_is_within_half_a_step_and_its_rounded_scales(width: int, group_size: int) -> None:
    rows = draw(5, width)
    weight = quantize_int4(rows, group_size, Method.RTN)
    assert weight.shape == rows.shape
    assert weight.scales.shape == weight.zeros.shape == (5, -(-width // group_size))
    # bfloat16 moves the scale by 2^-9 of itself, over at most 8 steps, and the zero by 2^-9 of its size
    bound = steps(weight) * (0.5 + 15 * 2**-9) + rows.abs().amax() * 2**-8
    assert bool(((weight.dequantize() - rows).abs() <= bound).all())


@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_methods_leave_less_of_the_error_that_they_are_for(group_size: int) -> None:
    rows = draw(64, 256)
    off = {method: (quantize_int4(rows, group_size, method).dequantize() - rows).abs() for method in Method}
    squared = {method: float(each.square().sum()) for method, each in off.items()}
    assert squared[Method.FIT] < 0.95 * squared[Method.RTN]
    assert squared[Method.FIT] < squared[Method.HQQ]
    norm = {method: float(each.pow(0.7).sum()) for method, each in off.items()}
    assert norm[Method.HQQ] < norm[Method.RTN]


@pytest.mark.parametrize("method", Method)
def test_a_row_does_not_depend_on_the_others(method: Method) -> None:
    rows = draw(9, 70)
    whole = quantize_int4(rows, 32, method)
    parts = join_rows([quantize_int4(part, 32, method) for part in rows.split([1, 3, 5])])
    assert isinstance(parts, Int4Weight)
    for name in ("codes", "scales", "zeros"):
        assert torch.equal(getattr(whole, name), getattr(parts, name))


@pytest.mark.parametrize("method", Method)
@pytest.mark.parametrize("value", [0.0, 1.0, -0.5])
def test_a_constant_group_keeps_its_value(method: Method, value: float) -> None:
    rows = torch.full((2, 64), value)
    assert torch.equal(quantize_int4(rows, 32, method).dequantize(), rows)


@pytest.mark.parametrize("method", Method)
def test_sixteen_even_levels_are_exact(method: Method) -> None:
    rows = torch.arange(-8, 8).repeat(3, 4).float() * 0.25
    assert torch.equal(quantize_int4(rows, 32, method).dequantize(), rows)


def test_zeros_stay_zeros_in_int8() -> None:
    weight = quantize_int8(torch.zeros(2, 5))
    assert weight.scales.tolist() == [0.0, 0.0]
    assert torch.equal(weight.dequantize(), torch.zeros(2, 5))


def test_nibbles_of_an_odd_width_end_in_the_middle_code() -> None:
    packed = pack_nibbles(torch.tensor([[1, 2, 15]], dtype=torch.uint8))
    assert packed.tolist() == [[1 | 2 << 4, 15 | 8 << 4]]
