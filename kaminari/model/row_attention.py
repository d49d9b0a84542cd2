"""Which of several kernels attends on a device: the first that does it right, found out by trying.

A kernel that a device lacks, or that is wrong there, is passed over with the reason, which reports show. This
module knows no kernel; `kaminari.model.attention` says which there are, and where they are used.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from kaminari.model.kernels.fault import spell_fault

AttendRow = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q [q_len, heads, head_dim], keys and values [kv_heads, kv_len, head_dim] -> [q_len, heads, head_dim]."""

TRIED_LENGTHS = ((1, 70), (130, 130), (130, 300))
"""New tokens and length of each row that is tried: a step, a whole prompt, and a later chunk of one."""

TRIED_STEP = (300, 1, 70)
"""Lengths of the rows of a decode step that is tried, in slots of their own."""

TOLERANCE = 0.02
"""Of the answer's norm. In bfloat16 rounding takes 0.005; a wrong mask or head takes 0.1 and more."""

_UNUSED = 20  # places of the slot behind the row, which hold NaN


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """The heads of an attention layer."""

    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class RowAttention:
    """A kernel for rows of any length.

    passed_over:  why not the ones that were to be preferred, one sentence each
    """

    name: str
    attend_row: AttendRow
    passed_over: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """What a report says of it: `varlen_attn for prompts`, and the reasons."""
        reasons = f" ({'; '.join(self.passed_over)})" if self.passed_over else ""
        return f"{self.name} for prompts{reasons}"


def first_right(
    kernels: Sequence[tuple[str, AttendRow]], device: torch.device, dtype: torch.dtype, sizes: HeadSizes
) -> RowAttention:
    """The first kernel that is right on the device. The last one is taken untried: it must run everywhere."""
    passed_over: list[str] = []
    for name, attend_row in kernels[:-1]:
        fault = try_out(attend_row, device, dtype, sizes)
        if not fault:
            return RowAttention(name, attend_row, tuple(passed_over))
        passed_over.append(f"not {name}: {fault}")
    name, attend_row = kernels[-1]
    return RowAttention(name, attend_row, tuple(passed_over))


@torch.inference_mode()
def try_out(attend_row: AttendRow, device: torch.device, dtype: torch.dtype, sizes: HeadSizes) -> str:
    """Compare a kernel with plain attention on a few small rows; returns what is wrong, or nothing.

    The rows lie in slots as in the cache, with NaN behind them, which no kernel may read.
    """
    for q_len, kv_len in TRIED_LENGTHS:
        q, keys, values = _row(q_len, kv_len, device, dtype, sizes)
        expected = plain_attention(q, keys, values)
        case = f"{q_len} of {kv_len} tokens"
        if fault := _fault(partial(attend_row, q, keys, values), expected, dtype, case):
            return fault
    return ""


@torch.inference_mode()
def try_step(kernels: ModuleType, device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """As `try_out`, for a decode step of a few rows, which kernels such as `split_kv` write and attend."""
    sizes = HeadSizes(4, 2, head_dim)
    rows = [_row(1, length, device, dtype, sizes) for length in TRIED_STEP]
    shape = (2, len(rows), sizes.kv_heads, max(TRIED_STEP) + _UNUSED, head_dim)
    keys, values = torch.full(shape, torch.nan, device=device, dtype=dtype)
    slots = list(reversed(range(len(rows))))
    for slot, length, (_, own_keys, own_values) in zip(slots, TRIED_STEP, rows, strict=True):
        keys[slot, :, : length - 1] = own_keys[:, :-1]
        values[slot, :, : length - 1] = own_values[:, :-1]
    q = torch.cat([row[0] for row in rows])
    k, v = (torch.stack([row[part][:, -1] for row in rows]) for part in (1, 2))
    index = torch.tensor(slots, device=device)
    lengths = torch.tensor(TRIED_STEP, dtype=torch.int32, device=device)

    def step() -> Tensor:
        kernels.write(k, v, keys, values, index, lengths)
        attended: Tensor = kernels.attend(q, keys, values, index, lengths, max(TRIED_STEP))
        return attended

    return _fault(step, torch.cat([plain_attention(*row) for row in rows]), dtype, "a step")


def _fault(kernel: Callable[[], Tensor], expected: Tensor, dtype: torch.dtype, case: str) -> str:
    """What is wrong with a kernel's answer beside the expected one, or nothing."""
    try:
        # what a kernel warns of on its way to an error is told as the error
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = kernel()
        error = ((found.float() - expected).norm() / expected.norm()).item()
    except Exception as fault:  # whatever it is, the kernel is of no use here
        return spell_fault(fault)
    if found.shape != expected.shape or found.dtype != dtype:
        return f"it returns {found.dtype} {list(found.shape)} for {dtype} {list(expected.shape)}"
    # NaN is more than any number here
    return "" if error <= TOLERANCE else f"it is off by {error:.2g} of the answer for {case}"


def plain_attention(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """As `AttendRow`, in float32, with a mask in memory: for short rows."""
    q_len, heads, _ = q.shape
    kv_heads, kv_len, _ = keys.shape
    mask = torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device).tril(kv_len - q_len)
    wide_keys, wide_values = (
        part.float().repeat_interleave(heads // kv_heads, dim=0) for part in (keys, values)
    )
    output = F.scaled_dot_product_attention(
        q.float().transpose(0, 1)[None], wide_keys[None], wide_values[None], attn_mask=mask
    )
    return output[0].transpose(0, 1)


def _row(
    q_len: int, kv_len: int, device: torch.device, dtype: torch.dtype, sizes: HeadSizes
) -> tuple[Tensor, Tensor, Tensor]:
    """q, keys and values of one row, the same numbers every time."""
    generator = torch.Generator().manual_seed(kv_len)
    q = torch.randn(q_len, sizes.heads, sizes.head_dim, generator=generator)
    slot = torch.full((2, sizes.kv_heads, kv_len + _UNUSED, sizes.head_dim), torch.nan)
    slot[:, :, :kv_len].normal_(generator=generator)
    slot = slot.to(device, dtype)
    return q.to(device, dtype), slot[0, :, :kv_len], slot[1, :, :kv_len]
