"""The C++ attention of a picture's patches against attention in float64, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kaminari.model.kernels import cpu_attention
from kaminari.model.kernels.native.build import BFLOAT_LEVEL, native_kernels

KERNELS = native_kernels()

pytestmark = pytest.mark.skipif(
    KERNELS.library is None or KERNELS.level != BFLOAT_LEVEL,
    reason=KERNELS.reason or "this CPU does not multiply bfloat16",
)


def patches(places: int, heads: int, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """q and k as a rotation leaves them, v as it lies in a fused projection."""
    generator = torch.Generator().manual_seed(places * head_dim)
    fused = torch.randn(places, 3, heads, head_dim, generator=generator).bfloat16()
    q, k, v = fused.unbind(1)
    return q.contiguous(), k.contiguous(), v


def error_and_bound(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """How far the kernel is from float64, and how far it may be.

    Weights are rounded to bfloat16 before they multiply values, and so is the result; what float32 adds is
    less than a hundredth of that.
    """
    wide = [x.double().transpose(0, 1) for x in (q, k, v)]
    weights = (wide[0] @ wide[1].transpose(1, 2) * scale).softmax(-1)
    wanted = (weights @ wide[2]).transpose(0, 1)
    bound = 1.01 * 2.0**-8 * ((weights @ wide[2].abs()).transpose(0, 1) + wanted.abs())
    return (cpu_attention.attend_all(q, k, v, scale).double() - wanted).abs(), bound


@pytest.mark.parametrize("head_dim", [2, 16, 32, 64, 72, 80, 128, 256])
@pytest.mark.parametrize("places", [1, 2, 31, 127, 128, 129, 300])
def test_all_places_read_all(places: int, head_dim: int) -> None:
    error, bound = error_and_bound(*patches(places, 3, head_dim), head_dim**-0.5)
    assert error.le(bound).all()


def test_the_scale_is_the_callers() -> None:
    error, bound = error_and_bound(*patches(70, 2, 64), 0.3)
    assert error.le(bound).all()


def test_threads_change_no_bit() -> None:
    q, k, v = patches(333, 4, 72)
    torch.set_num_threads(1)
    alone = cpu_attention.attend_all(q, k, v, 0.1)
    for count in (2, 3):
        torch.set_num_threads(count)
        assert torch.equal(cpu_attention.attend_all(q, k, v, 0.1), alone)


def test_nan_stays_visible_in_its_head() -> None:
    q, k, v = patches(140, 2, 64)
    k[130, 1, 5] = torch.nan
    answer = cpu_attention.attend_all(q, k, v, 0.125)
    assert answer[:, 1].isnan().all()
    assert not answer[:, 0].isnan().any()


@pytest.mark.parametrize(
    ("message", "given"),
    [
        ("no kernel", [torch.zeros(4, 2, 64)] * 3),
        ("no kernel", [torch.zeros(4, 2, 63, dtype=torch.bfloat16)] * 3),
        ("no kernel", [torch.zeros(4, 2, 258, dtype=torch.bfloat16)] * 3),
        ("queries of", [torch.zeros(4, 2, 64).bfloat16()] * 2 + [torch.zeros(4, 2, 64)]),
        ("queries of", [torch.zeros(4, 2, 64).bfloat16()] * 2 + [torch.zeros(5, 2, 64).bfloat16()]),
        ("side by side", [torch.zeros(4, 2, 64).bfloat16()] * 2 + [torch.zeros(4, 64, 2).bfloat16().mT]),
    ],
)
def test_what_does_not_fit_is_refused(message: str, given: list[Tensor]) -> None:
    with pytest.raises(ValueError, match=message):
        cpu_attention.attend_all(*given, 1.0)
