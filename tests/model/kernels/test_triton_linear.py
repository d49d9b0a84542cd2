"""The Triton linears against the dequantized product: on a CPU in Triton's interpreter."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kaminari.model.kernels import linears
from kaminari.model.kernels.dequantizing import DequantizingKernel
from kaminari.model.kernels.linears import linear_kernel, quantized_obstacle, try_linears
from kaminari.model.quantized import Int4Weight, Int8Weight, QuantizedWeight
from tests.model.kernels.quantized_weights import int4_weight, int8_weight
from tests.triton_kernels import triton_kernels

triton_linear = triton_kernels("triton_linear")

pytestmark = pytest.mark.on_device

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Triton's interpreter multiplies bfloat16 as integers
DTYPES = [torch.float32, torch.bfloat16 if torch.cuda.is_available() else torch.float16]
SHAPES = [(16, 128), (48, 64), (5, 32), (33, 100), (17, 129), (40, 31), (16, 1)]


def weights(outputs: int, columns: int) -> list[QuantizedWeight]:
    return [
        int8_weight(outputs, columns),
        *(int4_weight(outputs, columns, group_size) for group_size in (32, 64, 128)),
    ]


def magnitude(weight: QuantizedWeight) -> torch.Tensor:
    """What a product of each weight goes through: for int4 a step and a zero, which may cancel."""
    exact = weight.dequantize().double()
    if isinstance(weight, Int8Weight):
        return exact.abs()
    zeros = weight.zeros.double().repeat_interleave(weight.group_size, dim=1)[:, : weight.in_features]
    return (exact - zeros).abs() + zeros.abs()


def check(weight: QuantizedWeight, x: torch.Tensor) -> None:
    """A sum of n products in float32 is off by n * 2^-24 of their sizes (Higham, 3.1), and the result is
    rounded once to the dtype. Above the kernel's rows the weight is too, and torch sums as it likes."""
    dtype = x.dtype
    found = triton_linear.TritonLinear(weight, DEVICE, dtype).multiply(x.to(DEVICE)).cpu().double()
    exact = weight.dequantize().double()
    expected = F.linear(x.double(), exact)
    epsilon = torch.finfo(dtype).eps
    bound = F.linear(x.double().abs(), magnitude(weight)) * (weight.shape[1] + 8) * 2**-24
    bound += expected.abs() * epsilon
    if x.shape[0] > triton_linear.KERNEL_ROWS:
        bound += F.linear(x.double().abs(), exact.abs()) * epsilon
    assert (found - expected).abs().le(bound).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("outputs", "columns"), SHAPES)
@pytest.mark.parametrize("rows", [1, 3, 16, 17])
def test_the_product_is_that_of_the_dequantized_weight(
    rows: int, outputs: int, columns: int, dtype: torch.dtype
) -> None:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).to(dtype)
    for weight in weights(outputs, columns):
        check(weight, x)


def test_many_rows_dequantize_a_block_of_outputs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_linear, "_DEQUANTIZED_VALUES", 100 * 20)
    seen: list[int] = []
    for kind in (Int8Weight, Int4Weight):
        whole = kind.dequantize

        def watched(self: Any, dtype: torch.dtype, whole: Any = whole) -> torch.Tensor:
            seen.append(self.shape[0])
            dequantized: torch.Tensor = whole(self, dtype)
            return dequantized

        monkeypatch.setattr(kind, "dequantize", watched)
    x = torch.randn(17, 100, generator=torch.Generator().manual_seed(1))
    for weight in weights(41, 100):
        kernel = triton_linear.TritonLinear(weight, DEVICE, torch.float32)
        seen.clear()
        found = kernel.multiply(x.to(DEVICE)).cpu()
        assert seen == [16, 16, 9]
        wanted = F.linear(x, weight.dequantize(torch.float32))
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_a_row_does_not_depend_on_the_others() -> None:
    x = torch.randn(16, 96, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    for weight in weights(40, 96):
        kernel = triton_linear.TritonLinear(weight, DEVICE, torch.float32)
        together = kernel.multiply(x)
        others = x.clone()
        others[1:] = torch.nan
        assert torch.equal(kernel.multiply(x[:1]), together[:1])
        assert torch.equal(kernel.multiply(others)[:1], together[:1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("outputs", "columns"), SHAPES)
def test_rows_are_looked_up_to_the_bit(outputs: int, columns: int, dtype: torch.dtype) -> None:
    tokens = torch.tensor([outputs - 1, 0, 0, outputs // 2])
    for weight in weights(outputs, columns):
        kernel = triton_linear.TritonLinear(weight, DEVICE, dtype)
        found = kernel.look_up(tokens.to(DEVICE)).cpu()
        assert torch.equal(found, weight.dequantize(dtype)[tokens])


def test_rows_that_do_not_fit_are_refused() -> None:
    kernel = triton_linear.TritonLinear(int8_weight(16, 64), DEVICE, torch.float32)
    for x in (torch.ones(2, 63), torch.ones(64), torch.ones(2, 64, dtype=torch.float16)):
        with pytest.raises(ValueError, match=r"the linear takes torch.float32 rows of 64"):
            kernel.multiply(x.to(DEVICE))


def test_each_device_has_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    monkeypatch.setattr(linears, "try_linears", lambda kernel, device, dtype: "")
    assert not quantized_obstacle(cuda, torch.bfloat16)
    assert linear_kernel(torch.ones(2, 2), cuda, torch.float32) is None, "plain torch"
    monkeypatch.setattr(linears, "find_spec", lambda name: None)
    assert quantized_obstacle(cuda, torch.bfloat16) == "Triton is not installed"
    assert linear_kernel(int8_weight(16, 64), cuda, torch.bfloat16) is None
    assert not quantized_obstacle(torch.device("cpu"), torch.bfloat16)
    for device, dtype in ((torch.device("cpu"), torch.float16), (torch.device("mps"), torch.float32)):
        assert "kernels are for the CPU, in torch.bfloat16 and" in quantized_obstacle(device, dtype)


class Faulty(DequantizingKernel):
    """A kernel that does harm where a test asks for it."""

    def __init__(self, harm: str, weight: QuantizedWeight, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(weight.to(device), dtype)
        self.harm = harm

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        if self.harm == "raises":
            raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")
        product = super().multiply(x)
        return product.roll(1, 1) if self.harm == "mixes up outputs" else product


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        ("", "^$"),
        ("raises", "^Failed to find C compiler. Please specify via CC environment variable$"),
        ("mixes up outputs", "^Int8Weight is multiplied wrongly, off by "),
    ],
)
def test_a_card_is_tried_before_a_pack_is_loaded(harm: str, reason: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert re.search(reason, try_linears(partial(Faulty, harm), torch.device("cpu"), dtype))


def test_the_kernels_stand_the_trial_that_a_card_puts_them_to() -> None:
    for dtype in DTYPES:
        assert try_linears(triton_linear.TritonLinear, DEVICE, dtype) == ""


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda_loading_gets_a_kernel_there() -> None:
    kernel = linear_kernel(int8_weight(16, 64), torch.device("cuda"), torch.bfloat16)
    assert kernel is not None
    found = kernel.multiply(torch.ones(2, 64, dtype=torch.bfloat16, device="cuda"))
    assert found.shape == (2, 16)
