"""The float32 linear is the exact product but for what float32 rounds, whatever the call."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kaminari.model.kernels.cpu_linear import BFLOAT_ROWS, FloatLinear, linear_kernel
from kaminari.model.kernels.native.build import native_kernels
from tests.model.kernels.quantized_weights import rounding_bound

pytestmark = pytest.mark.skipif(native_kernels().library is None, reason=native_kernels().reason)

CPU = torch.device("cpu")
SHAPES = [(16, 64), (48, 256), (1, 1), (17, 65), (33, 31), (100, 330), (3000, 130)]


def kernel_of(weight: Tensor) -> FloatLinear:
    kernel = linear_kernel(weight, CPU, torch.float32)
    assert isinstance(kernel, FloatLinear)
    return kernel


@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_exact_but_for_rounding(shape: tuple[int, int]) -> None:
    weight = torch.randn(*shape)
    kernel = kernel_of(weight)
    for rows in [*range(1, BFLOAT_ROWS + 2), 40]:
        x = torch.randn(rows, shape[1])
        exact = x.double() @ weight.double().T
        assert (
            (kernel.multiply(x) - exact).abs() <= rounding_bound(x, weight, exact, torch.float32)
        ).all(), rows


def test_neither_batch_mates_nor_threads_change_a_row() -> None:
    weight = torch.randn(3000, 330)
    kernel = kernel_of(weight)
    x = torch.randn(20, 330)
    alone = torch.cat([kernel.multiply(row[None]) for row in x])
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        for rows in range(1, BFLOAT_ROWS + 1):
            assert torch.equal(kernel.multiply(x[3 : 3 + rows]), alone[3 : 3 + rows]), (count, rows)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_in_its_row(wrong: float) -> None:
    weight = torch.randn(40, 200)
    kernel = kernel_of(weight)
    x = torch.randn(5, 200)
    clean = kernel.multiply(x)
    x[2, 199] = wrong
    found = kernel.multiply(x)
    assert not found[2].isfinite().any()
    assert torch.equal(found[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


def test_rows_of_another_shape_or_dtype() -> None:
    kernel = kernel_of(weight := torch.randn(20, 64))
    for x, message in (
        (torch.randn(2, 63), "rows of 64"),
        (torch.randn(2, 64).bfloat16(), r"takes torch\.float32"),
    ):
        with pytest.raises(ValueError, match=message):
            kernel.multiply(x)
    gaps = torch.randn(2, 128)[:, ::2]
    assert torch.allclose(kernel.multiply(gaps), F.linear(gaps, weight), atol=1e-5)
    assert kernel.multiply(torch.randn(0, 64)).shape == (0, 20)
    with pytest.raises(ValueError, match=r"a weight is a torch\.float32 matrix"):
        linear_kernel(torch.randn(4, 8).bfloat16(), CPU, torch.float32)
