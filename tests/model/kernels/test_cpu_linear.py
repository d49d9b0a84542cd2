"""Every kernel equals the product with the dequantized weight within what it may round, whatever the call."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from kaminari.model.kernels import aten_linear, cpu_linear
from kaminari.model.kernels.cpu_linear import (
    BFLOAT_ROWS,
    BFloatLinear,
    PanelLinear,
    begin_panels,
    linear_kernel,
)
from kaminari.model.kernels.cpu_panels import GROUP_SIZES
from kaminari.model.kernels.dequantizing import DequantizingKernel
from kaminari.model.kernels.linears import WholeFilling, begin_kernel
from kaminari.model.kernels.native.build import LEVELS, allow_native, foreseen_word, native_kernels
from kaminari.model.linear import LinearKernel, TableKernel
from kaminari.model.quantized import Int4Weight, Int8Weight, QuantizedShape, QuantizedWeight
from tests.model.kernels.quantized_weights import (
    INT8_GROUP,
    activation_bound,
    int4_weight,
    int8_weight,
    quantized_rows,
    rounding_bound,
)

CPU = torch.device("cpu")
# outputs and columns: whole panels and lines, and neither
SHAPES = [(16, 64), (48, 256), (1, 1), (17, 65), (33, 31), (100, 330), (35, 130)]
ROW_COUNTS = [*range(1, 18), 40]
DTYPES = [torch.bfloat16, torch.float32]


@pytest.fixture(scope="session")
def needs_native() -> None:
    if native_kernels().library is None:
        pytest.skip(native_kernels().word)


def rows_of(count: int, columns: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    spread = torch.rand(count, 1, generator=draw) * 10
    return (torch.randn(count, columns, generator=draw) * spread).to(dtype)


def quantized(kind: str, outputs: int, columns: int) -> tuple[Int8Weight | Int4Weight, int]:
    """A weight, and the columns that its activations are quantized in."""
    if kind == "int8":
        return int8_weight(outputs, columns), INT8_GROUP
    group_size = int(kind.removeprefix("int4-"))
    return int4_weight(outputs, columns, group_size), group_size


def kernel_of(weight: Tensor | Int8Weight | Int4Weight, dtype: torch.dtype) -> LinearKernel:
    kernel = linear_kernel(weight, CPU, dtype)
    assert kernel is not None
    return kernel


KINDS = ["int8", *(f"int4-{size}" for size in GROUP_SIZES)]


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_quantized_products_are_those_of_the_plain_form(
    shape: tuple[int, int], kind: str, dtype: torch.dtype
) -> None:
    weight, group = quantized(kind, *shape)
    plain = weight.dequantize()
    kernel = kernel_of(weight, dtype)
    assert isinstance(kernel, PanelLinear)
    for rows in ROW_COUNTS:
        x = rows_of(rows, shape[1], dtype)
        found = kernel.multiply(x)
        assert found.dtype == dtype
        exact = x.double() @ plain.double().T
        rounding = rounding_bound(x, plain, exact, dtype)
        error = (found - exact).abs()
        assert (error <= activation_bound(x, plain, group) * (1 + 2**-10) + rounding).all()
        # and beside activations that are quantized the same way nothing but rounding is left
        as_seen = quantized_rows(x, group)
        exact = as_seen.double() @ plain.double().T
        assert ((found - exact).abs() <= rounding_bound(as_seen, plain, exact, dtype)).all()


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize("shape", [*SHAPES, (50, 4200)])
def test_bfloat16_products_are_exact_but_for_rounding(shape: tuple[int, int]) -> None:
    weight = rows_of(*shape, torch.bfloat16, seed=2)
    kernel = linear_kernel(weight, CPU, torch.bfloat16)
    if cpu_linear.native_kernels().level == "portable":
        assert kernel is None
        return
    assert isinstance(kernel, BFloatLinear)
    for rows in [*range(1, BFLOAT_ROWS + 2), 40]:
        x = rows_of(rows, shape[1], torch.bfloat16)
        found = kernel.multiply(x)
        exact = x.double() @ weight.double().T
        assert ((found - exact).abs() <= rounding_bound(x, weight, exact, torch.bfloat16)).all()


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize("kind", [*KINDS, "bfloat16"])
def test_neither_batch_mates_nor_threads_change_a_row(kind: str) -> None:
    # bfloat16 columns are cut into parts, and its rows into bands and tiles that depend on their number
    outputs, columns = 1000, 4200 if kind == "bfloat16" else 330
    weight = (
        rows_of(outputs, columns, torch.bfloat16, seed=2)
        if kind == "bfloat16"
        else quantized(kind, outputs, columns)[0]
    )
    kernel = linear_kernel(weight, CPU, torch.bfloat16)
    if kernel is None:
        pytest.skip(native_kernels().word)
    x = rows_of(40, columns, torch.bfloat16)
    alone = torch.cat([kernel.multiply(row[None]) for row in x])
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for rows in range(1, BFLOAT_ROWS + 1):
            assert torch.equal(kernel.multiply(x[3 : 3 + rows]), alone[3 : 3 + rows]), (threads, rows)
        if kind != "bfloat16":
            assert torch.equal(kernel.multiply(x), alone)


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize("level", ["avx2", "portable"])
def test_every_level_gives_the_same_bits(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = native_kernels().level
    if list(LEVELS).index(level) <= list(LEVELS).index(own):
        pytest.skip(f"{own} is this machine's best")
    x = rows_of(9, 330, torch.bfloat16)
    weights = {kind: quantized(kind, 100, 330)[0] for kind in KINDS}
    expected = {kind: kernel_of(weight, x.dtype).multiply(x) for kind, weight in weights.items()}
    lesser = native_kernels(level)
    assert lesser.word == f"native {level}"
    monkeypatch.setattr(cpu_linear, "native_kernels", lambda: lesser)
    for kind, weight in weights.items():
        assert torch.equal(kernel_of(weight, x.dtype).multiply(x), expected[kind]), kind
    if level == "avx2":
        test_bfloat16_products_are_exact_but_for_rounding((35, 130))


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize("kind", [*KINDS, "bfloat16"])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_in_its_row_and_is_seen(kind: str, wrong: float) -> None:
    outputs, columns = 40, 200
    weight = (
        rows_of(outputs, columns, torch.bfloat16, seed=2)
        if kind == "bfloat16"
        else quantized(kind, outputs, columns)[0]
    )
    kernel = linear_kernel(weight, CPU, torch.bfloat16)
    if kernel is None:
        pytest.skip(native_kernels().word)
    x = rows_of(5, columns, torch.bfloat16)
    clean = kernel.multiply(x)
    for column in (0, 70, 199):
        spoilt = x.clone()
        spoilt[2, column] = wrong
        found = kernel.multiply(spoilt)
        assert not found[2].isfinite().any()
        others = [0, 1, 3, 4]
        assert torch.equal(found[others], clean[others])


@pytest.mark.usefixtures("needs_native")
def test_a_row_alone_rounds_what_is_tiny_or_no_number_as_many_do() -> None:
    kernel = linear_kernel(torch.ones(20, 64, dtype=torch.bfloat16), CPU, torch.bfloat16)
    if kernel is None:
        pytest.skip(native_kernels().word)
    x = torch.zeros(6, 64, dtype=torch.bfloat16)
    x[0, [0, 2]] = torch.tensor([1.5, -1.25]).bfloat16() * 2.0**-126  # sums to less than what is normal
    x[1, [0, 2]] = torch.tensor([float("inf"), float("-inf")]).bfloat16()
    x[2, 5], x[3, 5], x[4, 5] = float("nan"), -float("nan"), float("inf")
    alone = torch.cat([kernel.multiply(row[None]) for row in x])
    assert alone[1:4].isnan().all()
    for rows in (2, 5, 6):
        assert torch.equal(kernel.multiply(x[:rows]).view(torch.int16), alone[:rows].view(torch.int16)), rows


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize("kind", KINDS)
def test_zero_tiny_and_huge_rows(kind: str) -> None:
    weight, group = quantized(kind, 20, 100)
    kernel = kernel_of(weight, torch.float32)
    plain = weight.dequantize()
    for size in (0.0, 1e-40, 1e-31, 1e-20, 1e30):
        x = rows_of(3, 100, torch.float32) * size
        exact = x.double() @ plain.double().T
        slack = activation_bound(x, plain, group) + rounding_bound(x, plain, exact, torch.float32)
        # below 1e-30 a group counts as zero
        slack = slack * (1 + 2**-10) + 1e-30 * plain.abs().sum(dim=1)
        assert ((kernel.multiply(x) - exact).abs() <= slack).all(), size


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize("kind", [*KINDS, "bfloat16"])
def test_rows_of_another_shape_dtype_or_layout(kind: str) -> None:
    weight = rows_of(20, 64, torch.bfloat16) if kind == "bfloat16" else quantized(kind, 20, 64)[0]
    kernel = linear_kernel(weight, CPU, torch.bfloat16)
    if kernel is None:
        pytest.skip(native_kernels().word)
    x = rows_of(4, 128, torch.bfloat16)[:, ::2]
    assert torch.equal(kernel.multiply(x), kernel.multiply(x.contiguous()))
    assert kernel.multiply(x[:0]).shape == (0, 20)
    with pytest.raises(ValueError, match="rows of 64"):
        kernel.multiply(rows_of(1, 63, torch.bfloat16))
    with pytest.raises(ValueError, match="float32"):
        kernel.multiply(rows_of(1, 64, torch.float32))
    with pytest.raises(ValueError, match="meta"):
        kernel.multiply(torch.empty(1, 64, dtype=torch.bfloat16, device="meta"))


@pytest.mark.usefixtures("needs_native")
def test_the_library_refuses_more_rows_than_it_holds() -> None:
    weight, x = rows_of(20, 64, torch.bfloat16), rows_of(BFLOAT_ROWS + 1, 64, torch.bfloat16)
    out = torch.full((BFLOAT_ROWS + 1, 20), 7.0, dtype=torch.bfloat16)
    library = native_kernels().library
    assert library is not None
    pointers = (weight.data_ptr(), 64, 20, x.data_ptr(), out.data_ptr())
    assert library.kaminari_bfloat_linear(*pointers, BFLOAT_ROWS + 1) == 1
    assert (out == 7).all()
    assert library.kaminari_bfloat_linear(*pointers, BFLOAT_ROWS) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [*SHAPES, (48, 384)])
def test_aten_quantizes_weights_alone(shape: tuple[int, int], kind: str, dtype: torch.dtype) -> None:
    weight, _ = quantized(kind, *shape)
    plain = weight.dequantize()
    kernel = aten_linear.quantized_kernel(weight, dtype)
    assert isinstance(kernel, DequantizingKernel)
    for rows in (1, 5, 16, 17):
        x = rows_of(rows, shape[1], dtype)
        exact = x.double() @ plain.double().T
        # torch may round each weight to the dtype before it multiplies, and a sum before it is scaled
        weights = (x.double().abs() @ plain.double().abs().T) * 2 * torch.finfo(dtype).eps
        assert ((kernel.multiply(x) - exact).abs() <= rounding_bound(x, plain, exact, dtype) + weights).all()


def tables(weight: Int8Weight, dtype: torch.dtype) -> list[TableKernel]:
    """The kernels of an int8 weight here: our own, where it is built, and aten's."""
    kernels = [kernel_of(weight, dtype), aten_linear.quantized_kernel(weight, dtype)]
    found = [kernel for kernel in kernels if isinstance(kernel, TableKernel)]
    assert len(found) == len(kernels)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (48, 384)])
def test_rows_are_looked_up_to_the_bit(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = int8_weight(*shape)
    plain = weight.dequantize(dtype)
    tokens = torch.cat([torch.arange(shape[0]), torch.tensor([shape[0] - 1, 0, 0])])
    for kernel in tables(weight, dtype):
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert torch.equal(kernel.look_up(tokens), plain[tokens])
        assert torch.equal(kernel.look_up(tokens[::2]), plain[tokens[::2]])
        assert kernel.look_up(tokens[:0]).shape == (0, shape[1])


@pytest.mark.parametrize("token", [-1, 20, 1 << 40])
def test_a_token_that_is_no_row(token: int) -> None:
    for kernel in tables(int8_weight(20, 64), torch.bfloat16):
        with pytest.raises(IndexError):
            kernel.look_up(torch.tensor([0, token]))


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize("tokens", [torch.tensor([1], dtype=torch.int32), torch.tensor([[1]])])
def test_tokens_of_another_shape_or_dtype(tokens: Tensor) -> None:
    kernel = kernel_of(int8_weight(20, 64), torch.bfloat16)
    assert isinstance(kernel, TableKernel)
    with pytest.raises(ValueError, match=r"tokens are int64 \[n\]"):
        kernel.look_up(tokens)


def test_where_torch_is_to_multiply() -> None:
    weight = rows_of(16, 64, torch.float16)
    assert linear_kernel(weight, CPU, torch.float16) is None
    assert linear_kernel(int8_weight(16, 64), torch.device("cuda"), torch.bfloat16) is None


def test_no_library_means_aten() -> None:
    allow_native(False)
    try:
        assert linear_kernel(rows_of(16, 64, torch.bfloat16), CPU, torch.bfloat16) is None
        kernel = linear_kernel(int8_weight(16, 64), CPU, torch.bfloat16)
        assert isinstance(kernel, aten_linear.AtenInt8Linear)
        assert native_kernels().word == "aten (switched off)" == foreseen_word(False)
    finally:
        allow_native(True)


def test_bytes_are_those_of_the_layout() -> None:
    int8 = kernel_of(int8_weight(32, 128), torch.bfloat16)
    assert int8.nbytes == 32 * 128 + 32 * 4
    int4 = linear_kernel(int4_weight(32, 128, 64), CPU, torch.bfloat16)
    if isinstance(int4, PanelLinear):
        assert int4.nbytes == 32 * 128 // 2 + 32 * 2 * 4
    matrix = linear_kernel(rows_of(32, 128, torch.bfloat16), CPU, torch.bfloat16)
    assert matrix is None or matrix.nbytes == 32 * 128 * 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("outputs", "columns"), [(100, 330), (64, 256), (35, 65), (1, 1)])
def test_rows_may_come_in_pieces_in_any_order_and_on_any_thread(
    kind: str, native: bool, outputs: int, columns: int
) -> None:
    weight, _ = quantized(kind, outputs, columns)
    x = rows_of(3, columns, torch.bfloat16)
    allow_native(native)
    try:
        whole = linear_kernel(weight, CPU, torch.bfloat16)
        filling = begin_kernel(weight.kind, CPU, torch.bfloat16)
        assert not native or isinstance(filling, WholeFilling) is (native_kernels().library is None)
        starts = sorted({0, *range(1, outputs, 31), outputs})
        pieces = list(pairwise(starts))[::-1]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda ends: filling.put(ends[0], weight.rows(*ends)), pieces))
        pieced = filling.kernel()
    finally:
        allow_native(True)
    assert whole is not None
    assert pieced is not None
    assert pieced.nbytes == whole.nbytes
    assert torch.equal(pieced.multiply(x), whole.multiply(x))


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize(
    ("kind", "first_row", "rows", "message"),
    [
        (QuantizedShape((8, 64), None), 5, int8_weight(4, 64), "rows 5 to 9 of a weight of 8"),
        (QuantizedShape((8, 64), None), -1, int8_weight(4, 64), "rows -1 to 3"),
        (QuantizedShape((8, 64), None), 0, int8_weight(4, 63), "for a weight of"),
        (QuantizedShape((8, 64), None), 0, int4_weight(4, 64, 32), "for a weight of"),
        (QuantizedShape((8, 64), 32), 0, int8_weight(4, 64), "for a weight of"),
        (QuantizedShape((8, 64), 32), 0, int4_weight(4, 64, 64), "for a weight of"),
        (QuantizedShape((8, 64), 32), 5, int4_weight(4, 64, 32), "rows 5 to 9 of a weight of 8"),
    ],
)
def test_rows_of_another_weight_are_refused(
    kind: QuantizedShape, first_row: int, rows: QuantizedWeight, message: str
) -> None:
    filling = begin_panels(kind, torch.bfloat16)
    assert filling is not None
    with pytest.raises(ValueError, match=message):
        filling.put(first_row, rows)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (QuantizedShape((4, 64), 16), "a group of 16"),
        (QuantizedShape((0, 64), None), "a weight of 0 x 64"),
        (QuantizedShape((4, 0), 32), "a weight of 4 x 0"),
    ],
)
@pytest.mark.usefixtures("needs_native")
def test_weights_that_cannot_be_begun(kind: QuantizedShape, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        begin_panels(kind, torch.bfloat16)


def test_impossible_weights_are_refused() -> None:
    good, four = int8_weight(4, 8), int4_weight(4, 64, 32)
    refused: list[tuple[Tensor | Int8Weight | Int4Weight, str]] = [
        (Int8Weight(good.codes.int(), good.scales), "codes are torch.int8"),
        (Int8Weight(good.codes, good.scales[:3]), "scales are torch.float32"),
        (Int8Weight(good.codes[:0], good.scales[:0]), "a weight of 0 x 8"),
        (Int4Weight(four.codes, four.scales, four.zeros, 64, 16), "a group of 16"),
        (Int4Weight(four.codes, four.scales, four.zeros, 64, 64), "scales are"),
        (Int4Weight(four.codes, four.scales, four.zeros[:, :1], 64, 32), "zeros are"),
        (Int4Weight(four.codes, four.scales, four.zeros, 60, 32), "codes are torch.uint8"),
        (torch.zeros(4, 8, 2, dtype=torch.bfloat16), "a weight is a torch.bfloat16 matrix"),
        (torch.zeros(4, 8), "a weight is a torch.bfloat16 matrix"),
        (torch.zeros(8, 4, dtype=torch.bfloat16).T, "one behind the other"),
    ]
    for weight, message in refused:
        with pytest.raises(ValueError, match=message):
            linear_kernel(weight, CPU, torch.bfloat16)
