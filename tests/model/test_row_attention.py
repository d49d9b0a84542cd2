"""A kernel that is wrong, missing or too curious on a device is passed over, and the reason is told."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kaminari.model import attention
from kaminari.model.attention import cuda_word, row_attention
from kaminari.model.kernels import varlen
from kaminari.model.row_attention import (
    AttendRow,
    HeadSizes,
    first_right,
    plain_attention,
    try_out,
    try_step,
)

CPU = torch.device("cpu")
QWEN = HeadSizes(16, 8, 128)
SIZES = [QWEN, HeadSizes(8, 2, 256), HeadSizes(4, 4, 16)]


def right(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return plain_attention(q, keys, values).to(q.dtype)


def aligned_with_the_first_token(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return right(q, keys[:, : q.shape[0]], values[:, : q.shape[0]])


def sees_one_token_too_many(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    q_len, kv_len, group = q.shape[0], keys.shape[1], q.shape[1] // keys.shape[0]
    mask = torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len + 1)
    wide = (part.repeat_interleave(group, dim=0)[None] for part in (keys, values))
    return F.scaled_dot_product_attention(q.transpose(0, 1)[None], *wide, attn_mask=mask)[0].transpose(0, 1)


def interleaves_the_heads(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    kv_heads = keys.shape[0]
    order = torch.arange(q.shape[1]).view(-1, kv_heads).t().flatten()
    return right(q[:, order], keys, values)[:, order.argsort()]


def reads_the_whole_slot(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    slot = keys.untyped_storage().nbytes() // keys.itemsize // keys.shape[0] // keys.shape[2] // 2
    parts = (part.as_strided((part.shape[0], slot, part.shape[2]), part.stride()) for part in (keys, values))
    return right(q, *parts)


def raises(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    warnings.warn("it will fail", stacklevel=2)
    raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.\nand more")


def raises_nothing_to_read(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    raise AssertionError


def returns_another_dtype(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return right(q, keys, values).double()


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_right_kernels_pass(sizes: HeadSizes, dtype: torch.dtype) -> None:
    assert try_out(right, CPU, dtype, sizes) == ""
    assert try_out(attention._attend_row, CPU, dtype, sizes) == ""
    assert try_out(attention._attend_row_fused, CPU, dtype, sizes) == ""
    assert try_out(attention._attend_in_products, CPU, dtype, sizes) == ""


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (aligned_with_the_first_token, "^it is off by [0-9.]+ of the answer for 1 of 70 tokens$"),
        (sees_one_token_too_many, "^it is off by 0[0-9.]+ of the answer for 130 of 130 tokens$"),
        (reads_the_whole_slot, "^it is off by nan "),
        (raises, "^FlashAttention only supports Ampere GPUs or newer$"),
        (raises_nothing_to_read, "^AssertionError$"),
        (returns_another_dtype, r"^it returns torch.float64 \[1, "),
    ],
)
def test_wrong_kernels_are_found_out(
    kernel: AttendRow, reason: str, dtype: torch.dtype, sizes: HeadSizes
) -> None:
    assert re.search(reason, try_out(kernel, CPU, dtype, sizes))


def test_heads_of_another_group_are_found_out() -> None:
    assert "it is off by " in try_out(interleaves_the_heads, CPU, torch.bfloat16, QWEN)


def test_the_first_right_one_is_taken_and_the_others_reasons_are_kept() -> None:
    kernels = (("first", raises), ("second", aligned_with_the_first_token), ("third", right), ("last", right))
    chosen = first_right(kernels, CPU, torch.float32, QWEN)
    assert (chosen.name, chosen.attend_row) == ("third", right)
    first, second = chosen.passed_over
    assert first == "not first: FlashAttention only supports Ampere GPUs or newer"
    assert second.startswith("not second: it is off by ")
    assert chosen.word == f"third for prompts ({first}; {second})"
    assert first_right(kernels[2:], CPU, torch.float32, QWEN).word == "third for prompts"


def test_the_last_one_is_taken_untried() -> None:
    assert first_right((("only", raises),), CPU, torch.float32, QWEN).name == "only"


@pytest.fixture
def on_a_card(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The word for a CUDA device with such kernels, each tried on the CPU."""

    def word(
        dtype: torch.dtype, *, triton: bool = True, step_fault: str = "", sdpa: AttendRow = right
    ) -> str:
        class Kernels:
            @staticmethod
            def fits(step: Tensor, queries: int) -> bool:
                return step.shape[2] != 72

        monkeypatch.setattr(attention, "_triton_kernels", lambda _: Kernels if triton else None)
        monkeypatch.setattr(attention, "try_step", lambda *_: step_fault)
        monkeypatch.setattr(attention, "_attend_row_fused", sdpa)
        monkeypatch.setattr(
            attention, "first_right", lambda kernels, _, dtype, sizes: first_right(kernels, CPU, dtype, sizes)
        )
        caches = (row_attention, attention._tried_step)
        for each in caches:
            each.cache_clear()
        try:
            return cuda_word(torch.device("cuda", 0), dtype, QWEN)
        finally:
            for each in caches:
                each.cache_clear()

    return word


def test_reports_say_what_runs_on_a_card_and_why(
    on_a_card: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "attend_row", right)
    assert on_a_card(torch.bfloat16) == "Triton for decode and varlen_attn for prompts"
    assert (
        on_a_card(torch.bfloat16, triton=False)
        == "varlen_attn for decode (Triton is not installed) and varlen_attn for prompts"
    )
    assert (
        on_a_card(torch.bfloat16, step_fault="Failed to find C compiler")
        == "varlen_attn for decode (not Triton: Failed to find C compiler) and varlen_attn for prompts"
    )
    monkeypatch.setattr(varlen, "attend_row", raises)
    reason = "not varlen_attn: FlashAttention only supports Ampere GPUs or newer"
    assert on_a_card(torch.float32) == f"Triton for decode and sdpa for prompts ({reason})"
    assert on_a_card(torch.float32, sdpa=raises_nothing_to_read) == (
        f"Triton for decode and products for prompts ({reason}; not sdpa: AssertionError)"
    )


class PlainSteps:
    """What stands in for kernels of decode steps, and does harm where a test asks for it."""

    def __init__(self, *, harm: str = "") -> None:
        self.harm = harm

    def write(
        self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor, lengths: Tensor
    ) -> None:
        for row, (slot, length) in enumerate(zip(slots.tolist(), lengths.tolist(), strict=True)):
            place = length if self.harm == "writes past the row" else length - 1
            keys[slot, :, place], values[slot, :, place] = k[row], v[row]

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, slots: Tensor, lengths: Tensor, longest: int
    ) -> Tensor:
        assert longest >= int(lengths.max())
        if self.harm == "raises":
            raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")
        if self.harm == "mixes up the slots":
            slots = slots.flip(0)
        more = 1 if self.harm == "reads past the row" else 0
        rows = []
        for row, (slot, length) in enumerate(zip(slots.tolist(), lengths.tolist(), strict=True)):
            held = slice(0, length + more)
            rows.append(right(q[row][None], keys[slot, :, held], values[slot, :, held]))
        return torch.cat(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        ("", "^$"),
        ("raises", "^Failed to find C compiler. Please specify via CC environment variable$"),
        ("writes past the row", "^it is off by nan of the answer for a step$"),
        ("reads past the row", "^it is off by nan of the answer for a step$"),
        ("mixes up the slots", "^it is off by (nan|[0-9.]+) of the answer for a step$"),
    ],
)
def test_a_decode_step_is_tried_as_well(harm: str, reason: str, dtype: torch.dtype) -> None:
    kernels: Any = PlainSteps(harm=harm)
    assert re.search(reason, try_step(kernels, CPU, dtype, 64))


def test_a_kernel_is_tried_once(on_a_card: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        calls.append(q.shape[0])
        return right(q, keys, values)

    monkeypatch.setattr(varlen, "attend_row", counted)
    on_a_card(torch.bfloat16)
    assert calls == [1, 130, 130]
    assert row_attention(CPU, torch.bfloat16, QWEN) is row_attention(CPU, torch.bfloat16, QWEN)
    assert row_attention(CPU, torch.bfloat16, QWEN).word == "sdpa for prompts"
