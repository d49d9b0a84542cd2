"""The C++ norms, rotation and gate product against the plain forms, which are the reference's bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kaminari.model.kernels import cpu_norm
from kaminari.model.kernels.native.build import native_kernels
from kaminari.model.layers import Norm, RMSNorm, ZeroCentredRMSNorm, gate_product
from kaminari.model.rotary import rotate_part

DTYPES = [torch.float32, torch.bfloat16]
NORMS = [RMSNorm, ZeroCentredRMSNorm]
EPS = 1e-6
UNIT = 2.0**-24

pytestmark = pytest.mark.skipif(native_kernels().library is None, reason=native_kernels().reason)


def noise(*shape: int, dtype: torch.dtype, seed: int = 0, scale: float = 3.0) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def norm_of(kind: type[Norm], size: int, dtype: torch.dtype) -> Norm:
    norm = kind(size, EPS)
    norm.weight.data = noise(size, dtype=dtype, seed=1, scale=0.5) + 1
    return norm


def angles(tokens: int, turned: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    turns = noise(tokens, 1, turned // 2, dtype=torch.float32, seed=2, scale=9.0).repeat(1, 1, 2)
    return turns.cos().to(dtype), turns.sin().to(dtype)


def check(ours: Tensor, plain: Tensor, units: float, magnitude: Tensor | None = None) -> None:
    """float32: within so many units of 2**-24 of the magnitude. bfloat16: rounded in the same places, so that
    the two differ only where a float32 error crosses a border of rounding, and then by few steps."""
    assert ours.dtype == plain.dtype
    assert ours.shape == plain.shape
    size = plain.double().abs() if magnitude is None else magnitude.double()
    difference = (ours.double() - plain.double()).abs()
    if ours.dtype == torch.float32:
        assert difference.le(units * UNIT * size).all()
    else:
        assert difference.le(2.0**-6 * size).all()
        assert (ours == plain).double().mean() > 0.99


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("size", [1, 7, 16, 48, 100, 256, 1000, 2048])
def test_norms(kind: type[Norm], size: int, dtype: torch.dtype) -> None:
    norm = norm_of(kind, size, dtype)
    wide = noise(9, size + 5, dtype=dtype)
    for x in (
        wide[:, :size].contiguous(),
        wide[:, :size],
        wide[:1, :size],
        torch.zeros(2, size, dtype=dtype),
    ):
        # both sums of squares are off by at most size units, which the root halves; a few more roundings
        check(norm(x), norm.plain(x), size + 8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", NORMS)
def test_a_norm_behind_a_sum(kind: type[Norm], dtype: torch.dtype) -> None:
    norm = norm_of(kind, 100, dtype)
    x, added = noise(9, 100, dtype=dtype), noise(9, 100, dtype=dtype, seed=5)
    before = x.clone(), added.clone()
    summed, normed = norm.behind(x, added)
    assert torch.equal(summed, x + added)
    assert torch.equal(normed, norm(x + added))
    assert torch.equal(x, before[0])
    assert torch.equal(added, before[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize(
    ("head_dim", "turned"),
    [(16, 16), (16, 4), (32, 32), (80, 80), (128, 128), (256, 64), (256, 256), (20, 6)],
)
def test_turned_heads(kind: type[Norm], head_dim: int, turned: int, dtype: torch.dtype) -> None:
    norm = norm_of(kind, head_dim, dtype)
    cos, sin = angles(5, turned, dtype)
    projected = noise(5, 7, head_dim, dtype=dtype)
    for x in (projected, projected[:, :3], projected[:, 1::2], projected[:, 6:]):
        ours = norm.turned(x, cos, sin)
        plain = norm.plain(x)
        first, second = plain[..., :turned].abs().chunk(2, dim=-1)
        reach = torch.cat(((first + second).repeat(1, 1, 2), plain[..., turned:].abs()), dim=-1)
        check(ours, rotate_part(plain, cos, sin), head_dim + 16, reach)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 15, 16, 80, 2047, 2048, 6144])
def test_the_gate_product(width: int, dtype: torch.dtype) -> None:
    for rows in (1, 3):
        both = noise(rows, 2 * width, dtype=dtype, seed=width, scale=8.0)
        both[0, 0] = -200.0
        check(cpu_norm.swiglu(both), gate_product(both.clone()), 12, both[:, width:].abs() * 40)


@pytest.mark.parametrize("dtype", DTYPES)
def test_neither_other_rows_nor_threads_change_a_bit(dtype: torch.dtype) -> None:
    norm = norm_of(RMSNorm, 512, dtype)
    cos, sin = angles(64, 128, dtype)
    x, heads = noise(64, 512, dtype=dtype), noise(64, 4, 128, dtype=dtype)
    head_norm = norm_of(RMSNorm, 128, dtype)
    forms: list[Callable[[slice], Tensor]] = [
        lambda rows: norm(x[rows]),
        lambda rows: norm.behind(x[rows], x.flip(0)[rows])[1],
        lambda rows: head_norm.turned(heads[rows], cos[rows], sin[rows]),
        lambda rows: cpu_norm.swiglu(x[rows]),
    ]
    for form in forms:
        torch.set_num_threads(1)
        alone = torch.cat([form(slice(row, row + 1)) for row in range(64)])
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(form(slice(None)), alone)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_a_number_stays_one(dtype: torch.dtype) -> None:
    norm = norm_of(RMSNorm, 48, dtype)
    x = noise(3, 48, dtype=dtype)
    x[1, 47] = torch.nan
    assert norm(x)[1].isnan().all()
    assert not norm(x)[[0, 2]].isnan().any()
    assert cpu_norm.swiglu(x)[1, 23].isnan()
    assert norm.turned(x[:, None], *angles(3, 48, dtype))[1].isnan().all()


def test_nothing_is_read_behind_a_tensor_or_between_its_rows() -> None:
    norm = norm_of(RMSNorm, 21, torch.float32)
    poisoned = torch.full((4, 40), torch.nan)
    poisoned[:, :21] = noise(4, 21, dtype=torch.float32)
    x = poisoned[:, :21]
    assert torch.equal(norm(x), norm(x.contiguous()))
    assert torch.equal(norm.behind(x, x)[1], norm.behind(x.contiguous(), x.contiguous())[1])


def test_other_dtypes_devices_and_layouts_go_to_torch() -> None:
    norm = RMSNorm(8, EPS).to(torch.float64)
    norm.weight.data.normal_()
    x = torch.randn(3, 8, dtype=torch.float64)
    assert torch.equal(norm(x), norm.plain(x))
    assert not cpu_norm.fits(x)
    assert not cpu_norm.fits(torch.empty(3, 8, device="meta"))
    assert not cpu_norm.fits(torch.empty(8, 3).t())
    wide = norm_of(RMSNorm, 260, torch.float32)
    heads, turn = noise(2, 3, 260, dtype=torch.float32), angles(2, 260, torch.float32)
    assert torch.equal(wide.turned(heads, *turn), rotate_part(wide.plain(heads), *turn))


def test_what_does_not_fit_together_is_refused() -> None:
    x, weight = torch.ones(3, 8), torch.ones(8)
    heads, (cos, sin) = torch.ones(3, 2, 8), angles(3, 8, torch.float32)
    refused: list[tuple[str, Callable[[], object]]] = [
        ("weight", lambda: cpu_norm.rms_norm(x, torch.ones(7), EPS, centred=False)),
        ("weight", lambda: cpu_norm.rms_norm(x, torch.ones(16)[::2], EPS, centred=False)),
        ("bfloat16", lambda: cpu_norm.rms_norm(x, weight.bfloat16(), EPS, centred=False)),
        ("float16", lambda: cpu_norm.rms_norm(x.half(), weight.half(), EPS, centred=False)),
        ("cannot be added", lambda: cpu_norm.add_rms_norm(x, x[:2], weight, EPS, centred=False)),
        ("bfloat16|float32", lambda: cpu_norm.add_rms_norm(x, x.bfloat16(), weight, EPS, centred=False)),
        ("angles", lambda: cpu_norm.turn(heads, weight, EPS, cos[:2], sin[:2], centred=False)),
        ("angles", lambda: cpu_norm.turn(heads, weight, EPS, cos, sin[..., :6], centred=False)),
        ("turn", lambda: cpu_norm.turn(heads, weight, EPS, cos[..., :7], sin[..., :7], centred=False)),
        ("turn", lambda: cpu_norm.turn(heads, weight, EPS, *angles(3, 10, torch.float32), centred=False)),
        ("no kernel", lambda: cpu_norm.turn(heads, weight, EPS, cos.double(), sin, centred=False)),
        ("columns", lambda: cpu_norm.swiglu(torch.ones(3, 7))),
        ("no kernel", lambda: cpu_norm.swiglu(torch.ones(3, 8).half())),
    ]
    for message, call in refused:
        with pytest.raises(ValueError, match=message):
            call()
