"""`attend` against attention written out in float64; what lies outside a row's length is never read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kaminari.model.attention import _attend_in_products, attend, attend_rows
from kaminari.model.batch import RowLengths, StepBatch
from kaminari.model.cache import AttentionKV

CPU = torch.device("cpu")
HEAD_DIM = 16

# (slot, new tokens, length after them): whole prompts, second chunks, decode rows, a one-token prompt
MIXES = [
    [(0, 9, 9)],
    [(2, 4, 21)],
    [(1, 1, 30)],
    [(3, 1, 1)],
    [(4, 1, 17), (0, 6, 6), (2, 5, 30), (1, 1, 2), (3, 3, 4)],
]


def batch_of(rows: Sequence[tuple[int, int, int]]) -> StepBatch:
    slots, q_lens, kv_lens = zip(*rows, strict=True)
    total = sum(q_lens)
    return StepBatch(
        tokens=torch.zeros(total, dtype=torch.int64),
        positions=torch.zeros(3, total, dtype=torch.int64),
        slots=torch.tensor(slots),
        q_lens=torch.tensor(q_lens, dtype=torch.int32),
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32),
        logit_rows=torch.zeros(0, dtype=torch.int64),
        host=RowLengths(slots, q_lens, kv_lens),
    )


def filled_layer(kv_heads: int, rows: Sequence[tuple[int, int, int]], *, outside: float) -> AttentionKV:
    """A layer whose slots hold noise in what came before the step, and `outside` everywhere else."""
    layer = AttentionKV(5, kv_heads, 32, HEAD_DIM, device=CPU, dtype=torch.float32)
    layer.keys.fill_(outside)
    layer.values.fill_(outside)
    for slot, q_len, kv_len in rows:
        generator = torch.Generator().manual_seed(slot)
        for cache in (layer.keys, layer.values):
            cache[slot, :, : kv_len - q_len].normal_(generator=generator)
    return layer


def step_of(kv_heads: int, group: int, total: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(99)
    heads = kv_heads * group
    shapes = ((total, heads, HEAD_DIM), (total, kv_heads, HEAD_DIM), (total, kv_heads, HEAD_DIM))
    q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
    return q, k, v


def written_out(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One row in float64: q [q_len, heads, d], keys and values [kv_heads, kv_len, d]."""
    q_len, heads, head_dim = q.shape
    kv_heads, kv_len, _ = keys.shape
    output = torch.empty(q_len, heads, head_dim, dtype=torch.float64)
    for head in range(heads):
        own_keys, own_values = (t[head // (heads // kv_heads)].double() for t in (keys, values))
        for place in range(q_len):
            seen = kv_len - q_len + place + 1
            scores = own_keys[:seen] @ q[place, head].double() / math.sqrt(head_dim)
            output[place, head] = scores.softmax(0) @ own_values[:seen]
    return output


@pytest.mark.parametrize("rows", MIXES)
@pytest.mark.parametrize(("kv_heads", "group"), [(1, 4), (2, 2), (2, 3), (4, 1)])
def test_every_row_is_causal_attention_over_its_own_slot(
    kv_heads: int, group: int, rows: list[tuple[int, int, int]]
) -> None:
    layer = filled_layer(kv_heads, rows, outside=math.nan)
    q, k, v = step_of(kv_heads, group, sum(q_len for _, q_len, _ in rows))
    output = attend(q, k, v, layer, batch_of(rows))
    start = 0
    for slot, q_len, kv_len in rows:
        stop = start + q_len
        assert torch.equal(layer.keys[slot, :, kv_len - q_len : kv_len], k[start:stop].transpose(0, 1))
        assert torch.equal(layer.values[slot, :, kv_len - q_len : kv_len], v[start:stop].transpose(0, 1))
        wanted = written_out(q[start:stop], layer.keys[slot, :, :kv_len], layer.values[slot, :, :kv_len])
        torch.testing.assert_close(output[start:stop].double(), wanted, atol=2e-6, rtol=1e-5)
        start = stop


@pytest.mark.parametrize("rows", MIXES)
def test_neither_neighbours_nor_stale_places_change_a_bit(rows: list[tuple[int, int, int]]) -> None:
    q, k, v = step_of(2, 2, sum(q_len for _, q_len, _ in rows))
    outputs = []
    for outside in (0.0, math.nan, 1e30):
        layer = filled_layer(2, rows, outside=outside)
        untouched = layer.keys.clone()
        outputs.append(attend(q, k, v, layer, batch_of(rows)))
        for slot, q_len, kv_len in rows:
            untouched[slot, :, kv_len - q_len : kv_len] = layer.keys[slot, :, kv_len - q_len : kv_len]
        assert torch.equal(layer.keys.nan_to_num(7.0), untouched.nan_to_num(7.0))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])
    start = 0
    for row in rows:
        stop = start + row[1]
        alone = attend(
            q[start:stop], k[start:stop], v[start:stop], filled_layer(2, rows, outside=0.0), batch_of([row])
        )
        assert torch.equal(alone, outputs[0][start:stop])
        start = stop


@pytest.mark.parametrize(("q_len", "kv_len"), [(2, 2), (128, 128), (130, 130), (129, 300), (300, 431)])
@pytest.mark.parametrize(("kv_heads", "group"), [(1, 4), (2, 3)])
def test_products_are_the_same_attention_over_every_block(
    q_len: int, kv_len: int, kv_heads: int, group: int
) -> None:
    generator = torch.Generator().manual_seed(q_len)
    slot = torch.full((2, kv_heads, kv_len + 9, HEAD_DIM), torch.nan)
    slot[:, :, :kv_len].normal_(generator=generator)
    keys, values = slot[:, :, :kv_len]
    q = torch.randn(q_len, kv_heads * group, HEAD_DIM, generator=generator)
    wanted = written_out(q, keys, values).float()
    torch.testing.assert_close(_attend_in_products(q, keys, values), wanted, atol=2e-6, rtol=1e-5)
    # What bfloat16 rounds: the inputs, the weights and the result; scores would take this to 0.01 and more.
    narrow = _attend_in_products(*(part.bfloat16() for part in (q, keys, values)))
    assert (narrow.float() - wanted).norm() < 0.006 * wanted.norm()


def test_bfloat16_prompts_on_a_cpu_attend_in_products() -> None:
    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(40, heads, HEAD_DIM, generator=generator).bfloat16() for heads in (4, 2, 2))
    layer = AttentionKV(1, 2, 40, HEAD_DIM, device=CPU, dtype=torch.bfloat16)
    output = attend_rows(q, k, v, layer, batch_of([(0, 40, 40)]))
    assert torch.equal(output, _attend_in_products(q, layer.keys[0], layer.values[0]))
