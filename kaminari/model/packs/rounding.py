"""From rows of a weight to codes and scales. Works in float32, row by row: no result depends on other rows,
on how the rows were cut into blocks, or on the thread count.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import torch
from torch import Tensor

from kaminari.model.quantized import INT4_MIDDLE, Int4Weight, Int8Weight

INT8_MOST = 127
INT4_MOST = 15
HQQ_ROUNDS = 20
HQQ_NORM = 0.7
HQQ_BETA = 10.0
HQQ_KAPPA = 1.01
FIT_ROUNDS = 6
# Widths of a group's grid, as shares of its range: past the middle, cutting off the extremes costs more.
FIT_WIDTHS = (1.0, 0.88, 0.76)


class Method(StrEnum):
    """How an int4 weight gets its scales and codes.

    rtn takes a group's range, hqq and fit what leaves less error of weights; gptq takes the scales of fit,
    and codes that leave less error of products (`kaminari.model.packs.gptq`).
    """

    RTN = "rtn"
    HQQ = "hqq"
    FIT = "fit"
    GPTQ = "gptq"


def quantize_int8(rows: Tensor) -> Int8Weight:
    """Round rows [n, width] to the nearest of 255 levels that are symmetric around zero."""
    rows = rows.float()
    scales = rows.abs().amax(1) / INT8_MOST
    codes = _divide(rows, scales[:, None]).round_().clamp_(-INT8_MOST, INT8_MOST)
    return Int8Weight(codes.to(torch.int8), scales)


def quantize_int4(rows: Tensor, group_size: int, method: Method) -> Int4Weight:
    """Round rows [n, width] to the nearest of sixteen levels per group of columns."""
    rows = rows.float()
    width = rows.shape[1]
    scales, zeros = choose_levels(rows, group_size, method)
    steps, lifts = (each.float().repeat_interleave(group_size, dim=1)[:, :width] for each in (scales, zeros))
    codes = _codes(rows, steps, lifts).to(torch.uint8)
    return Int4Weight(pack_nibbles(codes), scales, zeros, width, group_size)


def choose_levels(rows: Tensor, group_size: int, method: Method) -> tuple[Tensor, Tensor]:
    """Scales and zeros of float32 rows [n, width]: bfloat16 [n, ceil(width / group_size)]."""
    whole = rows.shape[1] - rows.shape[1] % group_size
    choose = _CHOOSE[method]
    parts = []
    if whole:
        parts.append(choose(rows[:, :whole].reshape(rows.shape[0], -1, group_size)))
    if whole < rows.shape[1]:
        parts.append(choose(rows[:, None, whole:]))
    scales, zeros = (torch.cat(each, dim=1).bfloat16() for each in zip(*parts, strict=True))
    return scales, zeros


def pack_nibbles(codes: Tensor) -> Tensor:
    """uint8 codes [n, width] below 16 -> [n, ceil(width / 2)], the even column in the low nibble."""
    if codes.shape[1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1), value=INT4_MIDDLE)
    return codes[:, 0::2] | codes[:, 1::2] << 4


def _codes(values: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """The nearest code of each value, whose scale and zero stand at its place."""
    return (_divide(values - zeros, scales).round_() + INT4_MIDDLE).clamp_(0, INT4_MOST)


def _by_range(groups: Tensor, width: float = 1.0) -> tuple[Tensor, Tensor]:
    """The levels spread evenly over `width` of each group's range, around its middle."""
    least, most = groups.aminmax(dim=-1)
    scales = (most - least) * (width / INT4_MOST)
    middle = (most + least) / 2
    return scales, middle + scales * (INT4_MIDDLE - INT4_MOST / 2)


def _by_hqq(groups: Tensor) -> tuple[Tensor, Tensor]:
    """The zero that leaves the least sum of |error| ** 0.7, by half-quadratic splitting.

    Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023, with its own
    defaults. The scale stays that of the range; a group keeps the zero of its best round.
    """
    scales, zeros = _by_range(groups)
    scales = scales.bfloat16().float()
    best, least = zeros, torch.full_like(zeros, torch.inf)
    beta = HQQ_BETA
    for _ in range(HQQ_ROUNDS):
        levels = (_codes(groups, scales[..., None], zeros[..., None]) - INT4_MIDDLE) * scales[..., None]
        error = groups - levels - zeros[..., None]
        size = error.abs()
        total = size.pow(HQQ_NORM).sum(-1)
        better = total < least
        best, least = torch.where(better, zeros, best), torch.where(better, total, least)
        shrunk = error.sign() * (size - size.clamp_min(1e-12).pow(HQQ_NORM - 1) / beta).relu()
        zeros = (groups - shrunk - levels).mean(-1)
        beta *= HQQ_KAPPA
    return scales, best


def _by_fit(groups: Tensor) -> tuple[Tensor, Tensor]:
    """The scale and zero that leave the least squared error.

    From each of a few widths: codes for the levels, then the levels that fit those codes best (least
    squares), and again. A group keeps the best of all rounds.
    """
    best_scales, best_zeros = _by_range(groups)
    least = torch.full_like(best_zeros, torch.inf)
    for width in FIT_WIDTHS:
        scales, zeros = _by_range(groups, width)
        for _ in range(FIT_ROUNDS):
            scales, zeros = scales.bfloat16().float(), zeros.bfloat16().float()
            steps = _codes(groups, scales[..., None], zeros[..., None]) - INT4_MIDDLE
            total = (groups - steps * scales[..., None] - zeros[..., None]).square().sum(-1)
            better = total < least
            least = torch.where(better, total, least)
            best_scales = torch.where(better, scales, best_scales)
            best_zeros = torch.where(better, zeros, best_zeros)
            mean_step, mean = steps.mean(-1, keepdim=True), groups.mean(-1, keepdim=True)
            spread = (steps - mean_step).square().sum(-1)
            together = ((steps - mean_step) * (groups - mean)).sum(-1)
            scales = torch.where(spread > 0, together / spread.clamp_min(1e-12), scales)
            zeros = mean[..., 0] - scales * mean_step[..., 0]
    return best_scales, best_zeros


def _divide(values: Tensor, scales: Tensor) -> Tensor:
    """values / scales, and 0 where a scale is 0: there all values lie on the zero."""
    return torch.where(scales == 0, 0.0, values / torch.where(scales == 0, 1.0, scales))


_CHOOSE: dict[Method, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    Method.RTN: _by_range,
    Method.HQQ: _by_hqq,
    Method.FIT: _by_fit,
}
