"""Prompts through `varlen_attn`: what it is given, by a stand-in on a CPU, and the real one on CUDA."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from kaminari.model import attention
from kaminari.model.attention import attend, row_attention
from kaminari.model.batch import RowLengths, StepBatch
from kaminari.model.cache import AttentionKV
from kaminari.model.kernels import varlen
from kaminari.model.row_attention import HeadSizes, RowAttention, plain_attention
from tests.model.kernels import varlen_stand_in

CPU = torch.device("cpu")
# whole prompts, later chunks, one token; the lengths of flash attention's blocks and one beside them
LENGTHS = [(2, 2), (128, 128), (129, 129), (9, 30), (64, 513), (130, 131), (1, 40), (1, 1)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[inspect.BoundArguments]]:
    """What the stand-in was called with, bound to the real function's parameters."""
    seen = []
    signature = inspect.signature(varlen_attn)

    def stand_in(*args: Any, **named: Any) -> Tensor:
        seen.append(signature.bind(*args, **named))
        return varlen_stand_in.varlen_attn(*args, **{"enable_gqa": True, **named})

    monkeypatch.setattr(varlen.varlen, "varlen_attn", stand_in)
    varlen._bounds.cache_clear()
    yield seen
    varlen._bounds.cache_clear()


def row_of(
    q_len: int, kv_len: int, sizes: HeadSizes, device: torch.device = CPU
) -> tuple[Tensor, Tensor, Tensor]:
    """q, keys and values in bfloat16, in a slot that holds NaN behind the row."""
    generator = torch.Generator().manual_seed(q_len)
    slot = torch.full((2, sizes.kv_heads, kv_len + 7, sizes.head_dim), torch.nan)
    slot[:, :, :kv_len].normal_(generator=generator)
    q = torch.randn(q_len, sizes.heads, sizes.head_dim, generator=generator).bfloat16().to(device)
    keys, values = slot.bfloat16().to(device)[:, :, :kv_len]
    return q, keys, values


def check(q: Tensor, keys: Tensor, values: Tensor, output: Tensor) -> None:
    wanted = plain_attention(q, keys, values)
    assert output.shape == q.shape
    assert output.dtype == q.dtype
    assert (output.float() - wanted).norm() <= 0.01 * wanted.norm()


@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
@pytest.mark.parametrize("sizes", [HeadSizes(4, 2, 16), HeadSizes(6, 1, 24), HeadSizes(3, 3, 8)])
def test_a_row_is_causal_attention_up_to_its_last_token(
    q_len: int, kv_len: int, sizes: HeadSizes, calls: list[inspect.BoundArguments]
) -> None:
    q, keys, values = row_of(q_len, kv_len, sizes)
    check(q, keys, values, varlen.attend_row(q, keys, values))
    (call,) = calls
    assert call.arguments["key"].data_ptr() == keys.data_ptr(), "keys are read where they lie"
    assert call.arguments["value"].data_ptr() == values.data_ptr()
    assert call.arguments.get("enable_gqa", True)


def test_the_layers_of_a_step_share_its_bounds(calls: list[inspect.BoundArguments]) -> None:
    for _ in range(3):
        varlen.attend_row(*row_of(9, 30, HeadSizes(2, 1, 8)))
    assert len({id(call.arguments["cu_seq_k"]) for call in calls}) == 1
    assert calls[0].arguments["cu_seq_q"].tolist() == [0, 9]
    assert calls[0].arguments["cu_seq_k"].tolist() == [0, 30]


def test_the_real_one_takes_these_arguments() -> None:
    """By its own rules for shapes and dtypes: all but the launch."""
    varlen._bounds.cache_clear()
    q = torch.empty(9, 4, 128, dtype=torch.bfloat16, device="meta")
    slot = torch.empty(2, 2, 64, 128, dtype=torch.bfloat16, device="meta")
    with torch.inference_mode():
        output = varlen.attend_row(q, slot[0, :, :30], slot[1, :, :30])
    varlen._bounds.cache_clear()
    assert output.shape == q.shape
    assert output.dtype == q.dtype


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("sizes", "dtype", "words"),
    [
        (HeadSizes(4, 2, 16), torch.float32, "only support fp16 and bf16"),
        (HeadSizes(4, 2, 12), torch.bfloat16, "of 12"),
        (HeadSizes(4, 2, 264), torch.bfloat16, "of 264"),
    ],
)
def test_what_it_was_not_made_for_is_an_error(sizes: HeadSizes, dtype: torch.dtype, words: str) -> None:
    q, keys, values = (part.to(dtype) for part in row_of(3, 5, sizes))
    with pytest.raises(RuntimeError, match=words):
        varlen.attend_row(q, keys, values)


def batch_of(rows: list[tuple[int, int, int]], device: torch.device) -> StepBatch:
    """Rows of (slot, new tokens, length)."""
    slots, q_lens, kv_lens = zip(*rows, strict=True)
    total = sum(q_lens)
    return StepBatch(
        tokens=torch.zeros(total, dtype=torch.int64, device=device),
        positions=torch.zeros(3, total, dtype=torch.int64, device=device),
        slots=torch.tensor(slots, device=device),
        q_lens=torch.tensor(q_lens, dtype=torch.int32, device=device),
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32, device=device),
        logit_rows=torch.zeros(0, dtype=torch.int64, device=device),
        host=RowLengths(slots, q_lens, kv_lens),
    )


def check_step(rows: list[tuple[int, int, int]], sizes: HeadSizes, device: torch.device) -> None:
    """A step through `attend`, each of its rows beside the plain form; what is outside of them holds NaN."""
    layer = AttentionKV(5, sizes.kv_heads, 320, sizes.head_dim, device=device, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(5)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).bfloat16().to(device)

    for cache in (layer.keys, layer.values):
        cache.fill_(torch.nan)
        for slot, q_len, kv_len in rows:
            cache[slot, :, : kv_len - q_len] = noise(sizes.kv_heads, kv_len - q_len, sizes.head_dim)
    total = sum(q_len for _, q_len, _ in rows)
    q = noise(total, sizes.heads, sizes.head_dim)
    k, v = (noise(total, sizes.kv_heads, sizes.head_dim) for _ in range(2))
    output = attend(q, k, v, layer, batch_of(rows, device))
    start = 0
    for slot, q_len, kv_len in rows:
        stop = start + q_len
        assert torch.equal(layer.keys[slot, :, kv_len - q_len : kv_len], k[start:stop].transpose(0, 1))
        check(q[start:stop], layer.keys[slot, :, :kv_len], layer.values[slot, :, :kv_len], output[start:stop])
        start = stop


STEPS = [
    [(0, 70, 70)],
    [(2, 64, 300)],
    [(4, 1, 17), (0, 33, 33), (2, 20, 310), (1, 1, 1), (3, 9, 10)],
]


@pytest.mark.parametrize("rows", STEPS)
def test_a_device_whose_rows_go_there_attends_every_mix(
    rows: list[tuple[int, int, int]],
    calls: list[inspect.BoundArguments],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention.cpu_attention, "fits", lambda *_: False)
    chosen = RowAttention("varlen_attn", varlen.attend_row)
    monkeypatch.setattr(attention, "row_attention", lambda device, dtype, sizes: chosen)
    check_step(rows, HeadSizes(4, 2, 16), CPU)
    assert len(calls) == len(rows)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("sizes", [HeadSizes(16, 8, 128), HeadSizes(8, 2, 256), HeadSizes(4, 2, 16)])
def test_on_cuda_what_was_chosen_attends_every_length(sizes: HeadSizes) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    chosen = row_attention(device, torch.bfloat16, sizes)
    assert chosen.name in ("varlen_attn", "sdpa"), chosen.word
    for q_len, kv_len in [*LENGTHS, (512, 512), (512, 2048), (3, 4000)]:
        q, keys, values = row_of(q_len, kv_len, sizes, device)
        check(q, keys, values, chosen.attend_row(q, keys, values))
    for rows in STEPS:
        check_step(rows, sizes, device)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_on_cuda_a_long_prompt_never_holds_its_scores(dtype: torch.dtype) -> None:
    """A chunk of 512 tokens behind 32 thousand: its scores would take a gigabyte in float32."""
    device = torch.device("cuda", torch.cuda.current_device())
    sizes = HeadSizes(16, 8, 128)
    attend_row = row_attention(device, dtype, sizes).attend_row
    keys, values = torch.randn(2, 8, 32768, 128, device=device).to(dtype)
    q = torch.randn(512, 16, 128, device=device).to(dtype)
    attend_row(q, keys, values)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    attend_row(q, keys, values)
    assert torch.cuda.max_memory_allocated() - before < 2**27
