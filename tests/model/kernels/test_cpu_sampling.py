"""What rows draw in C++ is what torch draws: the same whole numbers, and the same bits in any batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kaminari.engine import sampler
from kaminari.engine.logit_table import LogitTable
from kaminari.engine.params import SamplingParams
from kaminari.engine.sampler import filtered_weights, sample
from kaminari.engine.sampling_table import SamplingTable, SamplingTensors
from kaminari.model import operators
from kaminari.model.kernels import cpu_sampling
from kaminari.model.kernels.native.build import allow_native, native_kernels

pytestmark = pytest.mark.skipif(native_kernels().library is None, reason=native_kernels().reason)


@pytest.fixture(params=[1, 3], autouse=True)
def more_threads(request: pytest.FixtureRequest, threads: None) -> None:
    torch.set_num_threads(request.param)


DTYPES = [torch.float32, torch.bfloat16]
VOCABULARIES = [1, 3, 17, 64, 1000, 40_000]
FILTERS = [
    SamplingParams(),
    SamplingParams(temperature=0.7, top_p=0.8, top_k=20),
    SamplingParams(temperature=2.0, top_p=0.95),
    SamplingParams(temperature=0.1, top_k=3),
    SamplingParams(temperature=1.9, top_p=0.999, min_p=0.2),
    SamplingParams(top_k=10**6, top_p=1e-9),
    SamplingParams(top_k=1),
    SamplingParams(temperature=0.0),
]


def tensors(vocab: int, params: list[SamplingParams] = FILTERS) -> SamplingTensors:
    table = SamplingTable(len(params), vocab, torch.device("cpu"))
    for slot, row in enumerate(params):
        table.set(slot, row)
    return table.rows(range(len(params)), torch.arange(len(params)))


def logits_of(kind: str, rows: int, vocab: int) -> Tensor:
    chance = torch.Generator().manual_seed(vocab)
    wide = torch.randn(rows, vocab, generator=chance) * 6
    return {
        "wide": wide,
        "ties": (wide / 8).round(),
        "flat": torch.full((rows, vocab), -3.0),
        "masked": wide.masked_fill(torch.rand(rows, vocab, generator=chance) < 0.4, -torch.inf),
    }[kind]


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_greedy_takes_the_first_of_the_largest(dtype: torch.dtype, vocab: int) -> None:
    logits = torch.cat([logits_of("wide", 4, vocab), logits_of("ties", 4, vocab)]).to(dtype)
    assert torch.equal(cpu_sampling.greedy(logits), logits.argmax(-1))
    for odd in (torch.nan, torch.inf, -torch.inf):
        for place in {0, vocab // 2, vocab - 1}:
            struck = logits.clone()
            struck[3, place] = odd
            found = cpu_sampling.greedy(struck)
            assert found[3] == -1
            assert torch.equal(found[4:], logits[4:].argmax(-1))
    allow_native(False)
    try:
        assert torch.equal(operators.greedy(struck), found)
    finally:
        allow_native(True)


def test_greedy_reads_zeros_of_both_signs_as_equals() -> None:
    assert cpu_sampling.greedy(torch.tensor([[-0.0, 0.0], [0.0, -0.0], [-1.0, -0.0]])).tolist() == [0, 0, 1]


def test_drawn_ids_lie_where_the_next_step_finds_them() -> None:
    table = torch.full((5,), 9)
    cpu_sampling.leave(table, torch.tensor([4, 0, 2]), torch.tensor([7, -1, 3]))
    assert table.tolist() == [0, 9, 3, 9, 7]


@pytest.mark.parametrize("kind", ["wide", "ties", "flat", "masked"])
@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_those_of_torch_s_exponential(dtype: torch.dtype, vocab: int, kind: str) -> None:
    logits = logits_of(kind, 3, vocab).to(dtype)
    temperature = torch.tensor([1.0, 0.3, 0.0])
    found = cpu_sampling.weigh(logits, temperature)
    by = torch.tensor([1.0, 0.3, 1.0])[:, None]
    wide = logits.double()
    exact = ((wide - wide.amax(-1, keepdim=True)) / by).exp().nan_to_num(0.0) * 2**42
    # the exponent is a float32, whose rounding weighs as much as it is large; the floor takes up to one
    close = (found - exact).abs() <= exact * 2e-5 + 1
    assert close.all()
    assert (found[exact == 0] == 0).all()
    assert (found.amax(-1) == 2**42).all() or kind == "masked"


@pytest.mark.parametrize("kind", ["wide", "ties", "flat", "masked"])
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_filters_and_draws_are_torch_s_to_the_last_unit(
    vocab: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given the same weights, which are whole numbers."""
    params = tensors(vocab)
    logits = logits_of(kind, len(FILTERS), vocab)
    noise = torch.rand(len(FILTERS), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours = filtered_weights(logits, params)
    weights = cpu_sampling.weigh(logits, params.temperature)
    drawn = cpu_sampling.draw(ours, noise)
    ends = [cpu_sampling.draw(ours, torch.full_like(noise, end)) for end in (0.0, 1 - 2**-53)]
    allow_native(False)
    try:
        # torch's exponential is another one
        monkeypatch.setattr(sampler, "_weights", lambda *_: weights.clone())
        assert torch.equal(filtered_weights(logits, params), ours)
        assert torch.equal(sampler._draw(ours, noise), drawn)
        for end, found in zip((0.0, 1 - 2**-53), ends, strict=True):
            assert torch.equal(sampler._draw(ours, torch.full_like(noise, end)), found)
    finally:
        allow_native(True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_alone_and_in_any_batch(dtype: torch.dtype) -> None:
    vocab = 3001
    logits = logits_of("wide", len(FILTERS), vocab).to(dtype)
    noise = torch.rand(len(FILTERS), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    whole = sample(logits, tensors(vocab), None, noise).ids
    for row, params in enumerate(FILTERS):
        alone = slice(row, row + 1)
        assert sample(logits[alone], tensors(vocab, [params]), None, noise[alone]).ids == whole[row]


EDITS = [
    SamplingParams(temperature=0.0, repetition_penalty=1.7),
    SamplingParams(temperature=0.8, frequency_penalty=1.5, presence_penalty=-0.7, top_p=0.9),
    SamplingParams(temperature=0.0, logit_bias=((0, 90.0),)),
    SamplingParams(temperature=1.2, logit_bias=((0, -100.0), (2, 3.0)), repetition_penalty=0.6),
    SamplingParams(temperature=0.0, min_tokens=5, ignore_eos=False),
    SamplingParams(temperature=0.9, min_tokens=5, top_k=2, presence_penalty=2.0),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, min_tokens=2),
]


class Steps:
    """Two tables for as many answers: one that `choose` counts on, and one of the sampler."""

    def __init__(self, params: list[SamplingParams], vocab: int) -> None:
        self.rows = len(params)
        # slots in another order than rows, and one that nobody has
        self.slots = [(2 * row + 1) % (self.rows + 1) for row in range(self.rows)]
        self.index = torch.tensor(self.slots)
        self.sampling = SamplingTable(self.rows + 1, vocab, torch.device("cpu"))
        self.ours, self.theirs = (LogitTable(self.rows + 1, vocab, 2, torch.device("cpu")) for _ in range(2))
        for slot, row in zip(self.slots, params, strict=True):
            self.sampling.set(slot, row)
            for table in (self.ours, self.theirs):
                rules = table.bring(row, list(range(0, vocab, 3)), row.ending({1 % vocab, vocab - 1}))
                table.claim(slot, rules)

    def choose(self, logits: Tensor, noise: Tensor, made: int) -> Tensor:
        orders = torch.tensor([self.ours.orders(slot, made) for slot in self.slots]).long().T.contiguous()
        lines = torch.tensor([self.sampling.line(slot) for slot in self.slots], dtype=torch.float64)
        draws = torch.cat([lines.T, noise[None]])
        return cpu_sampling.choose(logits, self.index, orders, draws, self.ours.tables)

    def draw(self, logits: Tensor, noise: Tensor, made: int) -> Tensor:
        params = self.sampling.rows(self.slots, self.index)
        edits = self.theirs.rows(self.slots, self.index, [made] * self.rows)
        drawn = sample(logits, params, None, noise, edits)
        self.theirs.record(self.slots, self.index, drawn.ids)
        return torch.where(drawn.finite, drawn.ids, -1)


@pytest.mark.parametrize("kind", ["wide", "ties", "flat"])
@pytest.mark.parametrize("vocab", [3, 17, 64, 1000, 40_000])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("params", [FILTERS, EDITS], ids=["filters", "edits"])
def test_a_step_chooses_what_the_sampler_draws(
    params: list[SamplingParams], dtype: torch.dtype, vocab: int, kind: str
) -> None:
    """Token after token, so that what was drawn counts."""
    steps = Steps(params, vocab)
    chance = torch.Generator().manual_seed(vocab)
    for made in range(8):
        logits = (logits_of(kind, steps.rows, vocab) + 0.1 * made).to(dtype)
        noise = torch.rand(steps.rows, dtype=torch.float64, generator=chance)
        assert torch.equal(steps.choose(logits, noise, made), steps.draw(logits, noise, made)), made
    counted = [slot for slot, row in zip(steps.slots, params, strict=True) if row.penalized]
    assert torch.equal(steps.ours.tables.made[counted], steps.theirs.tables.made[counted])
    assert steps.ours.tables.made.sum() == 8 * len(counted)


def test_a_step_chooses_nothing_in_a_row_that_is_not_finite() -> None:
    steps = Steps(EDITS, 40)
    logits = logits_of("wide", steps.rows, 40)
    whole = steps.choose(logits, torch.full((steps.rows,), 0.5, dtype=torch.float64), 0)
    for row in range(steps.rows):
        steps = Steps(EDITS, 40)
        struck = logits.clone()
        struck[row, 7] = torch.nan
        chosen = steps.choose(struck, torch.full((steps.rows,), 0.5, dtype=torch.float64), 0)
        assert chosen[row] == -1
        others = torch.arange(steps.rows) != row
        assert torch.equal(chosen[others], whole[others])
        assert not steps.ours.tables.made[steps.slots[row]].any()


def test_what_all_ends_is_not_barred() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=5, stop_token_ids=(0, 1, 2))
    steps = Steps([params], 3)
    assert steps.choose(torch.tensor([[1.0, 3.0, 2.0]]), torch.zeros(1, dtype=torch.float64), 0).tolist() == [
        1
    ]


@pytest.mark.parametrize(
    ("field", "wrong", "message"),
    [
        ("logits", torch.zeros(2, 5, dtype=torch.float64), "no kernel for"),
        ("logits", torch.zeros(2, 0), "no kernel for"),
        ("logits", torch.zeros(2, 6), "made"),
        ("index", torch.zeros(3, dtype=torch.int64), "index"),
        ("index", torch.tensor([0, 9]), "none"),
        ("index", torch.tensor([0, -1]), "none"),
        ("orders", torch.zeros(2, 2, dtype=torch.int64), "orders"),
        ("orders", torch.tensor([[0, 0], [0, 10**6], [0, 0]]), "none"),
        ("orders", torch.tensor([[0, 0], [0, 0], [0, 10**6]]), "none"),
        ("draws", torch.zeros(5, 2), "draws"),
        ("draws", torch.zeros(2, 5, dtype=torch.float64).T, "draws"),
    ],
)
def test_what_a_step_cannot_choose_by_is_refused(field: str, wrong: Tensor, message: str) -> None:
    arguments = {
        "logits": torch.zeros(2, 5),
        "index": torch.tensor([0, 1]),
        "orders": torch.zeros(3, 2, dtype=torch.int64),
        "draws": torch.zeros(5, 2, dtype=torch.float64),
    }
    tables = LogitTable(3, 5, 2, torch.device("cpu")).tables
    cpu_sampling.choose(**arguments, tables=tables)
    with pytest.raises(ValueError, match=message):
        cpu_sampling.choose(**arguments | {field: wrong}, tables=tables)


@pytest.mark.parametrize("table", ["bias_ids", "ends"])
def test_a_token_that_is_none_is_refused(table: str) -> None:
    tables = LogitTable(1, 5, 2, torch.device("cpu")).tables
    getattr(tables, table)[0, 0] = 5
    orders = torch.tensor([[0], [1], [1]])
    with pytest.raises(ValueError, match="none"):
        cpu_sampling.choose(
            torch.zeros(1, 5), torch.tensor([0]), orders, torch.zeros(5, 1, dtype=torch.float64), tables
        )


def test_what_does_not_fit_is_refused() -> None:
    ids, weights = torch.zeros(2, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int64)
    for wrong in (torch.zeros(2, 5, dtype=torch.float64), torch.zeros(5), torch.zeros(2, 0)):
        with pytest.raises(ValueError, match="no kernel for"):
            cpu_sampling.greedy(wrong)
        with pytest.raises(ValueError, match="no kernel for"):
            cpu_sampling.weigh(wrong, torch.ones(2))
    with pytest.raises(ValueError, match="temperatures for 2 rows"):
        cpu_sampling.weigh(torch.zeros(2, 5), torch.ones(3))
    with pytest.raises(ValueError, match="places"):
        cpu_sampling.leave(ids, torch.tensor([0, 2]), ids)
    with pytest.raises(ValueError, match="3 ids for 2 places"):
        cpu_sampling.leave(ids, ids, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="numbers for 2 rows"):
        cpu_sampling.draw(weights, torch.zeros(3))
    with pytest.raises(ValueError, match="numbers for 2 rows"):
        cpu_sampling.keep(weights, torch.zeros(2), torch.ones(1), torch.zeros(2))
    for wrong in (weights.float(), weights[0], weights.t()):
        with pytest.raises(ValueError, match="no kernel for"):
            cpu_sampling.draw(wrong, torch.zeros(2))
