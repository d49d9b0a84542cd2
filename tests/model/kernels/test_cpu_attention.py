"""The C++ decode attention against attention in float64, and what must not change a bit of it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kaminari.model.attention import attend, attend_rows
from kaminari.model.batch import RowLengths, StepBatch
from kaminari.model.cache import AttentionKV
from kaminari.model.kernels import cpu_attention
from kaminari.model.kernels.native.build import BFLOAT_LEVEL, native_kernels

CPU = torch.device("cpu")
CAPACITY = 640
DTYPES = [torch.float32, torch.bfloat16]
SIZES = [16, 32, 48, 64, 80, 128, 256]

NARROW_WEIGHTS = native_kernels().level == BFLOAT_LEVEL
"""Whether weights over bfloat16 values are rounded to bfloat16, as torch's are."""

pytestmark = pytest.mark.skipif(native_kernels().library is None, reason=native_kernels().reason)


@dataclass
class Case:
    """A cache with NaN wherever no row has written, and the next step of some rows."""

    q: Tensor
    k: Tensor
    v: Tensor
    layer: AttentionKV
    batch: StepBatch

    def answer(self) -> Tensor:
        return cpu_attention.attend(
            self.q,
            self.k,
            self.v,
            self.layer.keys,
            self.layer.values,
            self.batch.slots,
            self.batch.q_lens,
            self.batch.kv_lens,
        )

    def row(self, number: int) -> tuple[slice, int, int]:
        """Its tokens, its slot and its length."""
        rows = self.batch.host
        start = sum(rows.q_lens[:number])
        return slice(start, start + rows.q_lens[number]), rows.slots[number], rows.kv_lens[number]

    def alone(self, number: int, capacity: int = CAPACITY) -> Case:
        """The same row in a cache and a step of its own."""
        tokens, slot, length = self.row(number)
        _, kv_heads, _, head_dim = self.layer.keys.shape
        layer = AttentionKV(1, kv_heads, capacity, head_dim, device=CPU, dtype=self.q.dtype)
        for mine, theirs in ((layer.keys, self.layer.keys), (layer.values, self.layer.values)):
            mine.fill_(torch.nan)
            mine[0, :, :length] = theirs[slot, :, :length]
        queries = tokens.stop - tokens.start
        return Case(self.q[tokens], self.k[tokens], self.v[tokens], layer, batch_of([0], [queries], [length]))


def batch_of(slots: list[int], q_lens: list[int], kv_lens: list[int]) -> StepBatch:
    tokens = sum(q_lens)
    return StepBatch(
        tokens=torch.zeros(tokens, dtype=torch.int64),
        positions=torch.zeros(3, tokens, dtype=torch.int64),
        slots=torch.tensor(slots),
        q_lens=torch.tensor(q_lens, dtype=torch.int32),
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32),
        logit_rows=torch.zeros(0, dtype=torch.int64),
        host=RowLengths(tuple(slots), tuple(q_lens), tuple(kv_lens)),
    )


def case(
    lengths: list[int],
    queries: int | list[int] = 1,
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    q_lens = [queries] * len(lengths) if isinstance(queries, int) else queries
    slots = random.Random(seed).sample(range(len(lengths) + 2), len(lengths))
    layer = AttentionKV(len(lengths) + 2, kv_heads, CAPACITY, head_dim, device=CPU, dtype=dtype)
    layer.keys.fill_(torch.nan)
    layer.values.fill_(torch.nan)
    for slot, length, new in zip(slots, lengths, q_lens, strict=True):
        layer.keys[slot, :, : length - new] = normal(kv_heads, length - new, head_dim)
        layer.values[slot, :, : length - new] = normal(kv_heads, length - new, head_dim)
    # as a fused projection gives them: parts of one tensor
    qkv = normal(sum(q_lens), heads + 2 * kv_heads, head_dim)
    q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
    return Case(q, k, v, layer, batch_of(slots, q_lens, lengths))


def check(one: Case) -> None:
    """Every row within the bound of its sums; new places written, and no other."""
    before = one.layer.keys.clone(), one.layer.values.clone()
    answer = one.answer()
    for number in range(len(one.batch.host.slots)):
        tokens, slot, length = one.row(number)
        new = slice(length - (tokens.stop - tokens.start), length)
        for old, cache, step in zip(before, (one.layer.keys, one.layer.values), (one.k, one.v), strict=True):
            old[slot, :, new] = step[tokens].transpose(0, 1)
            assert torch.equal(old[slot].nan_to_num(7.0), cache[slot].nan_to_num(7.0))
        wanted, bound = in_float64(
            one.q[tokens], one.layer.keys[slot, :, :length], one.layer.values[slot, :, :length]
        )
        assert (answer[tokens].double() - wanted).abs().le(bound).all()


def attend_prompts(one: Case) -> Tensor:
    """Every row by the kernel for prompts; its keys and values are written already."""
    return torch.cat(
        [
            cpu_attention.attend_prompt(
                one.q[tokens], one.layer.keys[slot, :, :length], one.layer.values[slot, :, :length]
            )
            for tokens, slot, length in map(one.row, range(len(one.batch.host.slots)))
        ]
    )


def in_float64(q: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """One row's attention, and how far float32 arithmetic may be from it.

    A sum of n products in float32 is off by at most n units u = 2**-24 of the sum of their magnitudes. An
    error e in a score is a factor exp(e) on its weight, and every weight stands in the numerator and in the
    denominator; exp itself, the sums of weights and the merging of segments add their own units. The result
    is rounded to its dtype. Weights that are rounded to bfloat16, by half a unit of 2**-8 each, change the
    numerator and the denominator by that.
    """
    q_len, heads, head_dim = q.shape
    kv_len = keys.shape[1]
    group = heads // keys.shape[0]
    keys, values = (each.double().repeat_interleave(group, dim=0) for each in (keys, values))
    scale = head_dim**-0.5
    queries = q.double().transpose(0, 1)
    later = torch.ones(q_len, kv_len, dtype=torch.bool).triu(kv_len - q_len + 1)
    scores = (queries @ keys.transpose(1, 2) * scale).masked_fill(later, -torch.inf)
    weights = scores.softmax(-1)
    wanted = weights @ values
    unit = 2.0**-24
    narrow = NARROW_WEIGHTS and q.dtype == torch.bfloat16
    in_score = (queries.abs() @ keys.abs().transpose(1, 2) * scale).amax(-1, keepdim=True)
    in_score = in_score * (head_dim + 3) * unit + scores.masked_fill(later, 0).abs().amax(-1, True) * unit
    error = 2 * in_score + (2 * kv_len + 16) * unit + narrow * 2.0**-8
    bound = (weights @ values.abs()) * error
    half_last_bit = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}[q.dtype]
    bound = bound + (wanted.abs() + bound) * half_last_bit
    return wanted.transpose(0, 1), bound.transpose(0, 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_length_up_to_300(dtype: torch.dtype) -> None:
    for start in range(1, 301, 25):
        check(case(list(range(start, start + 25)), heads=2, kv_heads=1, head_dim=16, dtype=dtype, seed=start))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", range(1, 9))
def test_every_count_of_new_tokens(queries: int, dtype: torch.dtype) -> None:
    # a draft that begins a row, that ends at, crosses and begins a segment, and that lies within one
    lengths = [queries, 256, 256 + (queries + 1) // 2, 256 + queries, 300, 513]
    check(case(lengths, queries, dtype=dtype, seed=queries))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(1, 1, 32), (3, 3, 48), (4, 2, 64), (6, 2, 80), (8, 2, 256), (16, 8, 128), (7, 1, 96), (24, 2, 144)],
)
def test_every_grouping_and_size_of_heads(
    heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    check(case([70, 300], heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype))
    check(case([70, 258], [3, 5], heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_mix_of_rows(dtype: torch.dtype) -> None:
    chance = random.Random(5)
    for seed in range(20):
        q_lens = [chance.randint(1, 8) for _ in range(chance.randint(1, 9))]
        lengths = [chance.randint(new, CAPACITY) for new in q_lens]
        check(case(lengths, q_lens, dtype=dtype, seed=seed))


@pytest.mark.parametrize("dtype", DTYPES)
def test_neither_neighbours_capacity_nor_threads_change_a_bit(dtype: torch.dtype) -> None:
    crowd = case([300, 5, 599, 256], [1, 5, 8, 2], dtype=dtype)
    torch.set_num_threads(1)
    answer = crowd.answer()
    for count in (2, 3):
        torch.set_num_threads(count)
        assert torch.equal(crowd.answer(), answer)
    for number in range(4):
        tokens, _, length = crowd.row(number)
        for capacity in (length, CAPACITY):
            assert torch.equal(crowd.alone(number, capacity).answer(), answer[tokens])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", SIZES)
@pytest.mark.parametrize("heads", [2, 4, 6])
def test_a_draft_s_tokens_are_those_of_single_steps(heads: int, head_dim: int, dtype: torch.dtype) -> None:
    draft = case([259], 5, heads=heads, head_dim=head_dim, dtype=dtype)
    _, slot, length = draft.row(0)
    together = draft.answer()
    for place in range(5):
        one = slice(place, place + 1)
        step = batch_of([slot], [1], [length - 4 + place])
        single = Case(draft.q[one], draft.k[one], draft.v[one], draft.layer, step)
        assert torch.equal(single.answer(), together[one])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(1, 1, 16), (4, 2, 32), (6, 2, 80), (16, 8, 128), (7, 1, 96), (3, 1, 144), (6, 2, 208), (8, 2, 256)],
)
@pytest.mark.parametrize(("new", "length"), [(9, 9), (64, 65), (65, 130), (127, 127), (130, 300), (40, 513)])
def test_prompts(new: int, length: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    one = case([length], new, heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
    attend_rows(one.q, one.k, one.v, one.layer, one.batch)  # writes
    _, slot, _ = one.row(0)
    keys, values = one.layer.keys[slot, :, :length], one.layer.values[slot, :, :length]
    wanted, bound = in_float64(one.q, keys, values)
    answer = cpu_attention.attend_prompt(one.q, keys, values)
    assert (answer.double() - wanted).abs().le(bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [32, 256])
def test_neither_chunks_nor_threads_change_a_bit_of_a_prompt(head_dim: int, dtype: torch.dtype) -> None:
    one = case([210], 210, heads=6, head_dim=head_dim, dtype=dtype)
    attend_rows(one.q, one.k, one.v, one.layer, one.batch)
    _, slot, _ = one.row(0)
    keys, values = one.layer.keys[slot], one.layer.values[slot]
    torch.set_num_threads(1)
    whole = cpu_attention.attend_prompt(one.q, keys[:, :210], values[:, :210])
    for count, chunk in ((1, 9), (2, 64), (3, 77), (2, 210)):
        torch.set_num_threads(count)
        for start in range(0, 210, chunk):
            stop = min(start + chunk, 210)
            answer = cpu_attention.attend_prompt(one.q[start:stop], keys[:, :stop], values[:, :stop])
            assert torch.equal(answer, whole[start:stop])


@pytest.mark.parametrize("spread", [0.3, 1, 4])
@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
def test_bfloat16_is_no_less_exact_than_torch_s_attention(head_dim: int, spread: float) -> None:
    lengths = [600, 257, 40]
    one = case(lengths, 8, head_dim=head_dim, dtype=torch.bfloat16)
    one.q.mul_(spread)
    ours = one.answer(), attend_prompts(one)
    theirs = attend_rows(one.q, one.k, one.v, one.layer, one.batch)
    exact = torch.cat(
        [
            in_float64(one.q[tokens], one.layer.keys[slot, :, :length], one.layer.values[slot, :, :length])[0]
            for tokens, slot, length in map(one.row, range(len(lengths)))
        ]
    )

    def error(answer: Tensor) -> float:
        return float((answer.double() - exact).norm())

    for answer in ours:
        assert error(answer) <= error(theirs)


def test_long_and_short_rows_of_a_step_go_to_a_kernel_each() -> None:
    rows = [300, 40, 9, 20], [1, 30, 9, 8]
    plain, mixed = case(*rows), case(*rows)
    attend_rows(plain.q, plain.k, plain.v, plain.layer, plain.batch)
    answer = attend(mixed.q, mixed.k, mixed.v, mixed.layer, mixed.batch)
    assert torch.equal(mixed.layer.keys.nan_to_num(7.0), plain.layer.keys.nan_to_num(7.0))
    assert torch.equal(mixed.layer.values.nan_to_num(7.0), plain.layer.values.nan_to_num(7.0))
    for number in (0, 3):
        assert torch.equal(answer[mixed.row(number)[0]], mixed.alone(number).answer())
    for number in (1, 2):
        tokens, slot, length = mixed.row(number)
        keys, values = mixed.layer.keys[slot, :, :length], mixed.layer.values[slot, :, :length]
        assert torch.equal(answer[tokens], cpu_attention.attend_prompt(mixed.q[tokens], keys, values))


def test_what_does_not_fit_a_prompt_is_refused() -> None:
    keys = torch.zeros(2, 30, 32)
    q = torch.zeros(10, 4, 32)
    for message, given in [
        ("no kernel", (q.half(), keys.half(), keys.half())),
        ("no kernel", (torch.zeros(10, 4, 24), torch.zeros(2, 30, 24), torch.zeros(2, 30, 24))),
        ("no kernel", (torch.zeros(10, 4, 272), torch.zeros(2, 30, 272), torch.zeros(2, 30, 272))),
        ("queries of", (q, keys.bfloat16(), keys)),
        ("do not fit", (q[:, :3], keys, keys)),
        ("do not fit", (q, keys[:, :9], keys[:, :9])),
        ("do not fit", (q, keys, keys[:, :29])),
        ("lie alike", (q, keys, torch.zeros(2, 40, 32)[:, :30])),
        ("lie alike", (q, torch.zeros(30, 2, 32).transpose(0, 1), torch.zeros(30, 2, 32).transpose(0, 1))),
    ]:
        with pytest.raises(ValueError, match=message):
            cpu_attention.attend_prompt(*given)


def test_nan_in_a_query_stays_visible_and_in_its_row() -> None:
    one = case([300, 20])
    one.q[0, 1, 3] = torch.nan
    answer = one.answer()
    assert answer[0, 1].isnan().all()
    assert not answer[0, 0].isnan().any()
    assert not answer[1].isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [32, 256])
def test_nan_in_a_key_stays_visible_in_what_reads_it(head_dim: int, dtype: torch.dtype) -> None:
    one = case([300, 300], 20, head_dim=head_dim, dtype=dtype)
    attend_rows(one.q, one.k, one.v, one.layer, one.batch)
    _, slot, length = one.row(0)
    keys, values = one.layer.keys[slot, :, :length], one.layer.values[slot, :, :length]
    keys[1, 290, 5] = torch.nan
    answer = cpu_attention.attend_prompt(one.q[:20], keys, values)
    assert answer[10:, 2:].isnan().all()
    assert not answer[:10].isnan().any()
    assert not answer[:, :2].isnan().any()
    for place, seen in ((9, False), (10, True)):
        step = batch_of([slot], [1], [281 + place])
        token = slice(place, place + 1)
        single = Case(one.q[token], keys[:, 280 + place].clone()[None], one.v[token], one.layer, step)
        assert single.answer()[0, 2:].isnan().all().item() is seen


def test_what_it_was_not_made_for_goes_to_torch() -> None:
    def fits(head_dim: int, dtype: torch.dtype, device: str = "cpu") -> bool:
        keys = torch.empty(1, 1, 4, head_dim, dtype=dtype, device=device)
        return cpu_attention.fits(torch.empty(1, 1, head_dim, dtype=dtype, device=device), keys)

    assert all(fits(head_dim, dtype) for head_dim in (16, 80, 256) for dtype in DTYPES)
    assert not fits(24, torch.float32)
    assert not fits(272, torch.float32)
    assert not fits(32, torch.float16)
    assert not fits(32, torch.float32, "meta")
    one = case([20, 30], [1, 2], head_dim=24)
    assert torch.equal(
        attend(one.q, one.k, one.v, one.layer, one.batch),
        attend_rows(one.q, one.k, one.v, one.layer, one.batch),
    )
    with pytest.raises(ValueError, match="no kernel for"):
        one.answer()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "3 heads of 32"),
        ({"k_tokens": 1}, "do not fit a cache"),
        ({"v_dtype": torch.float64}, "torch.float64"),
        ({"q_lens": [1]}, "one entry per row"),
        ({"slots": [0, 9]}, "in slots"),
        ({"slots": [-1, 1]}, "in slots"),
        ({"kv_lens": [20, 641]}, "do not fit 2 tokens"),
        ({"kv_lens": [20, 0]}, "do not fit 2 tokens"),
        ({"q_lens": [1, 2]}, "do not fit 2 tokens"),
        ({"q_lens": [2, 0]}, "do not fit 2 tokens"),
        ({"int64": True}, "int32"),
        ({"turned": True}, "contiguous"),
    ],
)
def test_what_does_not_belong_together_is_refused_before_anything_is_written(
    changes: dict[str, object], message: str
) -> None:
    one = case([20, 30])
    q, k, v, keys, values = one.q, one.k, one.v, one.layer.keys, one.layer.values
    rows = {"slots": [0, 1], "q_lens": [1, 1], "kv_lens": [20, 30]} | changes
    if "heads" in changes:
        q = q[:, :3]
    if "k_tokens" in changes:
        k = k[:1]
    if "v_dtype" in changes:
        v = v.double()
    if "turned" in changes:
        keys = keys.transpose(1, 2).contiguous().transpose(1, 2)
    lengths = torch.int64 if "int64" in changes else torch.int32
    before = keys.clone()
    with pytest.raises(ValueError, match=message):
        cpu_attention.attend(
            q,
            k,
            v,
            keys,
            values,
            torch.tensor(rows["slots"]),
            torch.tensor(rows["q_lens"], dtype=lengths),
            torch.tensor(rows["kv_lens"], dtype=lengths),
        )
    assert torch.equal(keys.nan_to_num(7.0), before.nan_to_num(7.0))
