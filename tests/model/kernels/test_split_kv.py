"""The Triton decode attention against the plain one: in Triton's interpreter on a CPU, as it is on CUDA."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kaminari.engine.conversation import Conversation
from kaminari.model import attention
from kaminari.model.attention import attend_rows
from kaminari.model.batch import RowLengths, StepBatch
from kaminari.model.cache import AttentionKV
from kaminari.model.row_attention import try_step
from tests.engine.harness import hand_loop, picture, poison
from tests.triton_kernels import triton_kernels

split_kv = triton_kernels("split_kv")

pytestmark = pytest.mark.on_device

SLOTS = 6
CAPACITY = 600
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Case:
    """A cache with NaN wherever no row has written, and the next step of some rows."""

    def __init__(
        self,
        lengths: list[int],
        *,
        queries: int = 1,
        heads: int = 4,
        kv_heads: int = 2,
        head_dim: int = 16,
        dtype: torch.dtype = torch.float32,
        capacity: int = CAPACITY,
        seed: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(DEVICE, dtype)

        rows = len(lengths)
        self.queries, self.lengths = queries, lengths
        self.cache = AttentionKV(SLOTS, kv_heads, capacity, head_dim, device=DEVICE, dtype=dtype)
        self.cache.keys.fill_(torch.nan)
        self.cache.values.fill_(torch.nan)
        self.slots = random.Random(seed).sample(range(SLOTS), rows)
        for slot, length in zip(self.slots, lengths, strict=True):
            old = length - queries
            self.cache.keys[slot, :, :old] = normal(kv_heads, old, head_dim)
            self.cache.values[slot, :, :old] = normal(kv_heads, old, head_dim)
        self.q = normal(rows * queries, heads, head_dim)
        self.k = normal(rows * queries, kv_heads, head_dim)
        self.v = normal(rows * queries, kv_heads, head_dim)

    def index(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.slots, device=DEVICE), torch.tensor(
            self.lengths, dtype=torch.int32, device=DEVICE
        )

    def expected(self) -> tuple[Tensor, AttentionKV]:
        """The oracle's answer in float32, and the cache in which it wrote the step's keys and values.

        On the CPU, wherever the kernels run: what a device's own attention rounds is no measure.
        """
        rows = len(self.lengths)
        slots, lengths = self.index()
        shape = self.cache.keys.shape
        cache = AttentionKV(*shape, device=torch.device("cpu"), dtype=torch.float32)
        cache.keys.copy_(self.cache.keys)
        cache.values.copy_(self.cache.values)
        batch = StepBatch(
            tokens=torch.zeros(rows * self.queries, dtype=torch.int64),
            positions=torch.zeros(3, rows * self.queries, dtype=torch.int64),
            slots=slots.cpu(),
            q_lens=torch.full((rows,), self.queries, dtype=torch.int32),
            kv_lens=lengths.cpu(),
            logit_rows=torch.arange(rows),
            host=RowLengths(tuple(self.slots), (self.queries,) * rows, tuple(self.lengths)),
        )
        return attend_rows(*(part.float().cpu() for part in (self.q, self.k, self.v)), cache, batch), cache

    def answer(self, longest: int | None = None) -> Tensor:
        slots, lengths = self.index()
        split_kv.write(self.k, self.v, self.cache.keys, self.cache.values, slots, lengths)
        answer: Tensor = split_kv.attend(
            self.q, self.cache.keys, self.cache.values, slots, lengths, longest or max(self.lengths)
        )
        return answer


def check(case: Case) -> None:
    expected, oracle = case.expected()
    answer = case.answer().float().cpu()
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}[case.q.dtype]
    torch.testing.assert_close(answer, expected, atol=tolerance, rtol=tolerance)
    for ours, wanted in ((case.cache.keys, oracle.keys), (case.cache.values, oracle.values)):
        torch.testing.assert_close(ours.float().cpu(), wanted, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("lengths", [[1], [255], [256], [257], [513, 1, 64], [600, 300, 65, 2]])
def test_a_decode_step_equals_the_plain_attention(lengths: list[int]) -> None:
    check(Case(lengths))


@pytest.mark.parametrize("queries", [2, 3, 5, 8])
def test_a_draft_check_sees_what_lies_before_each_of_its_tokens(queries: int) -> None:
    check(Case([queries, 256 + queries // 2, 258, 300], queries=queries))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(1, 1, 16), (16, 8, 32), (8, 1, 128), (6, 2, 256)]
)
def test_every_grouping_of_heads(heads: int, kv_heads: int, head_dim: int) -> None:
    check(Case([70, 300], heads=heads, kv_heads=kv_heads, head_dim=head_dim))


def test_float16() -> None:
    check(Case([300, 17], dtype=torch.float16))


@pytest.mark.skipif(DEVICE.type == "cpu", reason="Triton's interpreter multiplies bfloat16 as integers")
def test_bfloat16() -> None:
    check(Case([300, 17], dtype=torch.bfloat16))


def test_a_row_ignores_its_neighbours_the_launch_and_the_capacity() -> None:
    alone = Case([300], seed=3)
    crowd = Case([300, 5, 599], seed=3, capacity=700)
    crowd.cache.keys[crowd.slots[0], :, :CAPACITY] = alone.cache.keys[alone.slots[0]]
    crowd.cache.values[crowd.slots[0], :, :CAPACITY] = alone.cache.values[alone.slots[0]]
    crowd.q[0], crowd.k[0], crowd.v[0] = alone.q[0], alone.k[0], alone.v[0]
    assert torch.equal(alone.answer(), crowd.answer(longest=700)[:1])


def test_a_padding_row_reads_and_writes_nothing() -> None:
    case = Case([40, 7], seed=5)
    case.lengths[1] = 0
    before = case.cache.keys[case.slots[1]].clone()
    answer = case.answer(longest=40)
    assert torch.equal(answer[1], torch.zeros_like(answer[1]))
    torch.testing.assert_close(case.cache.keys[case.slots[1]], before, atol=0, rtol=0, equal_nan=True)


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")  # numpy, in the interpreter
def test_nan_in_a_query_stays_visible_and_in_its_row() -> None:
    case = Case([300, 20])
    case.q[0, 1, 3] = torch.nan
    answer = case.answer()
    assert answer[0, 1].isnan().all()
    assert not answer[0, 0].isnan().any()
    assert not answer[1].isnan().any()


def test_what_it_was_not_made_for_is_refused() -> None:
    with pytest.raises(ValueError, match="not 9 tokens"):
        Case([20], queries=9).answer()
    with pytest.raises(ValueError, match="heads of 24"):
        Case([20], head_dim=24).answer()
    case = Case([20])
    case.q = case.q[:, :3]
    with pytest.raises(ValueError, match="3 heads of 16 do not fit"):
        case.answer()


@pytest.mark.parametrize("head_dim", [16, 128, 256])
def test_the_kernels_stand_the_trial_that_a_card_puts_them_to(head_dim: int) -> None:
    for dtype in (torch.float32, torch.bfloat16 if DEVICE.type == "cuda" else torch.float16):
        assert try_step(split_kv, DEVICE, dtype, head_dim) == ""


def test_a_model_that_decodes_with_the_kernels_gives_the_same_tokens(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = (Conversation.ask("Hello, who are you?"), Conversation.ask("What is it?", picture(96, 64, 1)))

    def tokens() -> list[tuple[int, ...]]:
        engine = hand_loop(tiny_checkpoint, slots=3)
        poison(engine.loop.runner.cache)
        running = [engine.submit(prompt) for prompt in prompts]
        engine.run()
        return [one.token_ids() for one in running]

    monkeypatch.setattr(attention.cpu_attention, "fits", lambda *_: False)
    monkeypatch.setattr(attention, "_triton_kernels", lambda _: None)
    plain = tokens()
    steps: list[int] = []

    class Counted:
        """The kernels, and the rows of every step that they attended."""

        fits, write = staticmethod(split_kv.fits), staticmethod(split_kv.write)

        @staticmethod
        def attend(q: Tensor, *rest: Any) -> Tensor:
            steps.append(q.shape[0])
            answer: Tensor = split_kv.attend(q, *rest)
            return answer

    monkeypatch.setattr(attention, "_triton_kernels", lambda _: Counted)
    assert tokens() == plain
    assert set(steps) == {1, 2}


def test_only_short_rows_of_one_length_on_cuda_go_to_the_kernels() -> None:
    assert attention._triton_kernels("cpu") is None
    assert split_kv.fits(torch.empty(8, 4, 128), 8)
    assert not split_kv.fits(torch.empty(9, 4, 128), 9)
    assert not split_kv.fits(torch.empty(1, 4, 72), 1)
    assert not split_kv.fits(torch.empty(1, 4, 512), 1)
