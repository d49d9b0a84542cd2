"""Rounding: within half a step, exact where it can be, row by row, and methods keep what they promise."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kaminari.model.packs.gptq import feedback, quantize_int4_by
from kaminari.model.packs.rounding import Method, pack_nibbles, quantize_int4, quantize_int8
from kaminari.model.quantized import GatheredRows, Int4Weight, QuantizedWeight

BY_WEIGHTS = [Method.RTN, Method.HQQ, Method.FIT]
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
    off = {
        method: (quantize_int4(rows, group_size, method).dequantize() - rows).abs() for method in BY_WEIGHTS
    }
    squared = {method: float(each.square().sum()) for method, each in off.items()}
    assert squared[Method.FIT] < 0.95 * squared[Method.RTN]
    assert squared[Method.FIT] < squared[Method.HQQ]
    norm = {method: float(each.pow(0.7).sum()) for method, each in off.items()}
    assert norm[Method.HQQ] < norm[Method.RTN]


def joined(whole: QuantizedWeight, parts: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Rows one behind the other that are to be as many as those of `whole`."""
    gathered = GatheredRows(whole.kind)
    first_row = 0
    for part in parts:
        gathered.put(first_row, part)
        first_row += part.shape[0]
    assert first_row == whole.shape[0]
    return gathered.weight


@pytest.mark.parametrize("method", BY_WEIGHTS)
def test_a_row_does_not_depend_on_the_others(method: Method) -> None:
    rows = draw(9, 70)
    whole = quantize_int4(rows, 32, method)
    parts = joined(whole, [quantize_int4(part, 32, method) for part in rows.split([1, 3, 5])])
    assert isinstance(parts, Int4Weight)
    for name in ("codes", "scales", "zeros"):
        assert torch.equal(getattr(whole, name), getattr(parts, name))


@pytest.mark.parametrize("method", BY_WEIGHTS)
@pytest.mark.parametrize("value", [0.0, 1.0, -0.5])
def test_a_constant_group_keeps_its_value(method: Method, value: float) -> None:
    rows = torch.full((2, 64), value)
    assert torch.equal(quantize_int4(rows, 32, method).dequantize(), rows)


@pytest.mark.parametrize("method", BY_WEIGHTS)
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


def inputs(width: int) -> Tensor:
    """Rows [n, width] that a few directions explain for the most part, as those of trained models."""
    generator = torch.Generator().manual_seed(1)
    directions = torch.randn(max(1, width // 4), width, generator=generator)
    strengths = torch.randn(4 * width, directions.shape[0], generator=generator)
    return strengths @ directions + 0.3 * torch.randn(4 * width, width, generator=generator)


def moments(rows: Tensor) -> Tensor:
    return rows.T @ rows / rows.shape[0]


@pytest.mark.parametrize("width", [64, 129, 256, 70, 33])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_gptq_changes_products_less_and_weights_more(width: int, group_size: int) -> None:
    rows, seen, unseen = draw(48, width), inputs(width)[::2], inputs(width)[1::2]
    weight = quantize_int4_by(rows, group_size, feedback(moments(seen)))
    fit = quantize_int4(rows, group_size, Method.FIT)
    assert torch.equal(weight.scales, fit.scales)
    assert torch.equal(weight.zeros, fit.zeros)
    off, plain = weight.dequantize() - rows, fit.dequantize() - rows
    assert off.norm() > plain.norm()
    assert (unseen @ off.T).norm() < 0.8 * (unseen @ plain.T).norm()


def test_gptq_rounds_to_nearest_where_inputs_say_nothing_of_each_other() -> None:
    rows = draw(9, 96)
    weight = quantize_int4_by(rows, 32, feedback(torch.eye(96) * 3))
    assert torch.equal(weight.codes, quantize_int4(rows, 32, Method.FIT).codes)


def test_gptq_rows_do_not_depend_on_the_others() -> None:
    rows, known = draw(40, 160), feedback(moments(inputs(160)))
    whole = quantize_int4_by(rows, 64, known)
    parts = joined(whole, [quantize_int4_by(part, 64, known) for part in rows.split([1, 32, 7])])
    # a product of matrices may sum in another order, and a code that lies between two may then go either way
    assert (whole.codes == parts.codes).float().mean() > 0.99


def test_gptq_takes_columns_that_are_never_used() -> None:
    seen = inputs(64)
    seen[:, 5:40] = 0
    weight = quantize_int4_by(draw(5, 64), 32, feedback(moments(seen)))
    assert torch.equal(
        weight.dequantize()[:, 5:40], quantize_int4(draw(5, 64), 32, Method.FIT).dequantize()[:, 5:40]
    )


@pytest.mark.parametrize("wrong", [torch.zeros(4, 4), torch.full((4, 4), torch.nan)])
def test_moments_of_nothing_are_refused(wrong: Tensor) -> None:
    with pytest.raises(ValueError, match="zero or not finite"):
        feedback(wrong)
